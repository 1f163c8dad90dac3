"""Objects for asyncio, made from the classes of trio: each call runs in the guest run of trio and is awaited.

Inside: methods and context managers of such a face. Not inside: names and signatures (``face`` of
``ledger.runtime.tasks``), the guest run (``bridge``), any behaviour of their own.
Always: each call has the arguments and the docstring of the call that it is made from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from dlog.aio.bridge import Bridge, Held
from ledger.causes import shorten
from ledger.pickling import ProcessBound
from ledger.runtime.log_lines import warn_unclosed
from ledger.runtime.tasks.face import Taken, Target, like

PASSES_CALLS_ON = True  # for ``shorten``

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
FaceT = TypeVar("FaceT", bound="Face[Any]")


class Face(ProcessBound, Generic[T]):
    """An object of trio for the tasks of an asyncio loop.

    If one that is open is dropped without its block's end, that is a ``ResourceWarning``, and it is closed
    soon afterwards.
    """

    _held: Held[T] | None = None  # of one that is open
    _opener: Face[Any] | None = None  # stays open as long as this object is used

    def __init__(self, bridge: Bridge, inner: T) -> None:
        self._bridge, self._inner = bridge, inner

    def __del__(self, warn: Callable[[str, object], None] = warn_unclosed) -> None:
        # Called in any thread, between any two steps of it: it must neither wait nor take a lock.
        held = self._held
        if held is None or held.is_released or self._bridge.is_forked:
            return
        held.drop()
        warn(f"unclosed {self!r}", self)

    def _face(self, face: type[FaceT], inner: Any) -> FaceT:
        """The face of an object that this one gave."""
        made = face(self._bridge, inner)
        made.opened_by(self)
        return made

    def opened_by(self, opener: Face[Any] | None, held: Held[T] | None = None) -> None:
        """Keep the opener open, which made this object; ``held`` is None if nothing of it is to be closed."""
        self._opener, self._held = opener, held

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._inner)[1:]}"


@overload
def forwarded(
    method: Callable[Concatenate[Any, P], Awaitable[R]], /, **taken: Taken
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The result is a value."""


@overload
def forwarded(
    method: Callable[Concatenate[Any, P], Awaitable[Any]], face: type[FaceT], /, **taken: Taken
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, FaceT]]:
    """The result is an object of trio."""


def forwarded(method: Any, face: Any = None, /, **taken: Taken) -> Any:
    """A call that runs one of trio in the guest run, and returns its result; see ``blocking_face``."""
    target = Target(method, taken)

    async def run(self: Face[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = await self._bridge.run(target.of(self._inner), *target.take(args, kwargs), **kwargs)
        return result if face is None else self._face(face, result)

    async def call(*args: Any, **kwargs: Any) -> Any:
        self, others = target.face_of(args, kwargs, Face)
        try:
            return await run(self, others, kwargs)
        except Exception as exc:
            shorten(exc)
            raise

    return like(call, target, face)


def closing(
    method: Callable[Concatenate[Any, P], Awaitable[None]], /
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, None]]:
    """A call that closes the object; the end of its block has nothing left to close."""
    forward = forwarded(method)

    async def call(self: Any, *args: Any, **kwargs: Any) -> None:
        await forward(self, *args, **kwargs)
        if self._held is not None:
            await self._held.close()

    return cast("Callable[Concatenate[Any, P], Coroutine[Any, Any, None]]", like(call, Target(method, {})))


@overload
def called(method: Callable[Concatenate[Any, P], R], /) -> Callable[Concatenate[Any, P], R]:
    """The result is a value."""


@overload
def called(
    method: Callable[Concatenate[Any, P], Any], face: type[FaceT], /
) -> Callable[Concatenate[Any, P], FaceT]:
    """The result is an object of trio."""


def called(method: Any, face: Any = None, /) -> Any:
    """A call of a function that does not wait; it is made at once, in the loop's own thread only."""
    target = Target(method, {})

    def run(self: Face[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._bridge.check_caller()
        result = target.of(self._inner)(*args, **kwargs)
        return result if face is None else self._face(face, result)

    def call(*args: Any, **kwargs: Any) -> Any:
        self, others = target.face_of(args, kwargs, Face)
        return run(self, others, kwargs)

    return like(call, target, face)


def part(held: object, face: type[FaceT]) -> cached_property[FaceT]:
    """The face of an object that the face's object holds; ``held`` is of the object's class."""

    def make(self: Face[Any]) -> FaceT:
        return self._face(face, getattr(self._inner, name))

    assert isinstance(held, cached_property)  # of the object's class
    assert held.attrname is not None  # likewise
    name, make.__doc__ = held.attrname, held.__doc__
    return cached_property(make)


def opened(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]],
    face: type[FaceT],
    /,
    *,
    on_error: Callable[[FaceT], object] = lambda _: None,
) -> Callable[Concatenate[Any, P], AbstractAsyncContextManager[FaceT]]:
    """A context manager of asyncio that holds one of trio open for the duration of its block.

    Args:
        on_error: Called with the face, before it is closed, if the block raises.
    """
    target = Target(method, {})

    def call(*args: Any, **kwargs: Any) -> AbstractAsyncContextManager[FaceT]:
        self, others = target.face_of(args, kwargs, Face)
        manager = target.of(self._inner)(*others, **kwargs)
        return HeldOpen(manager, face, on_error, bridge=self._bridge, opener=self)

    return like(call, target, AbstractAsyncContextManager[face])  # type: ignore[valid-type]


class HeldOpen(ProcessBound, AbstractAsyncContextManager[FaceT]):
    """Holds a context manager of trio open for the duration of a block, which gets the face of its value.

    If the block raises, its error is raised, not one of closing.
    """

    def __init__(
        self,
        manager: AbstractAsyncContextManager[Any],
        face: type[FaceT],
        on_error: Callable[[FaceT], object] = lambda _: None,
        *,
        bridge: Bridge | None = None,
        opener: Face[Any] | None = None,
    ) -> None:
        """``bridge``, ``opener``: of the object; None for a namespace, which holds the guest run, too."""
        self._manager, self._face, self._on_error = manager, face, on_error
        self._bridge, self._opener = bridge, opener

    async def __aenter__(self) -> FaceT:
        if self._bridge is not None:
            return await self._enter(self._bridge)
        bridge = await Bridge.acquire()
        try:
            return await self._enter(bridge, bridge.release)
        except BaseException:
            await bridge.release()
            raise

    async def _enter(self, bridge: Bridge, release: Callable[[], Awaitable[None]] | None = None) -> FaceT:
        self._held, self._release = Held(bridge, self._manager, release), release
        try:
            made = self._face(bridge, await self._held.open())
        except Exception as exc:
            shorten(exc)
            raise
        made.opened_by(self._opener, self._held)
        self._made = made
        return made

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:
            self._on_error(self._made)
        try:
            await self._held.close()
        except Exception as of_closing:
            if exc is None:
                shorten(of_closing)
                raise
        finally:
            if self._release is not None:
                await self._release()
