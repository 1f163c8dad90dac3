"""The help of each metric of a bookie and of auto-recovery: one sentence for those who do not know the name.

Inside: the texts. Not inside: the numbers (``metrics``), the text format (``ledger.runtime.statistics``).
Always: each name that ``/metrics`` serves has a text; ``test_each_metric_has_a_help`` holds it.
"""

from __future__ import annotations

import re

_BOOKIE = {
    "bookie_SERVER_STATUS": "1: writable; 0: read-only; -1: not announced.",
    "bookie_ledger_num_dirs": "Ledger directories.",
    "bookie_ledger_writable_dirs": "Ledger directories that take new entries.",
    "bookie_disk_total_bytes": "Size of the file systems of all ledger directories.",
    "bookie_disk_free_bytes": "Free bytes on the file systems of all ledger directories.",
    "bookie_connections": "Open connections of clients.",
    "bookie_recovery_running": "1: the work of autorecovery/bookie runs.",
    "bookie_recovery_ledgers_moved": "Ledgers that the last work of autorecovery/bookie moved.",
    "bookie_recovery_ledgers_left": "Ledgers that the last work of autorecovery/bookie did not move.",
    "bookie_ledger_dir_total_bytes": "Size of the file system of a ledger directory.",
    "bookie_ledger_dir_free_bytes": "Free bytes on the file system of a ledger directory.",
    "bookie_ledger_dir_has_space": "1: the disk of a ledger directory is below diskUsageThreshold.",
    "bookie_ledger_dir_entry_log_bytes": "Bytes in complete entry logs of a ledger directory.",
    "bookie_journal_dir_total_bytes": "Size of the file system of a journal directory.",
    "bookie_journal_dir_free_bytes": "Free bytes on the file system of a journal directory.",
    "bookie_add_duration_seconds": "Adds that succeeded, from their arrival to the acknowledgement.",
    "bookie_read_duration_seconds": "Reads that waited for the disk, from their queue to the reply.",
    "bookie_journal_sync_duration_seconds": "Groups of the journals, each with its write and its sync.",
    "bookie_long_polls": "Long polls that wait.",
    "bookie_limbo_ledgers": "Ledgers of which this bookie may have lost entries, until they are healed.",
    "bookie_limbo_unknown_replies": "Replies that neither have nor deny an entry of a ledger in limbo.",
    "bookie_limbo_lost_entries": "Entries of ledgers in limbo that no other bookie had at the last attempt.",
    "bookie_limbo_copied_entries_total": "Entries of ledgers in limbo copied from other bookies.",
    "bookie_limbo_copied_bytes_total": "Bytes of entries of ledgers in limbo copied from other bookies.",
    "bookie_healing_attempts": "Attempts to heal damaged entries.",
    "bookie_healing_entries": "Damaged entries copied from other bookies and stored again.",
    "bookie_healing_index_pages": "Damaged pages of the index stored again.",
    "bookie_JOURNAL_DIRS": "Journals.",
    "bookie_WRITE_BYTES": "Bytes of records written to all journals.",
    "bookie_READ_BYTES": "Bytes of entries read for requests.",
    "bookie_write_cache_size": "Bytes in all write caches.",
    "bookie_read_cache_size": "Bytes in the read cache of a ledger directory.",
    "bookie_read_cache_hits": "Entries found in the read cache.",
    "bookie_read_cache_misses": "Entries not found in the read cache.",
    "bookie_ledgers_count": "Ledgers on this bookie.",
    "bookie_throttled_write_requests": "Chunks of adds that waited because caches or queues were full.",
    "bookie_flush": "Milliseconds of flushes of the write cache of a ledger directory.",
    "bookie_contained_failures_total": "Unexpected errors that ended one operation and not the bookie.",
    "bookie_scrub_rounds": "Rounds of the scrubber.",
    "bookie_scrub_entries": "Entries that the scrubber read.",
    "bookie_scrub_bytes": "Bytes that the scrubber read.",
    "bookie_scrub_damaged_entries": "Damaged entries that the scrubber found.",
    "bookie_scrub_unreadable_index_ledgers": "Ledgers whose index the scrubber could not read as a whole.",
    "process_cpu_seconds_total": "Seconds of processor time of this process.",
    "process_resident_memory_bytes": "Bytes of memory of this process.",
}
_REQUESTS = {
    "ADD_ENTRY_REQUEST": "Milliseconds of adds, from their arrival to the acknowledgement.",
    "ADD_ENTRY_IN_PROGRESS": "Adds that wait for their sync.",
    "ADD_ENTRY_REJECTED": "Adds refused because too many waited.",
    "READ_ENTRY_REQUEST": "Milliseconds of reads that wait for the disk, from their queue to the reply.",
    "READ_ENTRY_IN_PROGRESS": "Reads that wait for the disk.",
    "READ_ENTRY_REJECTED": "Reads refused because too many waited.",
    "READ_ENTRY_FENCE_WAIT": "Milliseconds until a fence was durable.",
    "READ_ENTRY_FENCE_READ": "Milliseconds of reads after their fence.",
    "READ_ENTRY_LONG_POLL_WAIT": "Milliseconds that long polls waited.",
    "READ_ENTRY_LONG_POLL_READ": "Milliseconds of the reads of long polls that need the disk.",
}
_JOURNAL = {
    "JOURNAL_ADD_ENTRY": "Milliseconds of records, from their batch to the end of their group.",
    "JOURNAL_SYNC": "Milliseconds of groups, each with its write and its sync.",
    "JOURNAL_QUEUE_SIZE": "Batches that wait for a group.",
    "JOURNAL_MEMORY_USED": "Bytes that are not committed.",
    "JOURNAL_WRITE_BYTES": "Bytes of records written to a journal.",
}
_GARBAGE = {
    "ACTIVE_LEDGER_TOTAL": "Ledgers on this bookie.",
    "ACTIVE_ENTRY_LOG_TOTAL": "Entry logs.",
    "ENTRY_LOG_SPACE_BYTES": "Bytes of the entry logs.",
    "ACTIVE_ENTRY_LOG_SPACE_BYTES": "Bytes of the entry logs that belong to live ledgers.",
    "QUARANTINED_ENTRY_LOG_TOTAL": "Entry logs that are kept because they are damaged.",
    "DELETED_LEDGER_TOTAL": "Ledgers deleted by garbage collection.",
    "MAJOR_COMPACTION_TOTAL": "Major compactions.",
    "MINOR_COMPACTION_TOTAL": "Minor compactions.",
    "RECLAIMED_DELETION_SPACE_BYTES": "Bytes of deleted entry logs.",
    "RECLAIMED_COMPACTION_SPACE_BYTES": "Bytes won by compactions.",
    "RECLAIM_FAILED_TO_DELETE": "Entry logs that garbage collection could not work on.",
}
_AUDITOR = {
    "NUM_UNDER_REPLICATED_LEDGERS": "Ledgers that audits marked; the count is of audits.",
    "AUDIT_BOOKIES_TIME": "Milliseconds of audits for lost bookies.",
    "CHECK_ALL_LEDGERS_TIME": "Milliseconds of checks that read from every ledger.",
    "PLACEMENT_POLICY_CHECK_TIME": "Milliseconds of checks of the placement.",
    "REPLICAS_CHECK_TIME": "Milliseconds of checks that ask every bookie for its entries.",
    "NUM_BOOKIE_AUDITS_DELAYED": "Audits of a lost bookie that waited for the delay.",
    "NUM_DELAYED_BOOKIE_AUDITS_CANCELLED": "Such audits that ended because the bookie came back.",
    "ledgers_marked": "Ledgers marked by audits and checks.",
    "NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY": "Ledgers that are not spread as the policy says.",
    "NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD": "Ledgers marked for longer than the grace.",
    "NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY": "Ledgers with an entry that no bookie has.",
    "NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY": "Ledgers with an entry below its ack quorum.",
    "NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY": "Ledgers with an entry below its write quorum.",
}
_WORKER = {
    "rereplicate": "Milliseconds of attempts to restore a ledger.",
    "NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED": "Attempts that copied a fragment at least.",
    "NUM_ENTRIES_WRITTEN": "Entries copied to other bookies.",
    "NUM_BYTES_WRITTEN": "Bytes of entries copied to other bookies; the count is of entries.",
    "fragments_copied": "Fragments that have new bookies.",
    "ledgers_closed": "Open ledgers that were closed.",
    "copied_entries_total": "Entries copied to other bookies.",
    "copied_bytes_total": "Bytes of entries copied to other bookies.",
}
_GROUPS = {
    "bookkeeper_server_": _REQUESTS,
    "bookie_journal_": _JOURNAL,
    "bookie_gc_": _GARBAGE,
    "auditor_": _AUDITOR,
    "replication_worker_": _WORKER,
}
_HELP = _BOOKIE | {f"{scope}{name}": text for scope, texts in _GROUPS.items() for name, text in texts.items()}
_USAGE = re.compile("bookie_ledger_dir_.*_usage")


def help_of(name: str) -> str:
    """The help of a metric; empty for a name that is not in the tables."""
    if _USAGE.fullmatch(name):
        return "Percent used of the file system of a ledger directory."
    return _HELP.get(name) or _HELP.get(name.removeprefix("replication_"), "")
