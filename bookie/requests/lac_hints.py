"""LAC packets that clients send: which are well formed, and hints, which are kept in memory only.

A writer whose last entries are confirmed tells the bookies so by a hint. Readers then need not wait for the
next entry. A hint costs no journal write and gets no reply. It stays true for good, since only a
confirmed entry is hinted; a bookie that forgets it learns the LAC from the next entry.

Inside: the checks of a packet and of a hint. Not inside: explicit LACs, which are stored (``service``).
Always: a hint creates no ledger, needs the ledger's key, and changes neither a fenced ledger nor one in
limbo; it only raises the LAC. Readers verify the packet's digest themselves.

Source: our own; docs/protocol.md 5.12, 9.6.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from bookie.journal.format import LAC_PACKET_BYTES_MAX
from ledger.wire.messages import WriteLacRequest

if TYPE_CHECKING:
    from bookie.storage.storage import Storage

_IDS = Struct(">qq")  # the start of each LAC packet: ledger id, LAC


def is_well_formed(request: WriteLacRequest) -> bool:
    """True if the packet has the size of one and is of the ledger that the request names."""
    if not _IDS.size <= len(request.body) <= LAC_PACKET_BYTES_MAX:
        return False
    ledger_id, _ = _IDS.unpack_from(request.body)
    return bool(ledger_id == request.ledger_id and ledger_id >= 0)


def take_hint(storage: Storage, request: WriteLacRequest) -> bool:
    """Raise the LAC of the ledger by a well-formed hint; False if nothing changed."""
    ledger = storage.ledger(request.ledger_id)
    if ledger is None or ledger.master_key != request.master_key or ledger.fenced or ledger.limbo:
        return False
    return storage.hint_lac(ledger, request.body)
