"""The names of a namespace's counters, gauges and histograms, with what each means.

Inside: the tables; docs/observability.md shows them. Not inside: those of ledgers
(``ledger.runtime.statistics.names``).

Source: DistributedLog, BKLogSegmentWriter.java, AbstractLogWriter: ``log_writer``. A name with this prefix is
Apache's and means the same there.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledger.runtime.statistics import Recorder, Statistics, names

APPEND = "log_writer_write"
APPEND_MANY = "log_writer_bulk_write"
FLUSH = "dlog_flush"
LOCK = "dlog_lock_acquire"
RECEIVE = "dlog_receive"
RECOVER = "dlog_recover"
ROLL = "dlog_segment_roll"

BYTES_FETCHED = "dlog_entry_bytes_fetched"
BYTES_SENT = "dlog_entry_bytes_sent"
CAPACITY_WAITS = "dlog_capacity_waits"
DEGRADED_SEGMENTS = "dlog_degraded_segments"
ENTRIES_FETCHED = "dlog_entries_fetched"
ENTRIES_SENT = "dlog_entries_sent"
FLUSHES = "dlog_flushes"
FORWARDERS = "dlog_forwarders"
LOCKS_LOST = "dlog_locks_lost"
OWNERSHIPS = "dlog_ownerships"
READERS_OPENED = "dlog_readers_opened"
RECORDS_FORWARDED = "dlog_records_forwarded"
RECORDS_READ = "dlog_records_read"
RECORDS_REPEATED = "dlog_records_repeated"
RECORDS_SENT = "dlog_records_sent"
SEGMENTS_BEGUN = "dlog_segments_begun"
SEGMENTS_COMPLETED = "dlog_segments_completed"
SEGMENTS_DEGRADED = "dlog_segments_degraded"
SEGMENTS_FAILED = "dlog_segments_failed"
SEGMENTS_ROLLED = "dlog_segments_rolled"
WAITING_BYTES = "dlog_bytes_in_flight"
WINDOW_RECORDS = "dlog_window_records"
WRITERS_OPENED = "dlog_writers_opened"

COUNTERS: Mapping[str, str] = {
    BYTES_FETCHED: "bytes of entries that readers fetched",
    BYTES_SENT: "bytes of entries that writers sent, after compression",
    CAPACITY_WAITS: "times that `wait_capacity`, or a call that contains it, had to wait",
    ENTRIES_FETCHED: "entries that readers fetched, control records included",
    ENTRIES_SENT: "entries that writers sent, control records included",
    FLUSHES: "calls of `flush`",
    LOCKS_LOST: "writers that stopped because they lost the log's lock",
    OWNERSHIPS: "times that a shared writer became the owner of its log",
    READERS_OPENED: "readers opened",
    RECORDS_FORWARDED: "records that shared writers sent to owners in other programs, repeats included",
    RECORDS_READ: "records decoded by readers",
    RECORDS_REPEATED: "records that an owner got and that the log had already",
    RECORDS_SENT: "records that writers sent; again those that a failed ledger did not keep",
    SEGMENTS_BEGUN: "segments that writers began",
    SEGMENTS_COMPLETED: "segments completed, by their writer or by a recovery",
    SEGMENTS_DEGRADED: "segments that began on fewer bookies than asked",
    SEGMENTS_FAILED: "segments whose ledger failed under a writer",
    SEGMENTS_ROLLED: "segments that the next one took over from: their size, age, or a full ensemble",
    WRITERS_OPENED: "writers opened; also those that were opened again by `reopen`",
}
GAUGES: Mapping[str, str] = {
    DEGRADED_SEGMENTS: "segments in use on fewer bookies than asked",
    FORWARDERS: "programs that forward to owners in this one",
    WAITING_BYTES: "bytes of records that are submitted and not durable",
    WINDOW_RECORDS: "records in which owners in this program look for repeats",
}
TIMINGS: Mapping[str, str] = {
    APPEND: "one `append`, from the call to the position",
    APPEND_MANY: "one `append_many`, from the call to the positions",
    FLUSH: "one `flush`",
    LOCK: "acquiring a log's lock",
    RECEIVE: "one batch of records, or one wait of an iteration, from the call to the records",
    RECOVER: "completing what earlier writers left, when a writer is opened",
    ROLL: "a roll, from the last record of a segment to the first of the next",
}


def statistics_of(recorder: Recorder) -> Statistics:
    """What the recorder of a namespace's ledger client has, with the names of ledgers and of logs."""
    return recorder.statistics(
        {**names.COUNTERS, **COUNTERS}, {**names.GAUGES, **GAUGES}, {**names.TIMINGS, **TIMINGS}
    )
