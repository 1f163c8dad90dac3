"""Requests to a single bookie, and the contents of its replies.

Inside: reading one entry, or the LAC, from one bookie; the exception for a refusal.
Not inside: the choice of the bookie (``read.replica_rules``), conclusions from several replies (likewise).
Always: an entry that is returned was verified against its digest.

Source: ReadEntryProcessor.java, ReadLacProcessorV3.java for the meaning of replies; docs/protocol.md 6.
"""

from __future__ import annotations

from ledger.codes import Code
from ledger.digest import Entry, EntryCodec
from ledger.errors import BookieError, BookieRefusal
from ledger.transport.transport import Transport
from ledger.wire.messages import LAST_ENTRY, ReadLacReply, ReadLacRequest, ReadReply, ReadRequest, Reply


def refusal_of(reply: Reply, bookie: str, ledger_id: int, entry_id: int | None) -> BookieError:
    """The exception for a reply that does not bring what was requested."""
    if reply.code is Code.OK:
        return BookieError(bookie, f"sent an empty {type(reply).__name__}")
    return BookieRefusal.by_code[reply.code](bookie, ledger_id, entry_id)


def entry_of(reply: Reply, bookie: str, request: ReadRequest, codec: EntryCodec) -> Entry:
    """The verified entry in the reply to ``request``.

    Raises:
        BookieRefusal, CorruptEntryError
    """
    wanted = None if request.entry_id == LAST_ENTRY else request.entry_id
    if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
        raise refusal_of(reply, bookie, request.ledger_id, wanted)
    return codec.unpack(reply.body, request.ledger_id, wanted)


async def read_entry(
    transport: Transport, bookie: str, request: ReadRequest, codec: EntryCodec, *, high_priority: bool = False
) -> Entry:
    """Read one entry (or the last one) from one bookie; return it verified.

    Raises:
        BookieRefusal, BookieUnavailableError, BookieTimeoutError, CorruptEntryError
    """
    reply = await transport.call(bookie, request, high_priority=high_priority)
    return entry_of(reply, bookie, request, codec)


async def read_lac(transport: Transport, bookie: str, ledger_id: int, codec: EntryCodec) -> int:
    """Read the LAC of a ledger from one bookie: the greatest one that a digest covers; -1 if there is none.

    Raises:
        BookieRefusal, BookieUnavailableError, BookieTimeoutError, CorruptEntryError
    """
    return lac_of(await transport.call(bookie, ReadLacRequest(ledger_id)), bookie, ledger_id, codec)


def lac_of(reply: Reply, bookie: str, ledger_id: int, codec: EntryCodec) -> int:
    """The LAC in the reply to a ``ReadLacRequest``; see ``read_lac``.

    Raises:
        BookieRefusal, CorruptEntryError
    """
    if not isinstance(reply, ReadLacReply) or reply.code is not Code.OK:
        raise refusal_of(reply, bookie, ledger_id, None)
    lac = -1
    if reply.lac_body is not None:
        lac = codec.unpack_lac(reply.lac_body, ledger_id)
    if reply.last_entry_body is not None:
        lac = max(lac, codec.unpack(reply.last_entry_body, ledger_id, None).lac)
    return lac
