"""A trio loop in a thread of its own, for callers in other threads.

Inside: calls into the loop, their interruption, asynchronous context managers held open there. Not inside:
what is called (``blocking``).
Always: a call that is interrupted has ended in the loop before the interrupt goes on; calls keep the order in
which their threads made them.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

import trio

from dlog.errors import NamespaceClosedError

T = TypeVar("T")


class LoopThread:
    """A trio loop in a daemon thread, and calls into it."""

    def __init__(self, name: str) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._ready = threading.Event()
        # A daemon, so that a program that forgets to close can end; ``_close_all`` closes it properly before.
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(trio.sleep_forever)
            self._ready.set()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a function that neither waits nor raises in the loop; calls keep their order."""
        assert self._token is not None
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            raise NamespaceClosedError("it was closed; open the namespace again") from None

    def run(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run an asynchronous function in the loop and return, or raise, what it does.

        Interrupted, by Ctrl-C for one, it is cancelled. It may have ended just before: then what it returned
        is lost, so what must not be lost it keeps elsewhere.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("dlog.blocking was called from its own loop; use the asynchronous API there")
        future: Future[T] = Future()
        scope = trio.CancelScope()
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
            assert self._nursery is not None
            self._nursery.start_soon(task)
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
            if not future.done():  # this thread was interrupted, perhaps before it had handed over the call
                self.call_soon(interrupt)
                wait((future,))
            raise

    def stop(self) -> None:
        """End the loop; everything in it should be closed already."""
        try:
            self.call_soon(self._cancel)
        except NamespaceClosedError:
            return
        self._thread.join()

    def _cancel(self) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()


class Held(Generic[T]):
    """The value of an asynchronous context manager, held open by a task in the loop."""

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[T]) -> None:
        self._loop = loop
        self._manager = manager
        self._release = trio.Event()
        self._ended: Future[None] = Future()
        try:
            self.value: T = loop.run(self._open)
        except BaseException:
            # It may have been opened just when this thread was interrupted, and nobody would close it.
            with suppress(NamespaceClosedError):
                loop.call_soon(self._release.set)
            raise

    async def _open(self) -> T:
        opened: Future[T] = Future()
        told = trio.Event()
        nursery = self._loop._nursery
        assert nursery is not None
        scope = trio.CancelScope()

        async def hold() -> None:
            try:
                with scope:
                    async with self._manager as value:
                        opened.set_result(value)
                        told.set()
                        await self._release.wait()
            except Exception as exc:
                (opened if not opened.done() else self._ended).set_exception(exc)
            finally:
                told.set()
                if not self._ended.done():
                    self._ended.set_result(None)

        nursery.start_soon(hold)
        try:
            await told.wait()
        except trio.Cancelled:
            scope.cancel()
            raise
        return opened.result()

    def release(self) -> None:
        """Leave the context manager; raises what that does, the first time."""

        async def leave() -> None:
            self._release.set()
            ended = trio.Event()
            token = trio.lowlevel.current_trio_token()
            self._ended.add_done_callback(lambda _: token.run_sync_soon(ended.set))
            # Not cancelled by an interrupt: the asynchronous side bounds how long it may take.
            with trio.CancelScope(shield=True):
                await ended.wait()

        try:
            self._loop.run(leave)
        except NamespaceClosedError:
            return
        self._ended, ended = _done(), self._ended
        ended.result()


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
