"""Which reply a long poll gets.

Inside: whether it must wait, its reply from memory, its reply after a read from disk. Not inside: waiting
(``long_polls``), ordinary reads (``reads``).
Always: nothing here writes; no entry of a ledger in limbo is denied.

Source: BookKeeper, LongPollReadEntryProcessorV3.java; docs/protocol.md 9.4.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import attrs

from bookie.errors import EntryUnreadableError, LimboError, NoEntryError, NoLedgerError
from bookie.ledger_record import LedgerRecord, lac_of_entry, lac_of_packet
from bookie.requests.deferred import WokenPoll
from bookie.requests.replies import refusal
from bookie.requests.session import ClientSession
from ledger.codes import Code
from ledger.wire.messages import LAST_ENTRY, IncomingRequest, ReadReply, ReadRequest, Reply

if TYPE_CHECKING:
    from bookie.storage.storage import Storage

GUESS_BYTES = 65_536  # reserved for a reply of unknown size


class ReplySpace(Protocol):
    """The space that replies may take until the peer has read them. ``ReplyQueue`` implements it."""

    @property
    def free_bytes(self) -> int: ...
    async def wait_capacity(self) -> None: ...
    def reserve(self, size_bytes: int) -> None: ...
    def release(self, size_bytes: int) -> None: ...


def known_ledger(storage: Storage, ledger_id: int) -> LedgerRecord:
    """The record of a ledger. Raises ``NoLedgerError``."""
    ledger = storage.ledger(ledger_id)
    if ledger is None:
        raise NoLedgerError(ledger_id)
    return ledger


@attrs.frozen
class PollReplies:
    """The replies to the long polls of one connection. On the loop.

    Args:
        read: Reads an entry for an ordinary read, from the disk if need be.
        park: Lets a long poll wait for a greater LAC.
    """

    storage: Storage
    session: ClientSession
    space: ReplySpace
    read: Callable[[ReadRequest], Awaitable[ReadReply]]
    park: Callable[[IncomingRequest, ReadRequest], None]

    async def reply_or_park(self, incoming: IncomingRequest, request: ReadRequest) -> Reply | None:
        """Reply to a long poll, or let it wait: then there is no reply yet."""
        if request.piggyback_entry and request.entry_id != LAST_ENTRY:
            return refusal(incoming, Code.BAD_REQUEST)
        assert request.previous_lac is not None  # ``is_long_poll`` takes no other
        ledger = known_ledger(self.storage, request.ledger_id)
        if ledger.limbo and await self._lac(ledger) <= request.previous_lac:
            raise LimboError(ledger.ledger_id)  # the entry that carried a greater LAC may be lost here
        if (
            request.timeout_ms is not None
            and await self._lac(ledger) <= request.previous_lac
            # The ledger may have changed while the LAC was read; then this step sees it.
            and known_ledger(self.storage, request.ledger_id).lac <= request.previous_lac
        ):
            self.park(incoming, request)
            return None
        return await self.answer(request, None)

    async def answer(self, request: ReadRequest, updated_ms: int | None) -> Reply:
        """The reply now, whatever the LAC is, also from the disk.

        Args:
            updated_ms: When the ledger changed; None: it did not.

        Raises:
            NoLedgerError, NoEntryError, LimboError, EntryUnreadableError
        """
        assert request.previous_lac is not None  # ``is_long_poll`` takes no other
        ledger = known_ledger(self.storage, request.ledger_id)
        if not request.piggyback_entry:
            last_id = ledger.last_entry_id if request.entry_id == LAST_ENTRY else request.entry_id
            reply = attrs.evolve(await self.read(request), lac_update_ms=updated_ms)
            return (
                attrs.evolve(reply, lac_body=_packet_beyond(ledger, last_id, reply.body))
                if request.wants_lac
                else reply
            )
        lac = await self._lac(ledger)
        if ledger.last_entry_id < 0 and ledger.explicit_lac is None:
            raise NoEntryError(ledger.ledger_id, LAST_ENTRY)
        if lac > request.previous_lac:
            try:
                body = await self.storage.read(request.ledger_id, request.previous_lac + 1)
            except NoEntryError:
                pass  # other bookies have the entry: reply with the LAC alone
            else:
                return _with_entry(request, body, lac, updated_ms)
        return ReadReply(Code.OK, request.ledger_id, LAST_ENTRY, None, max_lac=lac, lac_update_ms=updated_ms)

    def is_due(self, request: ReadRequest) -> bool | None:
        """True if a long poll gets its reply now, False if it must wait, None if the disk decides."""
        assert request.previous_lac is not None  # ``is_long_poll`` takes no other
        ledger = self.storage.ledger(request.ledger_id)
        if ledger is None or (request.piggyback_entry and request.entry_id != LAST_ENTRY):
            return True
        if ledger.limbo or _is_lac_on_disk(ledger):
            return None
        return ledger.lac > request.previous_lac

    def lac_to_wait_beyond(self, request: ReadRequest) -> int | None:
        """The LAC in memory, if a long poll of several replies can continue after one that says it."""
        if request.piggyback_entry or request.entry_id != LAST_ENTRY:
            return None  # their replies depend on the LAC that the request names
        ledger = self.storage.ledger(request.ledger_id)
        if ledger is None or ledger.limbo or ledger.fenced or _is_lac_on_disk(ledger):
            return None
        return ledger.lac

    def reply_now(self, poll: WokenPoll) -> int | None:
        """Reply to a long poll from memory; return the size of the entry in it.

        Returns:
            None: It got no reply, because the disk must be read or the peer does not read its replies.
        """
        request = poll.request
        assert request.previous_lac is not None  # ``is_long_poll`` takes no other
        ledger = self.storage.ledger(request.ledger_id)
        reply: Reply
        if request.piggyback_entry and request.entry_id != LAST_ENTRY:
            reply = refusal(poll.incoming, Code.BAD_REQUEST)
        elif ledger is None:
            reply = refusal(poll.incoming, Code.NO_LEDGER)
        elif not request.piggyback_entry:
            return self._reply_last(poll, request, ledger)
        elif (
            _is_lac_on_disk(ledger)
            or (ledger.last_entry_id < 0 and ledger.explicit_lac is None)
            or self.space.free_bytes < GUESS_BYTES
        ):
            return None
        elif ledger.lac > request.previous_lac:
            body = self.storage.read_cached(request.ledger_id, request.previous_lac + 1)
            if body is None:
                return None
            reply = _with_entry(request, body, ledger.lac, poll.updated_ms)
            self.session.reply(poll.incoming, reply)
            return len(body)
        else:
            reply = ReadReply(
                Code.OK,
                request.ledger_id,
                LAST_ENTRY,
                None,
                max_lac=ledger.lac,
                lac_update_ms=poll.updated_ms,
            )
        self.session.reply(poll.incoming, reply)
        return 0

    def _reply_last(self, poll: WokenPoll, request: ReadRequest, ledger: LedgerRecord) -> int | None:
        """Reply to a long poll with the last entry, if it is in memory."""
        if request.entry_id != LAST_ENTRY or ledger.limbo or self.space.free_bytes < GUESS_BYTES:
            return None
        body = self.storage.read_cached(request.ledger_id, ledger.last_entry_id)
        if body is None:
            return None
        packet = _packet_beyond(ledger, ledger.last_entry_id, body) if request.wants_lac else None
        reply = ReadReply(
            Code.OK,
            request.ledger_id,
            LAST_ENTRY,
            body,
            ledger.lac,
            poll.updated_ms,
            packet,
            poll.more_follow,
        )
        self.session.reply(poll.incoming, reply)
        return len(body)

    async def _lac(self, ledger: LedgerRecord) -> int:
        """The greatest stored LAC, also if no add has come since the start.

        Java then waits although the stored LAC is greater.
        """
        if not _is_lac_on_disk(ledger):
            return ledger.lac
        lac = ledger.lac
        try:
            body = await self.storage.read(ledger.ledger_id, ledger.last_entry_id)
        except (NoEntryError, EntryUnreadableError):
            pass  # use the LAC in memory
        else:
            lac = lac_of_entry(ledger.last_entry_id, body)
        if ledger.explicit_lac is not None:
            lac = max(lac, lac_of_packet(ledger.explicit_lac))
        return max(lac, ledger.lac)


def _is_lac_on_disk(ledger: LedgerRecord) -> bool:
    """True if no add has come since the start, so that only the last entry has the LAC."""
    return ledger.lac < 0 and ledger.last_entry_id >= 0


def _packet_beyond(ledger: LedgerRecord, entry_id: int, entry: bytes | None) -> bytes | None:
    """The ledger's LAC packet, if its LAC is greater than that in the entry."""
    packet = ledger.explicit_lac
    if packet is None or entry is None or lac_of_packet(packet) <= lac_of_entry(entry_id, entry):
        return None
    return packet


def _with_entry(request: ReadRequest, body: bytes, lac: int, updated_ms: int | None) -> ReadReply:
    assert request.previous_lac is not None  # ``is_long_poll`` takes no other
    return ReadReply(
        Code.OK, request.ledger_id, request.previous_lac + 1, body, max_lac=lac, lac_update_ms=updated_ms
    )
