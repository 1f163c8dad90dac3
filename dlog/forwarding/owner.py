"""The owner of a shared log: its own records, those of others, and the connections by which they come.

Inside: storing records once, the answers, serving forwarders. Not inside: becoming the owner
(``shared_writer``), which records the log has (``window``), writing them (``dlog.write``).
Always: a record is given to the log's writer only if the window shows that the log lacks it; the records of a
producer are written in the order of their numbers; an answer is sent only after the record is durable, and
none once another program may have taken the log; a forwarder that does not read its answers holds up itself;
a forwarder with a proven name does only what that name may do, whatever this program may.

Source: our own; docs/shared.md, "Once".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from struct import Struct
from typing import Protocol

import attrs
import trio

from dlog.errors import (
    AccessDeniedError,
    ConfigError,
    DLogError,
    LogFencedError,
    LogMetadataError,
    LogWriteError,
    RecordOutcome,
    SequenceReusedError,
    WriteError,
    WriterClosedError,
)
from dlog.format.attributes import check_producer, decode_attributes, with_producer
from dlog.forwarding.frames import (
    Appended,
    Failed,
    ForwardedCall,
    FrameKind,
    Hello,
    Records,
    Refused,
    Request,
    Result,
    Welcome,
    decode,
    encode_appended,
    encode_bare,
    encode_failed,
    encode_refused,
    encode_result,
    encode_welcome,
    frame_bytes_max,
)
from dlog.forwarding.window import Place, ProducerWindow
from dlog.write.batcher import Batch
from dlog.write.log_writer import LogWriter, expect_last, is_over_limit, take_stamped
from dlog.write.pending import wait_settled
from dlog.write.repeats import repeat_checksum, repeat_checksums
from ledger.errors import WireError
from ledger.metadata_store.errors import MetadataError
from ledger.runtime.tasks.failure_domain import failure_domain
from ledger.wire.frame import FrameBuffer
from namespace.dlsn import DLSN, INVALID_DLSN
from namespace.policy import Right

READ_BYTES = 65_536
ANSWER_BYTES_MAX = 4 << 20  # that wait for a forwarder; then nothing more is read from it
CALLS_MAX = 256  # that one forwarder may have under way
REFUSAL_S = 5.0  # for a forwarder to take the reason why its connection ends
_SEQUENCE = Struct(">q")

Check = Callable[[str, Right], Awaitable[None]]


class OwnerGoneError(Exception):
    """This program owns the log no more, so it answers nothing: the next owner does."""


class Replies(Protocol):
    """A way for the outcome of records to the one that gave them."""

    def stored(self, first: int, ranges: list[tuple[int, int, int, int]]) -> None:
        """Those that begin with this number are durable; see ``Taken.positions``."""

    def refused(self, first: int, error: WriteError) -> None:
        """They are not written, or that is unknown."""

    def unanswered(self) -> None:
        """Only the next owner knows."""


@attrs.frozen
class Taken:
    """Records that were given to the log's writer, or are in the log already; in order."""

    known: Sequence[Place]
    ranges: Sequence[tuple[Batch, int, int]]

    @property
    def last_batch(self) -> Batch | None:
        """The batch that settles last; None if all are durable."""
        if self.ranges:
            return self.ranges[-1][0]
        for place in reversed(self.known):
            if not isinstance(place, DLSN):
                return place[0]
        return None

    def tell(self, replies: Replies, first: int) -> None:
        """Tell the outcome, once the last batch has settled."""
        error = self.error
        if error is None:
            replies.stored(first, self.positions())
        elif isinstance(error, LogFencedError | WriterClosedError):
            replies.unanswered()
        else:
            replies.refused(first, error)

    @property
    def error(self) -> WriteError | None:
        """Of the first record that is not durable, once the last batch has settled."""
        batches = [place[0] for place in self.known if not isinstance(place, DLSN)]
        batches += [batch for batch, _, _ in self.ranges]
        failed = [batch for batch in batches if batch.error is not None]
        for batch in failed:
            batch.error_was_seen = True
        return None if not failed or failed[0].error is None else failed[0].error.about(failed[0].outcome)

    def positions(self) -> list[tuple[int, int, int, int]]:
        """(segment, entry, first slot, count) of all records, which are durable."""
        found: list[tuple[int, int, int, int]] = []
        for place in self.known:
            dlsn = place if isinstance(place, DLSN) else place[0].dlsn(place[1])
            found.append((dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id, 1))
        found += [(batch.segment_seqno, batch.entry_id, slot, count) for batch, slot, count in self.ranges]
        return found


def dlsns_of(ranges: Sequence[tuple[int, int, int, int]]) -> list[DLSN]:
    """The positions in ranges of them."""
    return [
        DLSN(seqno, entry, at) for seqno, entry, slot, count in ranges for at in range(slot, slot + count)
    ]


class Owner:
    """Stores the records of all producers by the one writer that the log has."""

    def __init__(self, writer: LogWriter, window: ProducerWindow, end: DLSN, check: Check) -> None:
        """Args:
        end: Of the log, when the window was read.
        check: See ``shared_shell.Meeting.check``.
        """
        self.writer, self.window, self._end, self.check = writer, window, end, check
        self.connections: dict[ForwarderConnection, None] = {}  # in the order in which they came
        self._in_use: dict[
            str, tuple[str, ForwarderConnection | None]
        ] = {}  # instance and connection, by producer
        self.is_leaving = False
        self.repeated_records = 0  # that the log had already

    @property
    def forwarder_count(self) -> int:
        """How many programs forward to this one now."""
        return len(self.connections)

    def admit(self, producer: str, instance: str, connection: ForwarderConnection | None) -> None:
        """Let a program use a producer's name, unless another program does.

        Args:
            instance: Of the program: the same again when it connects again.
            connection: None: of this program itself.

        Raises:
            ConfigError: Another program uses the name.
        """
        used = self._in_use.get(producer)
        if used is not None and used[0] != instance:
            raise ConfigError(
                f"log {self.writer.log!r}: another program writes it as producer {producer!r}; end that"
                " program, or give this one a name of its own"
            )
        self._in_use[producer] = instance, connection

    def dismiss(self, producer: str, connection: ForwarderConnection) -> None:
        """The connection of a producer has ended."""
        if (used := self._in_use.get(producer)) is not None and used[1] is connection:
            del self._in_use[producer]

    def welcome(self, producer: str) -> Welcome:
        """What a producer gets to know first."""
        return Welcome(self.window.bounds(producer)[1], self.writer.last_txid, self._end)

    def submit(self, producer: str, floor: DLSN, records: Records, replies: Replies) -> Taken | None:
        """Write the records that the log lacks, and tell their outcome, perhaps at once.

        Returns:
            None if they were refused.

        Raises:
            OwnerGoneError: This program owns the log no more.
        """
        try:
            taken = self.take(producer, floor, records)
        except WriteError as exc:
            replies.refused(records.first, exc)
            return None
        batch = taken.last_batch
        if batch is None:
            taken.tell(replies, records.first)
        else:
            batch.on_settled(partial(taken.tell, replies, records.first))
            batch.want()
        return taken

    def take(self, producer: str, floor: DLSN, records: Records) -> Taken:
        """Write the records that the log lacks.

        Args:
            floor: Records that are sent again, and that an earlier owner stored, lie after it.

        Raises:
            OwnerGoneError: This program owns the log no more.
            WriteError: None of them was written now; the outcome says whether an earlier owner may have.
        """
        window, count = self.window, len(records.payloads)
        known = self._known(producer, records)
        if len(known) < count:
            self._check_order(producer, floor, records, len(known))
        self.repeated_records += len(known)
        if len(known) == count:
            return Taken(known, ())
        try:
            ranges = self._write(producer, records, len(known))
        except (LogFencedError, WriterClosedError) as exc:
            raise OwnerGoneError from exc
        except WriteError:
            raise
        except DLogError as exc:  # a key for encryption is missing
            raise LogWriteError(self.writer.log, str(exc), RecordOutcome.NOT_WRITTEN) from None
        at = len(known)
        for batch, slot, size in ranges:
            checksums = repeat_checksums(records.payloads, records.attributes, at, at + size)
            window.add(producer, records.first + at, (batch, slot), checksums)
            at += size
        return Taken(known, ranges)

    def _check_order(self, producer: str, floor: DLSN, records: Records, skip: int) -> None:
        """Raise unless the log lacks these records, and has no later one of their producer."""
        window, log, sequence = self.window, self.writer.log, records.first + skip
        first, last = window.bounds(producer)
        if last < 0:
            if records.is_again and floor < window.covers:
                why = f"was sent before {window.covers}, where what this owner knows begins"
                raise LogWriteError(log, f"record {sequence} of producer {producer!r} {why}")
        elif sequence <= last:
            # The numbers in the log increase, so a gap between two of them was never filled.
            outcome = RecordOutcome.NOT_WRITTEN if sequence > first else RecordOutcome.UNKNOWN
            why = f"comes after record {last}: it was refused before, or its number is too old"
            raise LogWriteError(log, f"record {sequence} of producer {producer!r} {why}", outcome)

    def _known(self, producer: str, records: Records) -> list[Place]:
        """Where the first of these records are."""
        window, places, given = self.window, list[Place](), records.attributes
        if records.first > window.bounds(producer)[1]:
            return places
        for index, payload in enumerate(records.payloads):
            sequence = records.first + index
            found = window.find(producer, sequence)
            if found is None:
                break
            place, checksum = found
            if checksum != repeat_checksum(payload, None if given is None else given[index]):
                raise SequenceReusedError(self.writer.log, producer, sequence)
            places.append(place)
        return places

    def _write(self, producer: str, records: Records, skip: int) -> list[tuple[Batch, int, int]]:
        writer, payloads, txids, given = self.writer, records.payloads, records.txids, records.attributes
        if skip:
            payloads = payloads[skip:]
            txids, given = None if txids is None else txids[skip:], None if given is None else given[skip:]
        name, sequence = check_producer(producer), records.first + skip
        if given is None:
            head = b"\2%c%b" % (len(name), name)
            pack = _SEQUENCE.pack
            stamped = [b"%b%b\0" % (head, pack(sequence + index)) for index in range(len(payloads))]
        else:
            stamped = [with_producer(each, name, sequence + index) for index, each in enumerate(given)]
        return take_stamped(writer, payloads, txids, stamped, atomic=records.is_atomic)

    async def perform(self, request: Request, floor: DLSN, *, is_again: bool) -> list[DLSN]:
        """Make a call of a writer; return the positions that it returns.

        Raises:
            OwnerGoneError: Another owner has to do it.
            DLogError: From the call.
        """
        try:
            return await self._perform(request, floor, is_again)
        except (LogFencedError, WriterClosedError) as exc:
            raise OwnerGoneError from exc

    async def _perform(self, request: Request, floor: DLSN, is_again: bool) -> list[DLSN]:
        writer = self.writer
        match request.call:
            case ForwardedCall.APPEND_AFTER:
                assert request.records is not None  # ``frames`` checks it
                records = attrs.evolve(request.records, is_again=is_again)
                if not self._known(request.producer, records):
                    self._check_order(request.producer, floor, records, 0)
                    await expect_last(writer, request.position)  # no other task runs until it is taken
                taken = self.take(request.producer, floor, records)
                return dlsns_of(await self.settled(taken))
            case ForwardedCall.APPEND_ONCE:
                assert request.records is not None  # likewise
                records = request.records
                given = None if records.attributes is None else records.attributes[0]
                key, headers = (None, ()) if given is None else decode_attributes(given)[:2]
                txid = -1 if records.txids is None else records.txids[0]
                return [
                    await writer.append_once(records.payloads[0], txid=txid, key=key, headers=dict(headers))
                ]
            case ForwardedCall.OUTCOME:
                found = await writer.outcome(request.txid)
                return [] if found is None else [found]
            case ForwardedCall.FLUSH:
                await writer.flush()
                return []
            case ForwardedCall.TRUNCATE:
                assert request.position is not None  # likewise
                left = await writer.truncate(request.position)
                return [] if left is None else [left]
            case ForwardedCall.SEAL:
                await writer.seal()
                return []

    async def settled(self, taken: Taken) -> list[tuple[int, int, int, int]]:
        """The positions of taken records once all are durable.

        Raises: as ``perform``.
        """
        if (batch := taken.last_batch) is not None:
            await wait_settled(batch)
        if (failed := taken.error) is not None:
            raise failed
        return taken.positions()

    async def leave(self) -> None:
        """Answer what was taken, say goodbye to all forwarders, and end their connections."""
        self.is_leaving = True
        async with trio.open_nursery() as nursery:
            for connection in list(self.connections):
                nursery.start_soon(connection.leave)

    async def serve(self, stream: trio.abc.Stream, name: str | None) -> None:
        """Serve one forwarder until it goes. ``name``: that it has proven; None: it need not."""
        connection = ForwarderConnection(self, stream, name)
        self.connections[connection] = None
        try:
            with failure_domain("a forwarder of a shared writer"):
                await connection.run()
        finally:
            del self.connections[connection]
            self.dismiss(connection.producer, connection)
            await trio.aclose_forcefully(stream)


class OwnLink:
    """The way of the owner's own records; ``forward_machine.Link``."""

    def __init__(
        self,
        owner: Owner,
        producer: str,
        floor: DLSN,
        answered: Callable[[OwnLink, int, Sequence[DLSN]], None],
        refused: Callable[[OwnLink, int, WriteError], None],
    ) -> None:
        self.owner, self._producer, self._floor = owner, producer, floor
        self._answered, self._refused = answered, refused

    def send(self, records: Records) -> None:
        """See ``forward_machine.Link``."""
        try:
            self.owner.submit(self._producer, self._floor, records, self)
        except OwnerGoneError:
            pass  # the writer has stopped, and the shell sees it

    def stored(self, first: int, ranges: list[tuple[int, int, int, int]]) -> None:
        """See ``Replies``."""
        self._answered(self, first, dlsns_of(ranges))

    def refused(self, first: int, error: WriteError) -> None:
        """See ``Replies``."""
        self._refused(self, first, error)

    def unanswered(self) -> None:
        """See ``Replies``: the record is sent again."""


class ForwarderConnection:
    """One forwarder, as the owner sees it."""

    def __init__(self, owner: Owner, stream: trio.abc.Stream, name: str | None) -> None:
        self._owner, self._stream, self._name = owner, stream, name
        self.producer, self._floor = "", INVALID_DLSN
        self._answers: list[bytes] = []
        self._answer_bytes = 0
        self._in_flight = 0  # records and calls without an answer
        self._changed = trio.Event()
        self._is_over = self._is_leaving = False

    def __repr__(self) -> str:
        return f"<ForwarderConnection of producer {self.producer!r}, {self._in_flight} requests in flight>"

    async def run(self) -> None:
        """Read frames and answer them until the forwarder goes, or the owner leaves."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                await self._receive(nursery)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OwnerGoneError):
            pass  # the forwarder is gone, or looks for the next owner

    async def leave(self) -> None:
        """Read nothing more, send the answers of all that was taken, then LEAVING."""
        self._is_leaving = True
        self._change()
        while self._in_flight and not self._is_over:
            await self._changed.wait()
        self._answer(encode_bare(FrameKind.LEAVING))
        while self._answer_bytes and not self._is_over:
            await self._changed.wait()
        await trio.aclose_forcefully(self._stream)

    async def _receive(self, nursery: trio.Nursery) -> None:
        buffer = FrameBuffer(frame_bytes_max(self._owner.writer.payload_bytes_max))
        try:
            while True:
                chunk = await self._stream.receive_some(READ_BYTES)
                if not chunk:
                    return
                data, payloads = buffer.feed(bytes(chunk))
                for start, stop in payloads:
                    while self._is_leaving or self._answer_bytes > ANSWER_BYTES_MAX:
                        await self._changed.wait()
                    await self._handle(data[start:stop], nursery)
        except WireError as exc:
            if self.producer:  # such as too long a record: without a word the forwarder would send it again
                self._answer(
                    encode_refused(Refused(-1, ConfigError(f"log {self._owner.writer.log!r}: {exc}")))
                )
                with trio.move_on_after(REFUSAL_S):
                    while self._answer_bytes:
                        await self._changed.wait()
            raise
        finally:
            self._is_over = True
            self._change()

    async def _handle(self, data: bytes, nursery: trio.Nursery) -> None:
        frame = decode(data)
        if not self.producer and not isinstance(frame, Hello):
            raise WireError("the first frame of a forwarder is HELLO")
        match frame:
            case Records():
                await self._append(frame)
            case Request():
                if self._in_flight > CALLS_MAX:
                    raise WireError(f"a forwarder has more than {CALLS_MAX} calls under way")
                self._in_flight += 1
                nursery.start_soon(self._call, frame)
            case Hello() if not self.producer:
                try:
                    await self._check(Right.WRITE)
                    self._owner.admit(frame.producer, frame.instance, self)
                except (AccessDeniedError, LogMetadataError, ConfigError) as exc:
                    self._answer(encode_refused(Refused(-1, exc)))
                    return
                self.producer, self._floor = frame.producer, frame.floor
                self._answer(encode_welcome(self._owner.welcome(frame.producer)))
            case FrameKind.PING:
                self._answer(encode_bare(FrameKind.PONG))
            case _:
                raise WireError(f"a forwarder sent {frame!r}")

    async def _check(self, right: Right) -> None:
        if self._name is not None:
            try:
                await self._owner.check(self._name, right)
            except MetadataError as exc:  # nothing is known of its rights: it tries again
                raise OwnerGoneError from exc

    async def _append(self, records: Records) -> None:
        writer = self._owner.writer
        try:
            if is_over_limit(writer):
                await writer.wait_capacity()
        except (LogFencedError, WriterClosedError) as exc:
            raise OwnerGoneError from exc
        except WriteError as exc:
            self._answer(encode_refused(Refused(records.first, exc)))
            return
        self._in_flight += 1
        self._owner.submit(self.producer, self._floor, records, self)

    def stored(self, first: int, ranges: list[tuple[int, int, int, int]]) -> None:
        """See ``Replies``."""
        self._in_flight -= 1
        self._answer(encode_appended(Appended(first, self._owner.writer.last_txid, ranges)))

    def refused(self, first: int, error: WriteError) -> None:
        """See ``Replies``."""
        self._in_flight -= 1
        self._answer(encode_refused(Refused(first, error)))

    def unanswered(self) -> None:
        """See ``Replies``."""
        self._in_flight -= 1
        self._change()

    async def _call(self, request: Request) -> None:
        try:
            if request.call in (ForwardedCall.TRUNCATE, ForwardedCall.SEAL):
                await self._check(Right.ADMIN)
            again = request.records is not None and request.records.is_again
            dlsns = await self._owner.perform(request, self._floor, is_again=again)
            self._answer(encode_result(Result(request.number, dlsns)))
        except DLogError as exc:
            self._answer(encode_failed(Failed(request.number, exc)))
        finally:
            self._in_flight -= 1
            self._change()

    def _answer(self, frame: bytes) -> None:
        self._answers.append(frame)
        self._answer_bytes += len(frame)
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _send(self) -> None:
        while True:
            while not self._answers:
                await self._changed.wait()
            data = b"".join(self._answers)
            self._answers.clear()
            await self._stream.send_all(data)
            self._answer_bytes -= len(data)
            self._change()
