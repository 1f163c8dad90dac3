"""What a shared writer does for its machine: it finds the owner of the log, forwards to it, or becomes it.

Inside: the task of one writer, the connection to an owner, calls that are made again. Not inside: what is
sent when (``forward_machine``), what an owner does (``owner``), where programs meet (``meeting``), taking
records (``shared_writer``).
Always: at most one link takes records at a time; a record that waits for an owner fails after
``WriterConfig.retry_timeout_s``; an error that may pass ends no writer.

Source: our own; docs/shared.md, "States".
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs
import trio

from dlog.config import WriterConfig
from dlog.encryption import PayloadOpener
from dlog.errors import (
    DiskFullError,
    DLogError,
    EndOfStreamError,
    LogFencedError,
    LogLockedError,
    LogUnavailableError,
    LogWriteError,
    NamespaceLostError,
    RecordOutcome,
    WriteError,
    WriterClosedError,
    as_dlog_error,
)
from dlog.forwarding.forward_machine import ForwardEvent, ForwardMachine, ForwardPhase
from dlog.forwarding.frames import (
    Appended,
    Failed,
    FrameKind,
    Hello,
    Records,
    Refused,
    Request,
    Result,
    Welcome,
    decode,
    encode_bare,
    encode_hello,
    encode_records,
    encode_request,
    frame_bytes_max,
)
from dlog.forwarding.owner import READ_BYTES, Owner, OwnerGoneError, OwnLink, dlsns_of
from dlog.forwarding.window_reading import read_window
from dlog.read.read_only_log import ReadOnlyLog
from dlog.statistics_names import (
    FORWARDERS,
    OWNERSHIPS,
    RECORDS_FORWARDED,
    RECORDS_REPEATED,
    WAITING_BYTES,
    WINDOW_RECORDS,
)
from dlog.write.log_writer import LogWriter, wait_stopped
from ledger.errors import LedgerError, WireError
from ledger.metadata_store.errors import MetadataError
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.wire.frame import FrameBuffer
from namespace.dlsn import DLSN, INVALID_DLSN
from namespace.policy import Right

SEEK_S = 0.02  # the first pause between two looks for an owner; it doubles up to SEEK_S_MAX
SEEK_S_MAX = 0.5
PING_S = 2.0  # an owner that was silent this long is asked for a sign
SILENT_S_MAX = 10.0  # an owner that was silent this long although it was asked is left

logger = get_logger(__name__)


class NoMeetingError(Exception):
    """This program and an owner do not accept each other, or it cannot be one; ``problem`` says why.

    It ends a writer that is being opened. Later another owner may come, or the configuration may be mended.
    """

    def __init__(self, problem: DLogError) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Meeting(Protocol):
    """Where the programs that share a log find each other; see ``meeting``."""

    async def check_door(self) -> None:
        """Raise if this program could not take the records of others, were it the owner.

        Raises:
            NoMeetingError: Its configuration has to be mended first.
        """

    async def address(self, changed: trio.Event) -> str | None:
        """See ``meeting.DirectoryMeeting``."""

    def connected(self, address: str) -> AbstractAsyncContextManager[trio.abc.Stream | None]:
        """See ``meeting.DirectoryMeeting``."""

    def opened(
        self, serve: Callable[[trio.abc.Stream, str | None], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        """See ``meeting.DirectoryMeeting``."""

    async def check(self, name: str, right: Right) -> None:
        """Return if the program that has proven this name has the right on the log.

        Raises:
            AccessDeniedError: It has not.
            LogMetadataError: The policy does not parse, so it allows nothing.
            ledger.metadata_store.errors.MetadataError: The store failed.
        """


@attrs.frozen
class SharedLog:
    """A log and what a shared writer needs of its namespace.

    Args:
        open_owner: Takes the log's lock without waiting, recovers, and yields the log's one writer.
        opener: Decrypts its records; None: they are not encrypted.
        producer: The name that its records carry.
        check_admin: Awaited before sealing; it may raise.
        check_truncation: Awaited before each truncation; it may raise.
        may_own: False: it never becomes the owner.
    """

    log: ReadOnlyLog
    config: WriterConfig
    meeting: Meeting
    open_owner: Callable[[], AbstractAsyncContextManager[LogWriter]]
    opener: Callable[[], Awaitable[PayloadOpener | None]]
    is_store_away: Callable[[DLogError], bool]
    producer: str
    check_admin: Callable[[], Awaitable[object]]
    check_truncation: Callable[[], Awaitable[object]]
    may_own: bool = True


class _LinkLostError(Exception):
    """The owner went away during a call."""


class _RemoteLink:
    """A connection to an owner."""

    def __init__(self, stream: trio.abc.Stream, floor: DLSN) -> None:
        self._stream, self.floor = stream, floor
        self._frames: list[bytes] = []
        self._changed = trio.Event()
        self._calls: dict[int, tuple[trio.Event, list[Result | Failed]]] = {}
        self._next_call = 0
        self.heard_s = trio.current_time()
        self.is_lost = False
        self.sent_records = 0

    def send(self, records: Records) -> None:
        """See ``forward_machine.Link``."""
        self.sent_records += len(records.payloads)
        self._put(encode_records(records))

    async def call(self, request: Request) -> list[DLSN]:
        """Make a call at the owner.

        Raises:
            _LinkLostError: The owner may have done it.
            DLogError: From the call.
        """
        number, self._next_call = self._next_call, self._next_call + 1
        done, answer = self._calls[number] = trio.Event(), []
        self._put(encode_request(attrs.evolve(request, number=number)))
        try:
            await done.wait()
        finally:
            self._calls.pop(number, None)
        if not answer:
            raise _LinkLostError
        (found,) = answer
        if isinstance(found, Failed):
            raise found.error
        return list(found.dlsns)

    def settle(self, found: Result | Failed) -> None:
        """Give a call its answer."""
        if (waiting := self._calls.get(found.number)) is not None:
            waiting[1].append(found)
            waiting[0].set()

    def lost(self) -> None:
        """Wake all calls: no answer comes."""
        self.is_lost = True
        for done, _ in self._calls.values():
            done.set()

    def ping(self) -> None:
        """Ask for a sign."""
        self._put(encode_bare(FrameKind.PING))

    def _put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._changed.set()

    async def send_all(self) -> None:
        """Send frames until it is cancelled, or the connection ends."""
        while True:
            while not self._frames:
                self._changed = trio.Event()
                await self._changed.wait()
            data = b"".join(self._frames)
            self._frames.clear()
            await self._stream.send_all(data)


class SharedShell:
    """Finds the owner of one log, or becomes it, as long as the writer is open."""

    def __init__(self, shared: SharedLog) -> None:
        self.shared, self.log = shared, shared.log.name
        config = shared.config
        clock = trio.lowlevel.current_clock().current_time
        bytes_max = config.bytes_in_flight_max
        self.machine = ForwardMachine(self.log, bytes_max, clock=clock, on_change=self._change)
        self.owner: Owner | None = None  # while this program owns the log
        self._remote: _RemoteLink | None = None
        self._changed = trio.Event()
        self._problem: DLogError | None = None  # the last one that kept this writer from an owner
        self._call_floors: list[DLSN] = []  # the records of each call under way lie after its own
        self._refusal: DLogError | None = None  # why the owner does not take this writer's records
        self._was_attached = self._is_ended = False
        self.is_sealed = False  # the log is
        self._forwarded_records = self._repeated_records = self._ownerships = 0  # on links of before
        self._instance = secrets.token_hex(16)
        self._pause_s = SEEK_S
        self._payload_bytes_max = config.record_bytes_max

    def describe(self) -> str:
        """The state, for ``repr``."""
        return f"{self.machine.phase.name.lower()}, {self.machine.waiting_bytes} bytes waiting"

    def counters(self) -> dict[str, int]:
        """What this writer has done so far, by the names of its statistics."""
        forwarded = 0 if self._remote is None else self._remote.sent_records
        repeated = 0 if self.owner is None else self.owner.repeated_records
        return {
            RECORDS_FORWARDED: self._forwarded_records + forwarded,
            RECORDS_REPEATED: self._repeated_records + repeated,
            OWNERSHIPS: self._ownerships,
        }

    def gauges(self) -> dict[str, int]:
        """How this writer is now, by the names of its statistics."""
        if self.owner is not None:  # its own records count at the log's writer
            return {FORWARDERS: self.owner.forwarder_count, WINDOW_RECORDS: len(self.owner.window)}
        return {WAITING_BYTES: self.machine.waiting_bytes}

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_changed(self) -> None:
        """Return when the phase, what is in flight, or ``stopped`` has changed."""
        await self._changed.wait()

    async def wait_attached(self, timeout_s: float) -> None:
        """Return when there is an owner for the first time.

        Raises:
            DLogError: Why there is none.
        """
        with trio.move_on_after(timeout_s):
            while not self._was_attached and self.machine.stopped is None:
                await self._changed.wait()
        if self.machine.stopped is not None:
            raise self._problem or self.machine.stopped
        if not self._was_attached:
            raise self._problem or LogUnavailableError(
                f"log {self.log!r}: no program that shares its writer answered for {timeout_s:g} s; try again"
            )

    async def call(self, request: Request) -> list[DLSN]:
        """Make a call at the owner, whoever that is; again if it goes away meanwhile.

        Raises:
            DLogError: From the call.
            LogWriteError: There is no owner for longer than ``WriterConfig.retry_timeout_s``.
        """
        floor = self.machine.known_end
        self._call_floors.append(floor)
        try:
            return await self._call(request, floor)
        finally:
            self._call_floors.remove(floor)

    async def _call(self, request: Request, floor: DLSN) -> list[DLSN]:
        machine, is_again = self.machine, False
        until_s = trio.current_time() + self.shared.config.retry_timeout_s
        while True:
            try:
                if self.owner is not None and machine.link is not None:
                    return await self.owner.perform(request, floor, is_again=is_again)
                if self._remote is not None and machine.link is not None:
                    return await self._remote.call(request)
            except (OwnerGoneError, _LinkLostError):
                is_again = True
                if request.records is not None:
                    request = attrs.evolve(request, records=attrs.evolve(request.records, is_again=True))
            if machine.stopped is not None or self._is_ended:
                stopped = machine.stopped or WriterClosedError(self.log)
                raise stopped.about(RecordOutcome.UNKNOWN if is_again else RecordOutcome.NOT_WRITTEN)
            with trio.move_on_at(until_s) as scope:
                while machine.link is None and machine.stopped is None and not self._is_ended:
                    await self._changed.wait()
                await trio.lowlevel.checkpoint()
            if scope.cancelled_caught:
                outcome = RecordOutcome.UNKNOWN if is_again else RecordOutcome.NOT_WRITTEN
                raise LogWriteError(self.log, self._why_alone(), outcome)

    def _why_alone(self) -> str:
        why = "" if self._problem is None else f": {self._problem}"
        return f"no program has owned it for {self.shared.config.retry_timeout_s:g} s{why}"

    # The task.

    async def run(self) -> None:
        """Look for the owner, forward to it or be it, until the writer is closed."""
        machine = self.machine
        try:
            while not self._is_over():
                await self._turn()
        except WriteError as exc:
            machine.stop(exc)
        except Exception as exc:
            if not isinstance(exc, DLogError):
                report_contained("the shared writer of a log", exc)
            self._problem = exc if isinstance(exc, DLogError) else self._problem
            stopped: WriteError = LogWriteError(self.log, str(exc), RecordOutcome.NOT_WRITTEN)
            if isinstance(exc, EndOfStreamError):
                stopped, self.is_sealed = self._sealed(), True
            stopped.__cause__ = exc
            machine.stop(stopped)
        finally:
            if machine.phase is not ForwardPhase.CLOSED:
                machine.stop(WriterClosedError(self.log))
            self._is_ended = True
            self._change()

    def _sealed(self) -> WriterClosedError:
        return WriterClosedError(self.log, "it is sealed", "write to another log")

    def _is_over(self) -> bool:
        machine = self.machine
        if machine.stopped is not None:
            return True
        if machine.is_closing and machine.is_idle:
            machine.end()
            return True
        return False

    async def _turn(self) -> None:
        machine, changed = self.machine, trio.Event()
        try:
            address = await self.shared.meeting.address(changed)
            if address is not None and await self._forward(address):
                return
            if self.shared.may_own and await self._own():
                return
            if not self.shared.may_own and address is None:
                self._problem = LogUnavailableError(
                    f"log {self.log!r}: no program owns its writer, and this one may not"
                    " (owner_address=none); start dlog proxy"
                )
            if address is not None:
                self._problem = LogUnavailableError(
                    f"log {self.log!r}: the program that owns its writer does not answer at"
                    f" {address.partition('#')[0]}"
                )
        except (MetadataError, LedgerError) as exc:
            self._note(as_dlog_error(exc, self.log, "looking for the owner of its writer"))
        except (LogUnavailableError, DiskFullError, LogFencedError, LogWriteError) as exc:
            self._note(exc)
        except NoMeetingError as exc:
            if not self._was_attached:
                raise exc.problem from None
            self._note(exc.problem)
        if machine.phase is ForwardPhase.TAKING_OVER:
            machine.follow(ForwardEvent.YIELD)
        elif machine.phase is ForwardPhase.OWNER_LOST:
            machine.follow(ForwardEvent.SEEK)
        waited_s = trio.current_time() - machine.lost_s
        if waited_s > self.shared.config.retry_timeout_s and not machine.is_idle:
            machine.expire(self._why_alone())
        # ``changed`` is set when another program has become the owner, or the lock may be free.
        with trio.move_on_after(self._pause_s):
            await changed.wait()
        self._pause_s = min(2 * self._pause_s, SEEK_S_MAX)

    def _note(self, problem: DLogError) -> None:
        """Keep an error that may pass; raise any other."""
        if isinstance(problem, NamespaceLostError) and not self.shared.is_store_away(problem):
            raise problem
        self._problem = problem

    def _attached(self, link: _RemoteLink | OwnLink, how: ForwardEvent) -> None:
        self._was_attached, self._problem, self._pause_s = True, None, SEEK_S
        self.machine.attached(link, how)

    # Forwarding.

    async def _forward(self, address: str) -> bool:
        """Forward to the owner as long as it is there; False if it is not."""
        machine = self.machine
        async with self.shared.meeting.connected(address) as stream:
            if stream is None:
                return False
            link = _RemoteLink(stream, min([machine.floor, *self._call_floors]))
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._receive, link, stream)
                    nursery.start_soon(link.send_all)
                    nursery.start_soon(self._listen_for_silence, link)
                    nursery.start_soon(self._watch_owner, address)
                    hello = Hello(self.shared.producer, self._instance, link.floor)
                    await stream.send_all(encode_hello(hello))
                    while not (machine.is_closing and machine.is_idle) and machine.stopped is None:
                        await self._changed.wait()
                    nursery.cancel_scope.cancel()
            except* (trio.BrokenResourceError, trio.ClosedResourceError, _LinkLostError):
                pass
            finally:
                self._remote = None
                self._forwarded_records += link.sent_records
                link.lost()
                machine.lost(link)
        if self._refusal is not None:
            raise self._refusal
        if machine.phase is ForwardPhase.OWNER_LOST:
            machine.follow(ForwardEvent.SEEK)
            return True
        return self._is_over()

    async def _receive(self, link: _RemoteLink, stream: trio.abc.Stream) -> None:
        machine = self.machine
        buffer = FrameBuffer(frame_bytes_max(self._payload_bytes_max))
        while chunk := await stream.receive_some(READ_BYTES):
            link.heard_s = trio.current_time()
            try:
                data, payloads = buffer.feed(bytes(chunk))
                frames = [decode(data[start:stop]) for start, stop in payloads]
            except WireError as exc:
                self._problem = LogUnavailableError(f"log {self.log!r}: {exc}")
                raise _LinkLostError from exc
            for frame in frames:
                match frame:
                    case Appended():
                        machine.last_txid = max(machine.last_txid, frame.last_txid)
                        machine.answered(link, frame.first, dlsns_of(frame.ranges))
                    case Refused(first=-1):
                        self._refusal = frame.error
                        raise _LinkLostError
                    case Refused():
                        machine.refused(link, frame.first, self._as_write_error(frame.error))
                    case Result() | Failed():
                        link.settle(frame)
                    case Welcome():
                        self._welcomed(link, frame)
                    case FrameKind.LEAVING:
                        raise _LinkLostError
                    case _:
                        pass
        raise _LinkLostError

    def _welcomed(self, link: _RemoteLink, welcome: Welcome) -> None:
        machine = self.machine
        if machine.link is not None:
            return
        machine.last_txid = max(machine.last_txid, welcome.last_txid)
        machine.known_end = max(machine.known_end, welcome.end)
        if machine.is_idle:
            machine.next_sequence = max(machine.next_sequence, welcome.last_sequence + 1)
        self._remote = link
        self._attached(link, ForwardEvent.WELCOME)

    def _as_write_error(self, error: DLogError) -> WriteError:
        if isinstance(error, WriteError):
            return error
        return LogWriteError(self.log, str(error), RecordOutcome.UNKNOWN)

    async def _listen_for_silence(self, link: _RemoteLink) -> None:
        while True:
            await trio.sleep(PING_S)
            silent_s = trio.current_time() - link.heard_s
            if silent_s > SILENT_S_MAX:
                self._problem = LogUnavailableError(
                    f"log {self.log!r}: the program that owns its writer has not answered for {silent_s:.0f}"
                    " s; end that program"
                )
                raise _LinkLostError
            if silent_s >= PING_S:
                link.ping()

    async def _watch_owner(self, address: str) -> None:
        """Leave an owner whose session is over, also if it stands still and its connection shows nothing."""
        while True:
            changed = trio.Event()
            try:
                if await self.shared.meeting.address(changed) != address:
                    raise _LinkLostError
            except MetadataError:  # what is known of this owner stays true until the store says otherwise
                await trio.sleep(SEEK_S_MAX)
                continue
            await changed.wait()

    # Owning.

    async def _own(self) -> bool:
        """Own the log as long as that goes; False if another program has its lock."""
        machine = self.machine
        machine.follow(ForwardEvent.TRY)
        try:
            async with self.shared.open_owner() as writer:
                await self._own_with(writer)
        except LogLockedError as exc:
            if machine.phase is not ForwardPhase.TAKING_OVER:
                raise
            self._problem = exc
            return False
        if machine.phase is ForwardPhase.TAKING_OVER:
            machine.follow(ForwardEvent.YIELD)
        elif machine.phase is ForwardPhase.OWNER_LOST:
            machine.follow(ForwardEvent.SEEK)
        return True

    async def _own_with(self, writer: LogWriter) -> None:
        machine, shared = self.machine, self.shared
        window = await read_window(shared.log, await shared.opener())
        end = await shared.log.last_dlsn() or INVALID_DLSN
        owner = Owner(writer, window, end, shared.meeting.check)
        owner.admit(shared.producer, self._instance, None)
        async with shared.meeting.opened(owner.serve):
            welcome, floor = owner.welcome(shared.producer), machine.floor
            machine.last_txid = max(machine.last_txid, welcome.last_txid)
            if machine.is_idle:
                machine.next_sequence = max(machine.next_sequence, welcome.last_sequence + 1)
            machine.known_end = max(machine.known_end, end)
            link = OwnLink(owner, shared.producer, floor, machine.answered, machine.refused)
            extra = event("shared.owned", log=self.log, producer=shared.producer)
            logger.info("log %s: this program owns its shared writer", self.log, extra=extra)
            self.owner = owner
            self._ownerships += 1
            try:
                self._attached(link, ForwardEvent.WIN)
                stopped = await self._wait_end_of(writer)
                if stopped is None and machine.phase is ForwardPhase.OWNING and machine.stopped is None:
                    machine.follow(ForwardEvent.LEAVE)
                    await owner.leave()
                    machine.end()
            finally:
                self.owner = None
                self._repeated_records += owner.repeated_records
                if machine.phase is not ForwardPhase.CLOSED:
                    machine.lost(link)
        if stopped is not None and not isinstance(stopped, LogFencedError | LogWriteError):
            raise stopped

    async def _wait_end_of(self, writer: LogWriter) -> WriteError | None:
        """Return why the log's writer has stopped; None once this one is closed and has nothing in flight."""
        found: list[WriteError] = []
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                stopped = await wait_stopped(writer)
                self.is_sealed = stopped is None
                found.append(stopped or self._sealed())
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            machine = self.machine
            while not (machine.is_closing and machine.is_idle) and machine.stopped is None:
                await self._changed.wait()
            nursery.cancel_scope.cancel()
        return found[0] if found else None

    async def aclose(self) -> None:
        """Write what was taken, then end; see ``LogWriter.aclose``."""
        machine = self.machine
        machine.close()
        with trio.move_on_after(self.shared.config.close_timeout_s) as scope:
            while not self._is_ended:
                await self._changed.wait()
        if scope.cancelled_caught:
            machine.stop(WriterClosedError(self.log, "it was closed before all was written"))
        for group in machine.failed:
            if not group.error_was_seen:
                group.raise_error()
