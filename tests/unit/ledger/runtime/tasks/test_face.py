"""Calls that look like those of the class that they are made from."""

# covers: ledger/runtime/tasks/blocking_face.py

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from ledger.payloads import as_payloads
from ledger.runtime.tasks.blocking_face import Face, HeldFace, LoopFace, called, forwarded, opened
from ledger.runtime.tasks.face import Shown, attribute, listed, shown


class ClosedError(Exception):
    pass


class Door:
    """A thing of trio."""

    def __init__(self) -> None:
        self.name, self.is_shut = "door", False

    @property
    def count(self) -> int:
        """How often it was used."""
        return 7

    async def use(
        self, payloads: Iterable[bytes | bytearray], *, times: Iterable[int] | None = None
    ) -> list[bytes]:
        """Use it."""
        return [*map(bytes, payloads), repr(times).encode()]

    async def copy(self, name: str = "x") -> Door:
        """Another one."""
        made = Door()
        made.name = name
        return made

    def shut(self, hard: bool = False) -> bool:
        """Shut it."""
        self.is_shut = hard
        return hard

    @asynccontextmanager
    async def pass_through(self, name: str) -> AsyncIterator[Door]:
        """Go in."""
        yield (made := await self.copy(name))
        made.is_shut = True


class Gate(Door):
    """One that overrides a call."""

    async def use(
        self, payloads: Iterable[bytes | bytearray], *, times: Iterable[int] | None = None
    ) -> list[bytes]:
        """Use the gate."""
        return [b"gate"]


async def paint(door: Door, colour: str = "red") -> str:
    """Paint it."""
    return f"{door.name} {colour}"


@asynccontextmanager
async def open_door(kind: type[Door] = Door) -> AsyncIterator[Door]:
    yield kind()


class Copied(Face[Door]):
    name: Shown[str] = attribute("name", "Its name.")


class Entered(HeldFace[Door]):
    is_shut: Shown[bool] = attribute("is_shut", "Whether it is shut.")


class Blocking(LoopFace[Door]):
    def __init__(self, kind: type[Door] = Door) -> None:
        super().__init__("doors", open_door(kind), ClosedError, "open another")

    count: Shown[int] = shown(Door.count)
    use = forwarded(Door.use, payloads=as_payloads, times=listed)
    copy = forwarded(Door.copy, Copied)
    shut = called(Door.shut)
    pass_through = opened(Door.pass_through, Entered)


paint_it = forwarded(paint)


def test_a_forwarded_call_has_the_signature_and_the_docstring_of_its_method() -> None:
    assert inspect.signature(Blocking.use) == inspect.signature(Door.use)
    assert (Blocking.use.__name__, Blocking.use.__doc__) == ("use", "Use it.")
    assert inspect.signature(Blocking.copy).return_annotation is Copied
    assert inspect.signature(paint_it) == inspect.signature(paint)
    assert not inspect.iscoroutinefunction(Blocking.use)


def test_a_shown_property_is_that_of_the_object_and_cannot_be_set() -> None:
    assert inspect.getdoc(Blocking.count) == "How often it was used."
    with Blocking() as door:
        assert door.count == 7
        with pytest.raises(AttributeError, match="read only"):
            door.count = 8  # type: ignore[assignment]


def test_arguments_are_taken_in_the_thread_of_the_caller() -> None:
    buffer = bytearray(b"one")
    with Blocking() as door:
        assert door.use([buffer], times=iter([1])) == [b"one", b"[1]"]
        assert door.use(payloads=iter([buffer])) == [b"one", b"None"]
        with pytest.raises(TypeError, match="missing 1 required"):
            door.use()  # type: ignore[call-arg]


def test_a_call_reaches_the_method_that_overrides_the_one_it_is_made_from() -> None:
    with Blocking(Gate) as door:
        assert door.use([]) == [b"gate"]


def test_results_and_context_managers_become_faces_of_their_own() -> None:
    with Blocking() as door:
        assert door.copy().name == "x"
        assert door.shut(hard=True)
        with door.pass_through("in") as entered:
            before = entered.is_shut
        assert (before, entered.is_shut) == (False, True)
        left_open = door.pass_through("in")
    assert left_open.is_shut
    with pytest.raises(ClosedError, match="open another"):
        door.copy()


def test_a_function_takes_the_face_by_position_or_by_name() -> None:
    with Blocking() as door:
        assert paint_it(door) == "door red"
        assert paint_it(door, "blue") == "door blue"
        assert paint_it(door=door, colour="blue") == "door blue"  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="missing its first argument: 'door'"):
            paint_it(colour="blue")  # type: ignore[call-arg]
