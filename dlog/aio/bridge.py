"""A trio run as the guest of an asyncio loop, in the loop's thread.

Inside: calls from asyncio tasks into trio, their cancellation, context managers that stay open there.
Not inside: the functions that are called.
Always: a cancelled call has ended in trio before its asyncio task continues; the guest run ends before the
last block that needs it, and at the latest when the loop closes its asynchronous generators, as
``asyncio.run`` makes it do, or when the loop is closed.

Trio waits for sockets in a thread of its own, but only while nothing is ready. If no thread can be started,
the loop looks at the sockets from time to time. Functions of trio that do not wait may be called from the
loop at any time, since both run in one thread.

Source: trio's guest mode (``trio.lowlevel.start_guest_run``).
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
import weakref
from asyncio import get_running_loop
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from types import FrameType
from typing import Any, Generic, TypeVar

import outcome
import trio

from dlog.errors import DLogError, NamespaceClosedError
from ledger.runtime.green_threads import refuse_green_threads
from ledger.runtime.log_lines import lines_handed_over
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.forks import RULE

PASSES_CALLS_ON = True  # for ``shorten``
LOOK_S = 0.01  # between two looks at the sockets while no thread can wait for them

T = TypeVar("T")

_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = weakref.WeakKeyDictionary()


class Bridge:
    """The guest run beside one asyncio loop. It lives from the first ``acquire`` to the last ``release``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._holders = 0
        self._turn = asyncio.Lock()  # of starting and ending
        self._nursery: trio.Nursery | None = None
        self._ended: asyncio.Future[None] = loop.create_future()
        self._pid = os.getpid()
        self._with_loop: AsyncGenerator[None, None] | None = None  # see ``_end_with_loop``
        self._dropped: set[asyncio.Task[None]] = set()  # that close what was dropped
        self.held: dict[Held[Any], None] = {}  # in the order of opening

    @property
    def is_forked(self) -> bool:
        """True in a child of the process whose loop this is."""
        return self._pid != os.getpid()

    def drop_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have the loop do some work, from any thread and without waiting; not if the loop is closed."""

        def start() -> None:
            task = self._loop.create_task(work())
            self._dropped.add(task)
            task.add_done_callback(self._dropped.discard)

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(start)

    @staticmethod
    async def acquire() -> Bridge:
        """The bridge of the running loop; its guest run is started, unless it runs. It needs a ``release``.

        A cancelled call leaves nothing that runs.

        Raises:
            RuntimeError: gevent or eventlet has replaced threads, or no thread can be started.
        """
        refuse_green_threads()
        loop = get_running_loop()
        bridge = _bridges.get(loop)
        if bridge is None:
            bridge = _bridges[loop] = Bridge(loop)
        await bridge.hold()
        return bridge

    async def hold(self) -> None:
        """For ``acquire``."""
        self._holders += 1
        try:
            async with self._turn:
                if self._nursery is None:
                    await self._start()
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        """End the guest run after the last one."""
        await unbroken(self._release())

    async def run(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run an asynchronous function of trio; return its result, or raise its error.

        If the asyncio task is cancelled, the function is cancelled, and has ended when this returns. If it
        had just ended then, its result is lost; a function whose result must not be lost keeps it elsewhere.

        Raises:
            NamespaceClosedError: The guest run has ended.
        """
        try:
            nursery = self._checked_nursery()
        except Exception:
            if not self.is_forked:  # the loop is a copy there, with the tasks of the parent
                await asyncio.sleep(0)  # or a caller that tries again and again would keep the loop
            raise
        future: asyncio.Future[T] = self._loop.create_future()
        scope = trio.CancelScope()

        async def task() -> None:
            try:
                with scope:
                    result = await function(*args, **kwargs)
            except Exception as exc:
                future.set_exception(exc)
            except BaseException:
                future.set_exception(_closed())
                raise
            else:
                if scope.cancelled_caught:
                    future.cancel()
                else:
                    future.set_result(result)

        nursery.start_soon(task)
        await _wait(future, scope.cancel)
        return future.result()

    def start_soon(self, function: Callable[[], Awaitable[None]]) -> None:
        """Start a task of trio."""
        self._checked_nursery().start_soon(function)

    def check_caller(self) -> None:
        """Check the caller of a call that needs no task of trio.

        Raises:
            NamespaceClosedError: This is a forked child.
            RuntimeError: The caller is in another loop, or in another thread.
        """
        try:
            if get_running_loop() is self._loop:
                return
        except RuntimeError:  # a thread without a loop, or a forked child
            pass
        if self.is_forked:
            raise NamespaceClosedError(RULE)
        raise RuntimeError(
            "the namespace belongs to another asyncio loop or thread; open one in each loop, and call it from"
            " a thread by asyncio.run_coroutine_threadsafe"
        )

    def _checked_nursery(self) -> trio.Nursery:
        self.check_caller()
        if self._nursery is None:
            raise _closed()
        return self._nursery

    async def _start(self) -> None:
        # If no thread can be started, that is raised here, before anything has begun.
        trio.lowlevel.start_thread_soon(_nothing, lambda _: None)
        started: asyncio.Future[None] = self._loop.create_future()
        ended: asyncio.Future[None] = self._loop.create_future()

        async def main() -> None:
            with lines_handed_over():  # a thread that waits for the loop may hold the lock of a log handler
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
                    self._nursery = nursery
                    started.set_result(None)

        def done(result: Any) -> None:
            self._nursery = None
            give_back_interrupts()
            give_back_close()
            try:
                result.unwrap()
            except BaseException as exc:
                ended.set_exception(exc)
            else:
                ended.set_result(None)

        if self._with_loop is None:
            self._with_loop = self._end_with_loop()
            await anext(self._with_loop)  # now the loop knows it
        give_back_interrupts = _take_interrupts(self._loop)
        give_back_close = _end_before_close(self._loop, self._with_loop)
        steps = _Steps(self._loop)
        trio.lowlevel.start_guest_run(
            main,
            run_sync_soon_threadsafe=steps.soon_threadsafe,
            run_sync_soon_not_threadsafe=steps.soon,
            done_callback=done,
            host_uses_signal_set_wakeup_fd=True,
        )
        self._ended = ended
        await unbroken(started)

    async def _release(self) -> None:
        async with self._turn:
            self._holders -= 1
            if self._holders:
                return
            await self._end()
            if not self._holders:  # nobody has come in the wait
                # Or the loop, which the bridge refers to, would never be freed.
                _bridges.pop(self._loop, None)
        if not self._holders and self._with_loop is not None:
            with_loop, self._with_loop = self._with_loop, None
            await with_loop.aclose()

    async def _end(self) -> None:
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
            await self._ended

    async def _end_with_loop(self) -> AsyncGenerator[None, None]:
        """Closed by the loop when the program has ended: close what it left open, the newest first."""
        try:
            yield
        finally:
            if self._with_loop is not None:  # else ``_release`` closes it
                self._with_loop = None
                await self._close_with_loop()

    async def _close_with_loop(self) -> None:
        for each in reversed(list(self.held)):
            await each.close_alone()
        while self._dropped:
            await asyncio.wait(self._dropped)
        async with self._turn:
            await self._end()
            _bridges.pop(self._loop, None)


class _Steps:
    """Makes the steps of a guest run in the loop, also while no thread can be started.

    Trio starts a thread at the end of a step, to wait for sockets. If that fails, the run would never make
    another step, and no error would be raised in it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Trio's object for the guest run. Not kept here: it is freed with the steps of a loop that is closed.
        self._guest: Callable[[], Any] = lambda: None

    def soon(self, step: Callable[[], object]) -> None:
        if self._guest() is None and (guest := getattr(step, "__self__", None)) is not None:
            self._guest = weakref.ref(guest)
        self._loop.call_soon(self._make, step)

    def soon_threadsafe(self, step: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(self._make, step)

    def _make(self, step: Callable[[], object]) -> None:
        try:
            step()
        except RuntimeError:
            guest = self._guest()
            if guest is None or guest.runner.guest_tick_scheduled:
                raise  # it was not the start of a thread
            self._loop.call_later(LOOK_S, self._make, functools.partial(self._look, guest))

    def _look(self, guest: Any) -> None:
        """Make the step that the thread would have asked for."""
        guest.unrolled_run_next_send = outcome.capture(guest.runner.io_manager.get_events, 0)
        guest.runner.guest_tick_scheduled = True
        guest.guest_tick()


def _nothing() -> None:
    """For a thread that has nothing to do."""


class Held(Generic[T]):
    """The value of an asynchronous context manager that a task of trio keeps open."""

    def __init__(
        self,
        bridge: Bridge,
        manager: AbstractAsyncContextManager[T],
        release: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``release``: called after the end of what was dropped."""
        bridge.check_caller()
        self._bridge, self._manager, self._release_bridge = bridge, manager, release
        self.is_released = False  # it is closed, or about to be
        self._scope = trio.CancelScope()
        self._release = trio.Event()
        self._opened: asyncio.Future[T] = get_running_loop().create_future()
        self._ended: asyncio.Future[None] = get_running_loop().create_future()

    async def open(self) -> T:
        """Enter the context manager. If the call is cancelled, it is closed again."""
        self._bridge.start_soon(self._hold)
        try:
            await _wait(self._opened, self._scope.cancel)
        except asyncio.CancelledError:
            await self.end()
            raise
        return self._opened.result()

    async def close(self) -> None:
        """Leave the context manager. The first call raises its error; later calls do nothing.

        A cancellation waits for the end, as the trio side limits its time.
        """
        self.is_released = True
        ended = self._ended
        await self.end()
        if not ended.cancelled() and (error := ended.exception()) is not None:
            self._ended = get_running_loop().create_future()
            self._ended.set_result(None)
            raise error

    def drop(self) -> None:
        """Close it soon, from any thread and without waiting: nothing refers to its value any more."""
        self.is_released = True
        self._bridge.drop_soon(self._close_dropped)

    async def _close_dropped(self) -> None:
        try:
            # What was opened later may be a part of it, dropped together with it.
            for each in reversed(list(self._bridge.held)):
                if each is self:
                    break
                if each.is_released:
                    await each.end()
            await self.close_alone()
        finally:
            if self._release_bridge is not None:
                await self._release_bridge()

    async def close_alone(self) -> None:
        """Close it without a caller; a record's outcome is that of its ``Pending``."""
        try:
            await self.close()
        except DLogError:
            pass  # a recovery finds all that is durable
        except Exception as exc:
            report_contained("closing an object that was left open", exc)

    async def end(self) -> None:
        """Leave the context manager, and raise none of its errors."""
        self._release.set()
        await _wait(self._ended, lambda: None)

    async def _hold(self) -> None:
        try:
            with self._scope:
                async with self._manager as value:
                    self._bridge.held[self] = None
                    self._opened.set_result(value)
                    await self._release.wait()
        except Exception as exc:
            if self._opened.done():
                self._ended.set_exception(exc)
            else:
                self._opened.set_exception(exc)
        finally:
            self._bridge.held.pop(self, None)
            if not self._opened.done():
                self._opened.cancel()
            if not self._ended.done():
                self._ended.set_result(None)


def _take_interrupts(loop: asyncio.AbstractEventLoop) -> Callable[[], object]:
    """Let Ctrl-C reach the program, which the handler of trio would give to the guest run.

    It is raised between two steps of the loop: one in the midst of a step may lose what asyncio or trio was
    about to do. A second one, while the first one waits for the end of a step, is raised at once; so does
    ``asyncio.run``, whose own handler stays. Returns what restores the former handler.
    """
    default = signal.default_int_handler
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not default:
        return lambda: None
    waiting: list[None] = []

    def interrupt() -> None:
        waiting.clear()
        raise KeyboardInterrupt

    def handler(number: int, frame: FrameType | None) -> None:
        if waiting or not loop.is_running():
            waiting.clear()
            default(number, frame)
        waiting.append(None)
        loop.call_soon_threadsafe(interrupt)

    def restore() -> None:
        if signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, default)

    signal.signal(signal.SIGINT, handler)
    return restore


def _end_before_close(
    loop: asyncio.AbstractEventLoop, with_loop: AsyncGenerator[None, None]
) -> Callable[[], object]:
    """Have ``loop.close`` close the generator first: asyncio tells nobody of a loop that is just closed.

    Returns what restores the former method.
    """
    thread, pid, close = threading.get_ident(), os.getpid(), loop.close

    def end_and_close() -> None:
        is_here = (threading.get_ident(), os.getpid()) == (thread, pid)
        try:
            if is_here and not (loop.is_running() or loop.is_closed()):
                loop.run_until_complete(with_loop.aclose())
        finally:
            close()

    def restore() -> None:
        if vars(loop).get("close") is end_and_close:
            del loop.close

    try:
        loop.close = end_and_close  # type: ignore[method-assign]
    except AttributeError:  # a loop in C, such as that of uvloop, has no place for it
        return lambda: None
    return restore


async def unbroken(work: Awaitable[T]) -> T:
    """The result of some work, which a cancellation of the caller does not reach; it is raised afterwards."""
    future = asyncio.ensure_future(work)
    await _wait(future, lambda: None)
    return future.result()


async def _wait(future: asyncio.Future[Any], on_cancel: Callable[[], object]) -> None:
    """Return when the future is done. A cancellation is passed on, and raised when the future is done."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as exc:
            cancelled = exc
            on_cancel()
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # retrieved: the caller gets the cancellation instead
        raise cancelled


def _closed() -> NamespaceClosedError:
    return NamespaceClosedError("it was closed; open the namespace again")
