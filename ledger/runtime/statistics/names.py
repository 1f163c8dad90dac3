"""The names of a ledger client's counters, gauges and histograms, with what each means.

Inside: the tables; docs/observability.md shows them. Not inside: those of logs (``dlog.statistics_names``).

Source: BookKeeperClientStats.java. A name with the prefix of its scope is Apache's and means the same there.
"""

from __future__ import annotations

from collections.abc import Mapping

_APACHE = "bookkeeper_client_"

ADD_ENTRY = _APACHE + "ADD_ENTRY"
DIGEST_MISMATCHES = _APACHE + "READ_ENTRY_DM"
ENSEMBLE_CHANGES = _APACHE + "NUM_ENSEMBLE_CHANGE"
LAC_WAIT = _APACHE + "READ_LAST_CONFIRMED_AND_ENTRY"
LEDGER_CREATE = _APACHE + "LEDGER_CREATE"
LEDGER_DELETE = _APACHE + "LEDGER_DELETE"
LEDGER_OPEN = _APACHE + "LEDGER_OPEN"
LEDGER_RECOVER = _APACHE + "LEDGER_RECOVER"
PENDING_ADDS = _APACHE + "NUM_PENDING_ADD"
READ_ENTRY = _APACHE + "READ_ENTRY"
SPECULATIVE_READS = _APACHE + "SPECULATIVE_READ_COUNT"

BYTES_SUBMITTED = "ledger_bytes_submitted"
CAPACITY_WAITS = "ledger_capacity_waits"
CONNECTIONS_FAILED = "ledger_connections_failed"
CONNECTIONS_LOST = "ledger_connections_lost"
CONNECTIONS_OPEN = "ledger_connections_open"
CONNECTIONS_STARTED = "ledger_connections_started"
ENSEMBLE_CHANGE = "ledger_ensemble_change"
ENTRIES_CONFIRMED = "ledger_entries_confirmed"
ENTRIES_READ = "ledger_entries_read"
ENTRIES_SUBMITTED = "ledger_entries_submitted"
LAC_WAITS = "ledger_lac_waits"
LEDGERS_CREATED = "ledger_created"
LEDGERS_DELETED = "ledger_deleted"
LEDGERS_OPENED = "ledger_opened"
LEDGERS_RECOVERED = "ledger_recovered"
READS = "ledger_reads"
REQUEST_TIMEOUTS = "ledger_request_timeouts"
WRITERS_OPEN = "ledger_writers_open"

COUNTERS: Mapping[str, str] = {
    DIGEST_MISMATCHES: "replies whose bytes were not those of the entry; the next replica was tried",
    ENSEMBLE_CHANGES: "changes of an ensemble that the metadata store took",
    SPECULATIVE_READS: "reads sent to one more replica because a reply was slow",
    BYTES_SUBMITTED: "payload bytes of entries submitted",
    CAPACITY_WAITS: "times that a caller had to wait because the entries in flight were at their limit",
    CONNECTIONS_FAILED: "connections that ended before they could be used",
    CONNECTIONS_LOST: "connections to bookies that ended, those that failed and those closed included",
    CONNECTIONS_STARTED: "connections to bookies begun",
    ENTRIES_CONFIRMED: "entries confirmed by an ack quorum",
    ENTRIES_READ: "entries read and verified",
    ENTRIES_SUBMITTED: "entries submitted",
    LAC_WAITS: "waits for a ledger to grow, at its end",
    LEDGERS_CREATED: "ledgers created",
    LEDGERS_DELETED: "ledgers deleted",
    LEDGERS_OPENED: "ledgers opened for reading",
    LEDGERS_RECOVERED: "ledgers fenced and closed by a recovery",
    READS: "batches of entries read",
    REQUEST_TIMEOUTS: "requests without a reply in time; adds of writers have a limit of their own",
}
GAUGES: Mapping[str, str] = {
    PENDING_ADDS: "entries that are submitted and not confirmed",
    CONNECTIONS_OPEN: "connections to bookies now",
    WRITERS_OPEN: "ledgers being written",
}
TIMINGS: Mapping[str, str] = {
    ADD_ENTRY: "an entry, from its sending to its confirmation",
    LAC_WAIT: "a wait for a ledger to grow",
    LEDGER_CREATE: "creating a ledger",
    LEDGER_DELETE: "deleting a ledger",
    LEDGER_OPEN: "opening a ledger, its recovery included",
    LEDGER_RECOVER: "a recovery",
    READ_ENTRY: "reading a batch of entries",
    ENSEMBLE_CHANGE: "writing a changed ensemble to the metadata store",
}
