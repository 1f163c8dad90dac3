"""What the calls of a namespace share: where they are made, and how long they wait.

Inside: two decorators for methods of an object that is made of a namespace's context, and of nothing else.
Not inside: the checks of rights and names (``dlog.context``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Protocol, TypeVar, cast

from dlog.context import NamespaceContext
from ledger.causes import shorten
from namespace.policy import Right

PASSES_CALLS_ON = True  # for ``shorten``

F = TypeVar("F", bound=Callable[..., Awaitable[object]])


class Calls(Protocol):
    """Calls on one namespace."""

    def __init__(self, context: NamespaceContext) -> None: ...

    @property
    def context(self) -> NamespaceContext:
        """The namespace."""


def where_it_is(call: F) -> F:
    """Make a call on the log that its first argument names in the namespace that has the log now."""

    @wraps(call)
    async def made(self: Calls, *args: object, **kwargs: object) -> object:
        def make(there: NamespaceContext) -> Awaitable[object]:
            return call(self if there is self.context else type(self)(there), *args, **kwargs)

        name = cast(str, args[0] if args else kwargs.get("name"))  # the call checks it
        try:
            return await self.context.where_it_is(name, make)
        except Exception as exc:
            shorten(exc)  # for callers on trio; the faces do it, too
            raise

    return cast(F, made)


def waits_for_store(question: F) -> F:
    """Repeat a call that changes nothing while the metadata store is out of reach."""

    @wraps(question)
    async def repeated(self: Calls, *args: object, **kwargs: object) -> object:
        return await self.context.while_store_is_away(Right.READ, lambda: question(self, *args, **kwargs))

    return cast(F, repeated)
