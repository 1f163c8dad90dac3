"""Objects without ``async``, made from the classes of trio: each call runs in a loop thread and is awaited.

Inside: methods, context managers and whole objects of such a face, and the ends of those that are open.
Not inside: names and signatures (``face``), the loop (``loop_thread``), any behaviour of their own.
Always: each call has the arguments and the docstring of the call that it is made from, and its result without
``await``; a context manager becomes an object that is open, with ``close``.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import attrs

from ledger.causes import shorten
from ledger.pickling import ProcessBound
from ledger.runtime.log_lines import warn_unclosed
from ledger.runtime.tasks.face import Taken, Target, like
from ledger.runtime.tasks.loop_thread import Held, LoopThread

PASSES_CALLS_ON = True  # for ``shorten``

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Self = TypeVar("Self", bound="HeldFace[Any]")
FaceT = TypeVar("FaceT", bound="Face[Any]")
HeldT = TypeVar("HeldT", bound="HeldFace[Any]")
OwnerT = TypeVar("OwnerT", bound="LoopFace[Any]")


class SupportsClose(Protocol):
    """An object that is closed before the object that opened it."""

    def close(self) -> None:
        """Close it. Idempotent."""


@attrs.frozen
class Opener:
    """The opener of an object; ``face`` stays open as long as that object is used."""

    face: Face[Any] | None  # None for the owner of the loop, which a URI opened
    opened: weakref.WeakSet[SupportsClose]  # that the owner closes before itself


class Face(ProcessBound, Generic[T]):
    """An object of trio for callers in other threads."""

    def __init__(self, loop: LoopThread, inner: T, opener: Opener) -> None:
        self._loop, self._inner, self._opener = loop, inner, opener

    def _as_opener(self) -> Opener:
        return Opener(self, self._opener.opened)

    def __repr__(self) -> str:
        return f"<blocking {repr(self._inner)[1:]}"


class HeldFace(Face[T]):
    """A face of what an asynchronous context manager yields; it is open.

    If it is dropped without ``close``, that is a ``ResourceWarning``, and it is closed soon afterwards.
    """

    _held: Held[T] | None = None  # None if it could not be opened
    _is_part = False  # of another object, whose warning is enough

    def __init__(
        self,
        loop: LoopThread,
        manager: AbstractAsyncContextManager[T],
        opener: Opener,
    ) -> None:
        held = Held(loop, manager)
        super().__init__(loop, held.value, opener)
        self._held = held

    def _release(self) -> None:
        assert self._held is not None  # ``__init__`` has returned
        self._held.release()

    def close(self) -> None:
        """Close it, as the end of an ``async with`` block does in trio. Idempotent."""
        self._release()

    def __del__(self, warn: Callable[[str, object], None] = warn_unclosed) -> None:
        # Called in any thread, between any two steps of it: it must neither wait nor take a lock.
        held = self._held
        if held is None or held.is_released or self._loop.is_forked:
            return
        held.is_released, text = True, repr(self)
        self._drop(held)
        if not self._is_part:
            warn(f"unclosed {text}", self)

    def _drop(self, held: Held[T]) -> None:
        held.release_soon()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after_block(self.close, exc)


class LoopFace(HeldFace[T]):
    """The face that owns the loop. At the latest it is closed when Python ends."""

    def __init__(
        self, name: str, manager: AbstractAsyncContextManager[T], closed_error: type[Exception], advice: str
    ) -> None:
        loop = LoopThread(name, closed_error, advice)
        try:
            super().__init__(loop, manager, Opener(None, weakref.WeakSet()))
        except BaseException:
            loop.stop()
            raise
        self._is_closed = False
        _owners.add(self)

    def close(self) -> None:
        """Close what it has opened, then itself. Idempotent.

        Raises:
            RuntimeError: The thread is that of the loop, as in the callback of a future. Nothing is closed.
        """
        self._loop.check_caller()
        if self._is_closed:
            return
        self._is_closed = True
        if self._held is not None:
            self._held.is_released = True  # also if this is interrupted: the owner need not be reminded
        _owners.discard(self)
        error: Exception | None = None
        try:
            for each in list(self._opener.opened):
                try:
                    each.close()
                except Exception as exc:
                    error = error or exc
            self._release()
        finally:
            self._loop.stop()
        if error is not None:
            raise error

    def _drop(self, held: Held[T]) -> None:
        self._loop.stop_soon()


def close_after_block(close: Callable[[], None], exc: BaseException | None) -> None:
    """Close. If the block raised, its error is raised, not one of closing."""
    try:
        close()
    except Exception:
        if exc is None:
            raise


@overload
def forwarded(
    method: Callable[Concatenate[Any, P], Awaitable[R]], /, **taken: Taken
) -> Callable[Concatenate[Any, P], R]:
    """The result is a value."""


@overload
def forwarded(
    method: Callable[Concatenate[Any, P], Awaitable[Any]], face: type[FaceT], /, **taken: Taken
) -> Callable[Concatenate[Any, P], FaceT]:
    """The result is an object of trio."""


def forwarded(method: Any, face: Any = None, /, **taken: Taken) -> Any:
    """A call that runs an asynchronous one in the loop, and returns its result.

    Args:
        method: Of the class that the face is made from, or a function that takes the object first.
        face: The class for the result, if that is an object of trio, too.
        taken: What is made of an argument, by its name, before the call leaves its thread.
    """
    target = Target(method, taken)

    def run(self: Face[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._loop.run(target.of(self._inner), *target.take(args, kwargs), **kwargs)
        return result if face is None else face(self._loop, result, self._as_opener())

    return like(_call(target, run), target, face)


@overload
def called(method: Callable[Concatenate[Any, P], R], /) -> Callable[Concatenate[Any, P], R]:
    """The result is a value."""


@overload
def called(
    method: Callable[Concatenate[Any, P], Any], face: type[FaceT], /
) -> Callable[Concatenate[Any, P], FaceT]:
    """The result is an object of trio."""


def called(method: Any, face: Any = None, /) -> Any:
    """A call of a function that does not wait, between two steps of the loop; see ``forwarded``."""
    target = Target(method, {})

    def run(self: Face[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._loop.run(_awaitable, target.of(self._inner), *args, **kwargs)
        return result if face is None else face(self._loop, result, self._as_opener())

    return like(_call(target, run), target, face)


def part(held: object, face: type[FaceT]) -> cached_property[FaceT]:
    """The face of an object that the face's object holds; ``held`` is of the object's class."""

    def make(self: Face[Any]) -> FaceT:
        return face(self._loop, getattr(self._inner, name), self._as_opener())

    assert isinstance(held, cached_property)  # of the object's class
    assert held.attrname is not None  # likewise
    name, make.__doc__ = held.attrname, held.__doc__
    return cached_property(make)


def opened(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]], face: type[HeldT], /
) -> Callable[Concatenate[Any, P], HeldT]:
    """A call that enters an asynchronous context manager; its result is open, and closed by ``close``."""
    target = Target(method, {})

    def run(self: Face[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> HeldT:
        manager = target.of(self._inner)(*args, **kwargs)
        opener = self._as_opener()
        opened = face(self._loop, manager, opener)
        opener.opened.add(opened)
        return opened

    return like(_call(target, run), target, face)


def opener(
    function: Callable[P, AbstractAsyncContextManager[Any]], face: Callable[[str, Any], OwnerT], /
) -> Callable[P, OwnerT]:
    """A function that opens a face with a loop of its own; its first argument is a URI."""
    target = Target(function, {})

    def call(*args: Any, **kwargs: Any) -> OwnerT:
        uri, _ = target.face_of(args, dict(kwargs))
        try:
            return face(uri, function(*args, **kwargs))
        except Exception as exc:
            shorten(exc)
            raise

    return like(call, target, face)


def _call(target: Target, run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> Callable[..., Any]:
    if target.is_method:

        def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                return run(self, args, kwargs)
            except Exception as exc:
                shorten(exc)
                raise

        return method

    def function(*args: Any, **kwargs: Any) -> Any:
        self, others = target.face_of(args, kwargs, Face)
        try:
            return run(self, others, kwargs)
        except Exception as exc:
            shorten(exc)
            raise

    return function


async def _awaitable(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    return function(*args, **kwargs)


_owners: weakref.WeakSet[LoopFace[Any]] = weakref.WeakSet()


def _close_all() -> None:
    for each in list(_owners):
        try:
            each.close()
        except Exception:
            pass  # the program ends; a recovery finds everything that is durable


atexit.register(_close_all)
