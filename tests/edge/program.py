"""A program of the matrix: ``python -m tests.edge.program FACE ENDING MOMENT URI``.

It writes ``FIRST`` records to the log ``orders``, comes into the moment, and ends. Lines on stdout:
"submitted N" and "acknowledged N" count the records so far; "ledger N" is the ledger that a program of
``ledger.blocking`` writes its entries to; "now" is the moment; "ending" is said just before the program
begins to end, unless it is in ``GO_ON``; "refused" is of a forked child.
Always: records are numbers from 0 on. From "now" on a sync of the disk waits until stdin is closed, in
moments that have to do with the disk. So what the parent waits for before that comes in the moment, on a busy
machine too.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    suppress,
)
from typing import Any, NoReturn, Protocol

import trio
from trio.testing import wait_all_tasks_blocked

import dlog
import dlog.aio
import dlog.blocking
import ledger
import ledger.blocking
from bookie.disk.disk import Buffer
from bookie.disk.real_disk import RealFile
from ledger.runtime.tasks.forks import RULE

FIRST = 5  # acknowledged before the moment
BURST = 20  # submitted in the moments that have to do with writing
LIMIT_S = 120
SIGNALS = ("interrupt", "terminate", "handled")
GO_ON = (*SIGNALS, "shutdown", "abandoned")  # nothing in the program begins the end after "now"
ERRORS = (dlog.DLogError, ledger.LedgerError)
STAYS = (*SIGNALS, "daemon")  # what ends it comes from outside of the thread that is in the moment

in_moment, syncs_wait, is_over = threading.Event(), threading.Event(), threading.Event()
left_open: list[object] = []  # globals, as those of a script or a notebook


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def announce() -> None:
    if not in_moment.is_set():
        say("now")
        in_moment.set()


def hold_syncs(then: Callable[[], None]) -> None:
    """Let each sync of the disk wait for the end of stdin. The first one calls ``then`` before."""
    write = RealFile.write_durably

    def held(file: RealFile, data: Buffer, offset: int) -> None:
        then()
        while os.read(0, 1):
            pass
        write(file, data, offset)

    RealFile.write_durably = held  # type: ignore[assignment]


def payload_of(number: int) -> bytes:
    return b"%d" % number


def end(ending: str, log: Any, end_child: Callable[[], None]) -> None:
    """End the program from inside; return if its main function is to return."""
    say("ending")
    match ending:
        case "exception":
            raise RuntimeError("the program fails")
        case "exit":
            sys.exit(3)
        case "os._exit":
            os._exit(3)
        case "fork":
            if (child := os.fork()) == 0:
                try:
                    if log is not None:
                        log.submit(b"by the child")
                        say("taken")
                except Exception as exc:
                    say("refused" if isinstance(exc, ERRORS) and RULE in str(exc) else repr(exc))
                end_child()
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0


class AsyncFace(Protocol):
    """What differs between trio and asyncio."""

    def open_namespace(self, uri: str, /) -> AbstractAsyncContextManager[Any]: ...

    async def in_thread(self, wait: Callable[[], object], /) -> object:
        """Run a function that waits, without holding the loop."""

    def run(self, main: Callable[[], Awaitable[None]]) -> None: ...

    def beside(self, operation: Callable[[], Awaitable[None]]) -> AbstractAsyncContextManager[None]:
        """Run a task for the duration of a block, and cancel it then."""

    def cancel(self) -> None:
        """Cancel the main function."""

    async def wait_for_ever(self) -> None: ...

    def announce_soon(self) -> None:
        """Announce the moment, in which the call is that the caller makes next."""


class OnTrio:
    open_namespace = staticmethod(dlog.open_namespace)
    in_thread = staticmethod(trio.to_thread.run_sync)

    def __init__(self, ending: str) -> None:
        self._is_handled, self._scope = ending == "handled", trio.CancelScope()

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def cancellable() -> None:
            with self._scope:
                await main()

        async def handled() -> None:
            with trio.open_signal_receiver(signal.SIGTERM) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancellable)
                    async for _ in signals:
                        self._scope.cancel()
                        return

        trio.run(handled if self._is_handled else cancellable)

    @asynccontextmanager
    async def beside(self, operation: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(operation)
                yield
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # of this nursery, which most programs do not have
            raise group.exceptions[0] from None

    def cancel(self) -> None:
        self._scope.cancel()

    async def wait_for_ever(self) -> None:
        await trio.sleep_forever()

    def announce_soon(self) -> None:
        async def once_all_wait() -> None:
            # trio raises a KeyboardInterrupt in the task that runs, also in one of the namespace. That
            # ends the program likewise, but not with the same text.
            await wait_all_tasks_blocked()
            announce()

        trio.lowlevel.spawn_system_task(once_all_wait)


class OnAsyncio:
    open_namespace = staticmethod(dlog.aio.open_namespace)

    def __init__(self, ending: str) -> None:
        self._ending = ending
        self._task: asyncio.Task[None] | None = None

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def handled() -> None:
            self._task = asyncio.ensure_future(main())
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._task.cancel)
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()

        async def plain() -> None:
            await main()

        if self._ending == "abandoned":
            loop = asyncio.new_event_loop()
            left_open.append(loop)
            loop.run_until_complete(main())
        elif self._ending in ("handled", "cancellation"):
            asyncio.run(handled())
        else:
            asyncio.run(plain())

    @asynccontextmanager
    async def beside(self, operation: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        task = asyncio.ensure_future(operation())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def in_thread(self, wait: Callable[[], object]) -> None:
        # Not ``asyncio.to_thread``, which Python refuses in handlers of ``atexit``.
        loop, waited = asyncio.get_running_loop(), asyncio.Event()
        threading.Thread(target=lambda: (wait(), loop.call_soon_threadsafe(waited.set)), daemon=True).start()
        await waited.wait()

    def cancel(self) -> None:
        assert self._task is not None  # it runs
        self._task.cancel()

    async def wait_for_ever(self) -> None:
        await asyncio.Event().wait()

    def announce_soon(self) -> None:
        announce()


class AsyncProgram:
    """The program on an event loop."""

    def __init__(self, face: AsyncFace, ending: str, moment: str, uri: str) -> None:
        self._face, self._ending, self._moment, self._uri = face, ending, moment, uri
        self._is_closed = threading.Event()
        self._namespace: Any = None
        self._log: Any = None

    async def main(self) -> None:
        async with (
            self._face.open_namespace(self._uri) as namespace,
            namespace.open_writer("orders", create=True) as log,
        ):
            for number in range(FIRST):
                await log.append(payload_of(number))
            say("acknowledged", FIRST)
            if self._moment != "opening":
                self._namespace, self._log = namespace, log
                await self._in_moment()
        if self._moment == "opening":
            await self._in_moment()

    async def main_left_open(self) -> None:
        """As a cell of a notebook that opens things for the cells to come."""
        stack = AsyncExitStack()
        left_open.append(stack)
        self._namespace = await stack.enter_async_context(self._face.open_namespace(self._uri))
        self._log = await stack.enter_async_context(self._namespace.open_writer("orders", create=True))
        for number in range(FIRST):
            await self._log.append(payload_of(number))
        say("acknowledged", FIRST)
        if self._moment == "appending":
            self._submit()
        elif self._moment == "reading":
            reader = await stack.enter_async_context(self._namespace.open_reader("orders"))
            await anext(reader)
        announce()

    async def _in_moment(self) -> None:
        operation = getattr(self, f"_{self._moment}")
        if self._ending in (*STAYS, "shutdown"):
            await operation()
            if self._ending in STAYS:
                await self._face.wait_for_ever()
            return
        async with self._face.beside(operation):
            await self._face.in_thread(in_moment.wait)
            if self._ending == "cancellation":
                say("ending")
                self._face.cancel()
                await self._face.wait_for_ever()
            end(self._ending, self._log, lambda: os._exit(0))
            if self._moment == "closing":
                await self._face.in_thread(self._is_closed.wait)

    def _announce(self) -> None:
        """Announce a moment that has to do with the next call."""
        if self._ending == "shutdown":
            announce()  # that call may be the last one
        else:
            self._face.announce_soon()

    async def _opening(self) -> None:
        hold_syncs(announce)
        async with self._face.open_namespace(self._uri) as namespace:
            await namespace.list_logs()

    async def _waiting(self) -> None:
        self._announce()
        async with self._namespace.open_writer("orders", lock_timeout_s=LIMIT_S):
            pass

    async def _idle(self) -> None:
        self._announce()
        if self._ending != "shutdown":
            await self._face.wait_for_ever()

    def _submit(self) -> list[Any]:
        pending = [self._log.submit(payload_of(number)) for number in range(FIRST, FIRST + BURST)]
        say("submitted", FIRST + BURST)
        return pending

    async def _appending(self) -> None:
        hold_syncs(announce)
        for number, pending in enumerate(self._submit(), FIRST + 1):
            await pending
            say("acknowledged", number)
        number = FIRST + BURST
        while self._ending != "shutdown":
            await self._log.append(payload_of(number))
            number += 1
            say("acknowledged", number)

    async def _reading(self) -> None:
        async with self._namespace.open_reader("orders") as reader:
            for _ in range(FIRST):
                await anext(reader)
            self._announce()
            if self._ending != "shutdown":
                await anext(reader)

    async def _closing(self) -> None:
        hold_syncs(syncs_wait.set)
        self._submit()
        await self._face.in_thread(syncs_wait.wait)
        self._announce()
        await self._log.aclose()
        self._is_closed.set()


class BlockingProgram:
    """The program without ``async``."""

    def __init__(self, ending: str, moment: str, uri: str) -> None:
        self._ending, self._moment, self._uri = ending, moment, uri
        self._namespace: Any = None
        self._log: Any = None
        self._futures: list[Future[Any]] = []

    def main(self) -> None:
        with ExitStack() as stack:
            self._open(stack)
            if self._moment != "opening":
                self._in_moment()
        if self._moment == "opening":
            self._namespace = self._log = None
            self._in_moment()

    def main_left_open(self) -> None:
        """As a script that closes nothing; its ``atexit`` handler does what the moment says."""
        stack = ExitStack()
        left_open.append(stack)
        self._open(stack)
        if self._moment == "opening":
            stack.close()
        atexit.register(getattr(self, f"_{self._moment}"))

    def _open(self, stack: ExitStack) -> None:
        self._namespace = stack.enter_context(dlog.blocking.open_namespace(self._uri))
        self._log = stack.enter_context(self._namespace.open_writer("orders", create=True))
        for number in range(FIRST):
            self._log.append(payload_of(number))
        say("acknowledged", FIRST)

    def _in_moment(self) -> None:
        operation = getattr(self, f"_{self._moment}")
        if self._ending in STAYS:
            operation()
            while True:
                signal.pause()

        def quietly() -> None:
            try:
                operation()
            except ERRORS:
                assert is_over.is_set()  # what it uses was closed

        threading.Thread(target=quietly).start()
        in_moment.wait()
        is_over.set()
        if self._ending == "cancellation":
            for future in self._futures:
                future.cancel()
        end(self._ending, self._log, lambda: sys.exit(0))

    def _opening(self) -> None:
        hold_syncs(announce)
        with dlog.blocking.open_namespace(self._uri) as namespace:
            namespace.list_logs()

    def _waiting(self) -> None:
        announce()
        with self._namespace.open_writer("orders", lock_timeout_s=LIMIT_S):
            pass

    def _idle(self) -> None:
        announce()

    def _submit(self) -> None:
        self._futures += [self._log.submit(payload_of(number)) for number in range(FIRST, FIRST + BURST)]
        say("submitted", FIRST + BURST)

    def _appending(self) -> None:
        hold_syncs(syncs_wait.set)
        self._submit()
        syncs_wait.wait()
        announce()  # not in a sync: that may come before all are submitted
        for number, future in enumerate(list(self._futures), FIRST + 1):
            with suppress(CancelledError):
                future.result()
                say("acknowledged", number)
        number = FIRST + BURST
        while not is_over.is_set() and self._ending != "shutdown":
            self._log.append(payload_of(number))
            number += 1
            say("acknowledged", number)

    def _reading(self) -> None:
        with self._namespace.open_reader("orders") as reader:
            for _ in range(FIRST):
                next(reader)
            announce()
            if self._ending != "shutdown":
                next(reader)

    def _closing(self) -> None:
        hold_syncs(syncs_wait.set)
        self._submit()
        syncs_wait.wait()
        announce()
        self._log.close()


class LedgerProgram(BlockingProgram):
    """The same with the entries of a ledger."""

    def _open(self, stack: ExitStack) -> None:
        client = self._namespace = stack.enter_context(ledger.blocking.open_client(self._uri))
        created = client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        self._log = stack.enter_context(created)
        say("ledger", created.ledger_id)
        for number in range(FIRST):
            self._log.append(payload_of(number))
        say("acknowledged", FIRST)

    def _opening(self) -> None:
        hold_syncs(announce)
        with ledger.blocking.open_client(self._uri) as client:
            client.create(ensemble_size=1, write_quorum=1, ack_quorum=1).close()

    def _reading(self) -> None:
        with self._namespace.open(self._log.ledger_id, recover=False) as reader:
            reader.read(0, FIRST - 2)  # bookies learn that an entry is confirmed with the next one
            announce()
            if self._ending != "shutdown":
                reader.wait_last_confirmed_beyond(FIRST - 1, timeout_s=LIMIT_S)


def program_of(face: str, ending: str, moment: str, uri: str) -> Callable[[], None]:
    if face in ("blocking", "ledgers"):
        program = (BlockingProgram if face == "blocking" else LedgerProgram)(ending, moment, uri)
        return program.main_left_open if ending == "shutdown" else program.main
    loop: AsyncFace = OnTrio(ending) if face == "trio" else OnAsyncio(ending)
    on_loop = AsyncProgram(loop, ending, moment, uri)
    return lambda: loop.run(on_loop.main_left_open if ending == "abandoned" else on_loop.main)


def main(face: str, ending: str, moment: str, uri: str) -> None:
    program = program_of(face, ending, moment, uri)
    is_blocking = face in ("blocking", "ledgers")
    if is_blocking and ending == "handled":

        def stop(*_: object) -> NoReturn:
            sys.exit(0)

        signal.signal(signal.SIGTERM, stop)
    if ending == "daemon":

        def quietly() -> None:
            try:
                program()
            except ERRORS:
                assert is_over.is_set()  # the end of Python has closed what it uses

        threading.Thread(target=quietly, daemon=True).start()
        in_moment.wait()
        is_over.set()
        say("ending")
    elif ending == "shutdown" and not is_blocking:
        atexit.register(program)
    else:
        program()


if __name__ == "__main__":
    main(*sys.argv[1:])
