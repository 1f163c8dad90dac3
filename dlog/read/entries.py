"""Opening a segment's ledger, and reading a whole range of its entries.

Inside: the choice of the password, the repeated read, and the number of entries that a backward scan for the
last record reads at once.
Not inside: the records in the entries (``segment_reader``).
"""

from __future__ import annotations

from ledger.client import LedgerClient
from ledger.errors import AccessDeniedError
from ledger.handle import ReadHandle

SCAN_ENTRIES_FIRST, SCAN_ENTRIES_MAX = 2, 16  # windows of the backward scan for the last record


async def read_entries(handle: ReadHandle, first: int, last: int) -> list[bytes]:
    """All entries from first to last, both included, with as many reads as necessary."""
    entries: list[bytes] = []
    while first + len(entries) <= last:
        entries += await handle.read_payloads(first + len(entries), last)
    return entries


async def open_segment_ledger(
    client: LedgerClient, ledger_id: int, password: bytes | None, *, recover: bool
) -> ReadHandle:
    """Open a ledger of a log with the password in its metadata.

    The configured password is for ledgers of the oldest metadata format, which stores none.

    Raises: what ``LedgerClient.open`` raises.
    """
    if password:
        try:
            return await client.open(ledger_id, password=password, recover=recover)
        except AccessDeniedError:
            pass  # the log has ledgers of several passwords: one was configured later, or random ones were
    return await client.open(ledger_id, password=None, recover=recover)
