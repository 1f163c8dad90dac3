"""What the faces of a trio object have in common: calls that look like those of its class.

A face is an object for callers outside of trio. It passes each call to one object of trio, so its methods are
not written but made from the methods of that object's class.

Inside: the name, the docstring and the signature of a call; properties; values that are taken before a call
leaves its caller. Not inside: the way into the loop (``blocking_face``, ``dlog.aio.face``).
Always: a method is looked up in the object, whose class may override it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Generic, NoReturn, TypeVar, overload

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Taken = Callable[[Any], Any]  # makes a value that no longer depends on the caller's


class Target:
    """The target of a call: a method of the face's object, or a function that takes the object first.

    Args:
        taken: By the name of a parameter, what is made of its argument in the caller's thread.
    """

    __slots__ = ("_first", "_taken", "function", "is_method", "name")

    def __init__(self, function: Callable[..., Any], taken: dict[str, Taken]) -> None:
        self.function, self.name = function, function.__name__
        self.is_method = "." in function.__qualname__
        self._taken: list[tuple[int, str, Taken]] = []
        self._first = ""
        if taken or not self.is_method:
            names = list(inspect.signature(function).parameters)
            self._first = names[0]
            self._taken = [(names.index(name) - 1, name, take) for name, take in taken.items()]

    def of(self, inner: object) -> Callable[..., Any]:
        """The call on an object of trio."""
        if self.is_method:
            bound: Callable[..., Any] = getattr(inner, self.name)
            return bound
        return functools.partial(self.function, inner)

    def face_of(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], kind: type = object
    ) -> tuple[Any, tuple[Any, ...]]:
        """The face among the arguments of a function, and the other positional ones.

        Raises:
            TypeError: There is none of this kind.
        """
        if args:
            face, others = args[0], args[1:]
        elif self._first in kwargs:
            face, others = kwargs.pop(self._first), ()
        else:
            raise TypeError(f"{self.name}() missing its first argument: {self._first!r}")
        if not isinstance(face, kind):
            raise TypeError(
                f"{self.name}() of {kind.__module__.rpartition('.')[0]} is given {face!r}; it takes what this"
                " package opened, as dlog, dlog.aio and dlog.blocking each do"
            )
        return face, others

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The positional arguments, with what is taken of them; those by keyword are replaced."""
        for index, name, take in self._taken:
            if name in kwargs:
                kwargs[name] = take(kwargs[name])
            elif 0 <= index < len(args):
                args = (*args[:index], take(args[index]), *args[index + 1 :])
        return args


def like(call: F, target: Target, result: object = None) -> F:
    """The call with the name, the docstring and the signature of its target, and this type of result."""
    functools.update_wrapper(call, target.function)
    if result is not None:
        signature = inspect.signature(target.function).replace(return_annotation=result)
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {**target.function.__annotations__, "return": result}
    return call


def described(of: object) -> Callable[[F], F]:
    """Give a call that is written by hand the docstring of the call or property that it stands for."""

    def describe(call: F) -> F:
        call.__doc__ = of.__doc__
        return call

    return describe


class Shown(property, Generic[T]):
    """A property of a face, with the docstring of the object's property; ``shown`` makes it."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> Shown[T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None, /) -> T: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> Any:
        return super().__get__(instance, owner)

    def __set__(self, instance: Any, value: NoReturn, /) -> None:
        raise AttributeError("it can be read only")


def shown(of: object) -> Any:
    """The property of the face's object; it is read in the caller's thread.

    Annotate it with the type: ``lac: Shown[int] = shown(WriteHandle.lac)``. A test compares it with that of
    the property.
    """
    assert isinstance(of, property)  # of the object's class
    assert of.fget is not None  # likewise
    return attribute(of.fget.__name__, of.__doc__ or "")


def attribute(name: str, doc: str) -> Any:
    """An attribute of the face's object that is no property of its class; see ``shown``."""

    def read(self: Any) -> Any:
        return getattr(self._inner, name)

    read.__name__, read.__doc__ = name, doc
    return Shown(read)


def listed(values: Iterable[T] | None) -> list[T] | None:
    """The values, which the caller consumes; None for None."""
    return None if values is None else list(values)
