"""Blobs beside a dumb twin: a dictionary of bytes does the same, also over power cuts."""

# covers: dlog/blobs/calls.py
# covers: dlog/blobs/writer.py

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import dlog
from dlog.blobs import BlobConflictError, BlobExistsError, BlobNotFoundError, writer
from dlog.testing import open_world
from tests.effort import examples
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.dict_namespace import open_on

NAMES = st.sampled_from(["a", "a/b", "%", "ü x"])
SMALL = {"ENTRY_BYTES": 8, "BLOCK_BYTES": 16, "PIECE_BYTES": 24, "PIECES_OF_A_SIZE": 2}


@contextmanager
def small_pieces() -> Iterator[None]:
    """A short blob has many entries and ledgers in the block."""
    with ExitStack() as stack:
        for name, value in SMALL.items():
            stack.enter_context(patch.object(writer, name, value))
        yield


@attrs.frozen
class Put:
    name: str
    parts: tuple[bytes, ...]
    replace: bool


@attrs.frozen
class Expect:
    """Put over the blob that was put as the given one, which may be another by now."""

    name: str
    content: bytes
    put: int


@attrs.frozen
class Delete:
    name: str


@attrs.frozen
class Get:
    name: str
    start: int
    length: int


@attrs.frozen
class List:
    prefix: str


CONTENTS = st.binary(max_size=80)
CALLS = st.one_of(
    st.builds(Put, NAMES, st.lists(CONTENTS, max_size=3).map(tuple), st.booleans()),
    st.builds(Expect, NAMES, CONTENTS, st.integers(0, 5)),
    st.builds(Delete, NAMES),
    st.builds(Get, NAMES, st.integers(0, 90), st.integers(0, 90)),
    st.builds(List, st.sampled_from(["", "a", "a/", "ü"])),
)
Outcome = object


class Twin:
    """A dictionary, and the number of each put."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, int]] = {}
        self.puts = 0

    def make(self, call: object) -> Outcome:
        match call:
            case Put(name, parts, replace):
                if name in self.blobs and not replace:
                    return BlobExistsError
                self._put(name, b"".join(parts))
            case Expect(name, content, put):
                if name not in self.blobs or self.blobs[name][1] != put:
                    return BlobConflictError
                self._put(name, content)
            case Delete(name):
                return None if self.blobs.pop(name, None) else BlobNotFoundError
            case Get(name, start, length):
                if name not in self.blobs:
                    return BlobNotFoundError
                return self.blobs[name][0][start : start + length]
            case List(prefix):
                return sorted(
                    (name, len(it[0])) for name, it in self.blobs.items() if name.startswith(prefix)
                )
        return None

    def _put(self, name: str, content: bytes) -> None:
        self.blobs[name] = content, self.puts
        self.puts += 1


class Real:
    """A namespace, and the ids of what was put."""

    def __init__(self, namespace: dlog.Namespace) -> None:
        self.blobs = namespace.blobs
        self.ids: list[str] = []

    async def make(self, call: object) -> Outcome:
        try:
            return await self._make(call)
        except (BlobExistsError, BlobConflictError, BlobNotFoundError) as exc:
            return type(exc)

    async def _make(self, call: object) -> Outcome:
        match call:
            case Put(name, parts, replace):
                async with self.blobs.open_writer(name, replace=replace) as part_by_part:
                    for part in parts:
                        await part_by_part.write(part)
                assert part_by_part.result is not None
                self.ids.append(part_by_part.result.blob_id)
            case Expect(name, content, put):
                expected = self.ids[put] if put < len(self.ids) else "0" * 32
                self.ids.append((await self.blobs.put(name, content, expect=expected)).blob_id)
            case Delete(name):
                await self.blobs.delete(name)
            case Get(name, start, length):
                return await self.blobs.get(name, start=start, end=start + length)
            case List(prefix):
                return [(blob.name, blob.size_bytes) for blob in await self.blobs.list(prefix)]
        return None


@settings(max_examples=examples(), deadline=None)
@given(st.lists(CALLS, max_size=25))
def test_blobs_do_the_same_as_a_dictionary(calls: list[object]) -> None:
    async def main() -> None:
        async with open_cluster() as cluster, open_on(cluster) as opened:
            twin, real = Twin(), Real(opened.namespace)
            for call in calls:
                assert await real.make(call) == twin.make(call), call
            blobs = await opened.namespace.blobs.list()
            named = sorted(piece.ledger_id for blob in blobs for piece in blob.pieces)
            assert await opened.client.ledger_ids() == named

    with small_pieces():
        trio.run(main)


@pytest.mark.slow
def test_a_power_cut_at_each_step_of_the_disk_leaves_the_blobs_that_were_put() -> None:
    contents = {"a": b"a" * 100, "b": b"b" * 30, "c": b""}
    acknowledged: dict[str, bytes] = {}

    async def service() -> None:
        async with dlog.open_namespace(world.uri) as namespace:
            for name, content in contents.items():
                await namespace.blobs.put(name, content, replace=True)
                acknowledged[name] = content
            await namespace.blobs.delete("b")
            del acknowledged["b"]

    async def check() -> None:
        async with dlog.open_namespace(world.uri) as namespace:
            found = {blob.name: await namespace.blobs.get(blob.name) for blob in await namespace.blobs.list()}
            assert found.items() <= contents.items()
            assert acknowledged.items() - found.items() <= {
                ("b", contents["b"])
            }  # its deletion was under way
            await namespace.blobs.sweep()
            blobs = await namespace.blobs.list()
            named = sorted(piece.ledger_id for blob in blobs for piece in blob.pieces)
            assert await namespace.context.client.ledger_ids() == named

    with small_pieces(), open_world() as world:
        step, was_cut = 0, True
        while was_cut:
            step += 1
            acknowledged.clear()
            with world.power_cut_after(step) as cut:
                trio.run(service)
            was_cut = cut.was_cut
            world.power_on()
            trio.run(check)
        assert step > 20
