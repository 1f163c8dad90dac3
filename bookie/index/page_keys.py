"""The keys of the ordered map beside page files, with the data that their layout does not have.

key    ``c``, ledger i64, page i64   value  CRC32C u32: the page is durable, with these bytes
key    ``i``, ledger i64, page i64   value  empty: the page is being overwritten
key    ``d``, ledger i64             value  empty: the ledger was deleted, its file must be deleted
key    ``l``, ledger i64             value  ``LedgerData``, authoritative; headers repeat a part of it
key    ``e``, ...                    chunks of entries whose ids are too great for a file (``chunk_index``)
key    ``p``                         value  page size in bytes, as text: the index is complete

Inside: the structs of keys and values. Not inside: when they are written (``page_index``).
Always: keys of one kind sort by ledger, then by page.
"""

from __future__ import annotations

from struct import Struct

PAGE_KEY = Struct(">cqq")
LEDGER_KEY = Struct(">cq")
CRC = Struct(">I")
NUMBER_MAX = 2**63 - 1


def page_keys(kind: bytes, ledger_id: int) -> tuple[bytes, bytes]:
    """The first key of a ledger's pages, and a key after the last one."""
    return PAGE_KEY.pack(kind, ledger_id, 0), PAGE_KEY.pack(kind, ledger_id, NUMBER_MAX)
