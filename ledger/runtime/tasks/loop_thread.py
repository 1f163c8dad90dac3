"""A trio event loop in its own thread, for callers in other threads.

Inside: calls into the loop, interrupting them, asynchronous context managers that stay open there.
Not inside: the functions that are called (``blocking``).
Always: an interrupted call has ended in the loop before the caller's thread gets the interrupt; calls run in
the order in which their threads made them; the loop waits for no lock that a caller may hold, so a signal
handler may call while it interrupts a call.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, Protocol, TypeVar, cast

import trio

from ledger.runtime.green_threads import refuse_green_threads
from ledger.runtime.log_lines import lines_handed_over
from ledger.runtime.tasks.forks import RULE, call_in_child
from ledger.runtime.tasks.thread_calls import ThreadCalls, calls_of_this_run

PASSES_CALLS_ON = True  # for ``shorten``

T = TypeVar("T")


class Settling(Protocol):
    """Something that began in the loop and has its outcome later."""

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call the callback in the loop when the outcome is decided, or now if it is."""


S = TypeVar("S", bound=Settling)


class LoopThread:
    """A trio event loop in a daemon thread.

    Raises:
        OSError: The loop could not start, for want of a descriptor for example.
        RuntimeError: No thread can be started, or gevent or eventlet has replaced threads.
    """

    def __init__(self, name: str, closed_error: type[Exception], advice: str) -> None:
        self.closed_error, self._advice = closed_error, advice  # raised by calls after ``stop``
        self._calls: ThreadCalls | None = None
        self._nursery: trio.Nursery | None = None
        self._ready = _held_lock()
        self._settling: set[threading.Lock] = set()  # of threads in ``wait_settled``; used in the loop
        self._holding: dict[Held[Any], trio.Event] = {}  # what is open, and when it has ended; likewise
        # A daemon, so that a program can end without closing it; ``_close_all`` closes it at exit.
        refuse_green_threads()
        self._failure: BaseException | None = None  # of a loop that could not start
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()
        self._ready.acquire()
        self._raise_failure()
        self.is_forked = False
        call_in_child(self, LoopThread._refuse_in_child)

    def _refuse_in_child(self) -> None:
        """Refuse every later call: the thread does not exist in a forked child."""
        self.is_forked = True

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        try:
            raise self._failure
        finally:
            self._failure = None  # breaks the reference cycle between the exception and this frame

    def _run_loop(self) -> None:
        try:
            with lines_handed_over():  # those who wait for the loop may hold the lock of a log handler
                trio.run(self._main)
        except BaseException as exc:
            if self._nursery is not None:
                raise
            self._failure = exc  # no descriptor is left, for example; the thread that waits raises it
            self._ready.release()

    async def _main(self) -> None:
        self._calls = calls_of_this_run()
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(trio.sleep_forever)
                self._ready.release()
        finally:
            for settled in self._settling:
                settled.release()  # nothing settles any more

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the loop; calls keep their order. The function must not wait or raise."""
        if self.is_forked:
            raise self.closed_error(RULE)
        assert self._calls is not None  # set before the thread is ready
        try:
            self._calls.call_soon(function, *args)
        except trio.RunFinishedError:
            raise self.closed_error(self._advice) from None

    def check_caller(self) -> None:
        """Raise RuntimeError in the thread of the loop, which must not wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call was made in its own loop; use the asynchronous API there")

    def run(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run an asynchronous function in the loop; return its result or raise its error.

        If this thread is interrupted (by Ctrl-C, for example), the function is cancelled. If it has just
        ended, its result is lost; a function whose result must not be lost keeps it elsewhere.
        """
        self.check_caller()
        ended = _held_lock()
        scope = trio.CancelScope()
        context = contextvars.copy_context()  # of the caller, for the events of its calls
        result: T | None = None
        error: BaseException | None = None
        is_started = is_ended = False

        def end() -> None:
            nonlocal is_ended
            is_ended = True
            ended.release()

        async def task() -> None:
            nonlocal result, error
            try:
                with scope:
                    result = await function(*args, **kwargs)
            except trio.Cancelled:  # of the loop
                error = self.closed_error(self._advice)
                raise
            except BaseException as exc:
                error = exc
                if not isinstance(exc, Exception):
                    raise
            finally:
                end()

        def start() -> None:
            nonlocal is_started, error
            assert self._nursery is not None  # set before the thread is ready
            is_started = True
            try:
                context.run(self._nursery.start_soon, task)
            except RuntimeError:  # it is closed: the loop ends
                error = self.closed_error(self._advice)
                end()

        def interrupt() -> None:
            scope.cancel()
            if not is_started:
                end()

        try:
            self.call_soon(start)
            ended.acquire()
        except BaseException:
            if not is_ended:  # this thread was interrupted, possibly before the call started
                with suppress(self.closed_error):
                    self.call_soon(interrupt)
                    ended.acquire()
            raise
        if error is not None:
            try:
                raise error
            finally:
                error = None  # breaks the reference cycle between the exception and this frame
        return cast("T", result)

    def wait_settled(self, begin: Callable[[], S | None]) -> S | None:
        """Call ``begin`` in the loop; return its result once that is settled. Needs no task in the loop.

        None if ``begin`` returns None. Raises what ``begin`` raises. If this thread is interrupted, ``begin``
        was called or never will be; what it began continues.
        """
        self.check_caller()
        settled = _held_lock()
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
            passed = _held_lock()
            with suppress(self.closed_error):
                self.call_soon(passed.release)
                passed.acquire()
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

    def stop_soon(self) -> None:
        """End the loop once all that is open in it is closed: for an owner that was dropped.

        It neither waits nor takes a lock, so it may be called while Python frees an object.
        """
        assert self._nursery is not None  # set before the thread is ready
        with suppress(self.closed_error):
            self.call_soon(self._nursery.start_soon, self._close_all)

    async def _close_all(self) -> None:
        # The owner's came first, and the others need it until they have ended.
        for each in (list(self._holding)[1:], list(self._holding)[:1]):
            ended = [self._holding[held] for held in each]
            for held in each:
                held.release_now()
            for event in ended:
                await event.wait()
        self._cancel()

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
        self.is_released = False  # by its owner, who need not be reminded
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
            holding = self._loop._holding
            holding[self] = trio.Event()
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
                holding.pop(self).set()

        nursery.start_soon(hold)
        try:
            await is_settled.wait()
        except trio.Cancelled:
            scope.cancel()
            raise
        return opened.result()

    def release_now(self) -> None:
        """In the loop: leave the context manager."""
        self._release.set()

    def release_soon(self) -> None:
        """The same from any thread, without waiting: for an object that was dropped; see ``stop_soon``."""
        with suppress(self._loop.closed_error):
            self._loop.call_soon(self.release_now)

    def release(self) -> None:
        """Leave the context manager. The first call raises its error."""
        self.is_released = True

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


def _held_lock() -> threading.Lock:
    """A lock that one thread waits for until another releases it.

    The objects of ``threading`` and ``concurrent.futures`` that do this are held for some steps by who waits.
    A signal handler that runs then, and waits for the loop, would wait for ever.
    """
    lock = threading.Lock()
    lock.acquire()
    return lock


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
