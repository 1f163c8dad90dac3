"""A trio event loop in its own thread, for callers in other threads.

Inside: calls into the loop, interrupting them, asynchronous context managers that stay open there.
Not inside: the functions that are called (``blocking``).
Always: an interrupted call has ended in the loop before the caller's thread gets the interrupt; calls run in
the order in which their threads made them.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, Protocol, TypeVar

import trio

from ledger.runtime.tasks.forks import RULE, call_in_child
from ledger.runtime.tasks.thread_calls import ThreadCalls, calls_of_this_run

T = TypeVar("T")


class Settling(Protocol):
    """Something that began in the loop and has its outcome later."""

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call the callback in the loop when the outcome is decided, or now if it is."""


S = TypeVar("S", bound=Settling)


class LoopThread:
    """A trio event loop in a daemon thread."""

    def __init__(self, name: str, closed_error: type[Exception], advice: str) -> None:
        self.closed_error, self._advice = closed_error, advice  # raised by calls after ``stop``
        self._calls: ThreadCalls | None = None
        self._nursery: trio.Nursery | None = None
        self._ready = threading.Event()
        self._settling: set[threading.Lock] = set()  # of threads in ``wait_settled``; used in the loop
        # A daemon, so that a program can end without closing it; ``_close_all`` closes it at exit.
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name=name, daemon=True)
        self._thread.start()
        self._ready.wait()
        self._is_forked = False
        call_in_child(self, LoopThread._refuse_in_child)

    def _refuse_in_child(self) -> None:
        """Refuse every later call: the thread does not exist in a forked child."""
        self._is_forked = True

    async def _main(self) -> None:
        self._calls = calls_of_this_run()
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(trio.sleep_forever)
                self._ready.set()
        finally:
            for settled in self._settling:
                settled.release()  # nothing settles any more

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the loop; calls keep their order. The function must not wait or raise."""
        if self._is_forked:
            raise self.closed_error(RULE)
        assert self._calls is not None  # set before the thread is ready
        try:
            self._calls.call_soon(function, *args)
        except trio.RunFinishedError:
            raise self.closed_error(self._advice) from None

    def _check_caller(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call was made in its own loop; use the asynchronous API there")

    def run(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run an asynchronous function in the loop; return its result or raise its error.

        If this thread is interrupted (by Ctrl-C, for example), the function is cancelled. If it has just
        ended, its result is lost; a function whose result must not be lost keeps it elsewhere.
        """
        self._check_caller()
        future: Future[T] = Future()
        scope = trio.CancelScope()
        context = contextvars.copy_context()  # of the caller, for the events of its calls
        is_started = False

        async def task() -> None:
            try:
                with scope:
                    result = await function(*args, **kwargs)
            except BaseException as exc:
                future.set_exception(exc)
                if not isinstance(exc, Exception):
                    raise
            else:
                if scope.cancelled_caught:
                    future.cancel()
                    future.set_running_or_notify_cancel()
                else:
                    future.set_result(result)

        def start() -> None:
            nonlocal is_started
            assert self._nursery is not None  # set before the thread is ready
            context.run(self._nursery.start_soon, task)
            is_started = True

        def interrupt() -> None:
            scope.cancel()
            if not is_started:
                future.cancel()
                future.set_running_or_notify_cancel()

        try:
            self.call_soon(start)
            return future.result()
        except BaseException:
            if not future.done():  # this thread was interrupted, possibly before the call started
                self.call_soon(interrupt)
                wait((future,))
            raise

    def wait_settled(self, begin: Callable[[], S | None]) -> S | None:
        """Call ``begin`` in the loop; return its result once that is settled. Needs no task in the loop.

        None if ``begin`` returns None. Raises what ``begin`` raises. If this thread is interrupted, ``begin``
        was called or never will be; what it began continues.
        """
        self._check_caller()
        settled = threading.Lock()
        settled.acquire()
        context = contextvars.copy_context()  # of the caller, for the events of its calls
        begun: S | None = None
        error: Exception | None = None
        is_interrupted = is_settled = False

        def settle() -> None:
            nonlocal is_settled
            is_settled = True
            self._settling.discard(settled)
            settled.release()

        def start() -> None:
            nonlocal begun, error
            if is_interrupted:
                return
            self._settling.add(settled)
            try:
                begun = context.run(begin)
            except Exception as exc:
                error = exc
            if begun is None:
                settle()
            else:
                begun.on_settled(settle)

        try:
            self.call_soon(start)
            settled.acquire()
        except BaseException:
            is_interrupted = True  # and if it has begun, that is over when the loop passes this point
            passed = threading.Event()
            self.call_soon(passed.set)
            passed.wait()
            raise
        if error is not None:
            try:
                raise error
            finally:
                error = None  # breaks the reference cycle between the exception and this frame
        if not is_settled:
            raise self.closed_error(self._advice)
        return begun

    def stop(self) -> None:
        """End the loop. Everything in it should be closed before."""
        try:
            self.call_soon(self._cancel)
        except self.closed_error:
            return
        self._thread.join()

    def _cancel(self) -> None:
        assert self._nursery is not None  # set before the thread is ready
        self._nursery.cancel_scope.cancel()


class Held(Generic[T]):
    """The value of an asynchronous context manager that a task in the loop keeps open."""

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[T]) -> None:
        self._loop = loop
        self._manager = manager
        self._release = trio.Event()
        self._ended: Future[None] = Future()
        try:
            self.value: T = loop.run(self._open)
        except BaseException:
            # If it was opened just when this thread was interrupted, it must be closed here.
            with suppress(loop.closed_error):
                loop.call_soon(self._release.set)
            raise

    async def _open(self) -> T:
        opened: Future[T] = Future()
        is_settled = trio.Event()
        nursery = self._loop._nursery
        assert nursery is not None  # set before the thread is ready
        scope = trio.CancelScope()

        async def hold() -> None:
            try:
                with scope:
                    async with self._manager as value:
                        opened.set_result(value)
                        is_settled.set()
                        await self._release.wait()
            except Exception as exc:
                (opened if not opened.done() else self._ended).set_exception(exc)
            finally:
                is_settled.set()
                if not self._ended.done():
                    self._ended.set_result(None)

        nursery.start_soon(hold)
        try:
            await is_settled.wait()
        except trio.Cancelled:
            scope.cancel()
            raise
        return opened.result()

    def release(self) -> None:
        """Leave the context manager. The first call raises its error."""

        async def leave() -> None:
            self._release.set()
            ended = trio.Event()
            calls = calls_of_this_run()
            self._ended.add_done_callback(lambda _: calls.call_soon(ended.set))
            # An interrupt does not cancel this wait: the asynchronous side limits its time.
            with trio.CancelScope(shield=True):
                await ended.wait()

        try:
            self._loop.run(leave)
        except self._loop.closed_error:
            return
        self._ended, ended = _done(), self._ended
        ended.result()


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
