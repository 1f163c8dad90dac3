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
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from dlog.aio.bridge import Bridge, Held
from ledger.causes import shorten
from ledger.pickling import ProcessBound
from ledger.runtime.tasks.face import Taken, Target, like

PASSES_CALLS_ON = True  # for ``shorten``

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
FaceT = TypeVar("FaceT", bound="Face[Any]")


class Face(ProcessBound, Generic[T]):
    """An object of trio for the tasks of an asyncio loop."""

    def __init__(self, bridge: Bridge, inner: T) -> None:
        self._bridge, self._inner = bridge, inner

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
        return result if face is None else face(self._bridge, result)

    async def call(*args: Any, **kwargs: Any) -> Any:
        self, others = target.face_of(args, kwargs)
        try:
            return await run(self, others, kwargs)
        except Exception as exc:
            shorten(exc)
            raise

    return like(call, target, face)


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
        return result if face is None else face(self._bridge, result)

    def call(*args: Any, **kwargs: Any) -> Any:
        self, others = target.face_of(args, kwargs)
        return run(self, others, kwargs)

    return like(call, target, face)


def part(held: object, face: type[FaceT]) -> cached_property[FaceT]:
    """The face of an object that the face's object holds; ``held`` is of the object's class."""

    def make(self: Face[Any]) -> FaceT:
        return face(self._bridge, getattr(self._inner, name))

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
        self, others = target.face_of(args, kwargs)
        return HeldOpen(self._bridge, target.of(self._inner)(*others, **kwargs), face, on_error)

    return like(call, target, AbstractAsyncContextManager[face])  # type: ignore[valid-type]


class HeldOpen(AbstractAsyncContextManager[FaceT]):
    """Holds a context manager of trio open for the duration of a block, which gets the face of its value.

    If the block raises, its error is raised, not one of closing.
    """

    def __init__(
        self,
        bridge: Bridge,
        manager: AbstractAsyncContextManager[Any],
        face: type[FaceT],
        on_error: Callable[[FaceT], object] = lambda _: None,
    ) -> None:
        self._bridge, self._manager, self._face, self._on_error = bridge, manager, face, on_error

    async def __aenter__(self) -> FaceT:
        self._held = Held(self._bridge, self._manager)
        try:
            self._made = self._face(self._bridge, await self._held.open())
        except Exception as exc:
            shorten(exc)
            raise
        return self._made

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
