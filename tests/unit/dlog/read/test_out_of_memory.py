"""A reader that has no memory for its next record raises, loses no record, and repeats none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import dlog
from dlog import aio, blocking
from dlog.format.record import Record, make_records
from dlog.read import columns, log_reader

PAYLOADS = [b"%d" % at for at in range(60)]
FAILS = (0, 1, 7, 19, 20, 38, 59)  # payloads that do not fit when they are made the first time


@pytest.fixture
def short_of_memory(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Payloads whose record cannot be made once."""
    left = [PAYLOADS[at] for at in FAILS]

    def payload_of(payload: bytes) -> bytes:
        if payload in left:
            left.remove(payload)
            raise MemoryError
        return payload

    def make(seqno: int, entry_id: int, slots: Any, txids: Any, payloads: Iterable[bytes], ids: Any) -> Any:
        return make_records(seqno, entry_id, slots, txids, map(payload_of, payloads), ids)

    monkeypatch.setattr(columns, "make_records", make)
    # A reader decodes its first entries to objects, as it does not know how many records entries have.
    monkeypatch.setattr(log_reader, "COLUMNS_RECORDS_MIN", 0)
    return left


def uri(directory: Path) -> str:
    return f"file://{directory}/namespace"


@pytest.fixture
def written(tmp_path: Path) -> str:
    with (
        blocking.open_namespace(uri(tmp_path)) as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        for first in range(0, 60, 20):  # three entries
            writer.append_many(PAYLOADS[first : first + 20])
    return uri(tmp_path)


@attrs.define
class Seen:
    """What a reader has returned, and its position after each failure."""

    records: list[Record] = attrs.field(factory=list)
    positions: list[tuple[int, dlog.DLSN | None]] = attrs.field(factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.records) == len(PAYLOADS)

    def failed(self, position: dlog.DLSN | None) -> None:
        self.positions.append((len(self.records), position))

    def check(self, left: list[bytes]) -> None:
        assert [record.payload for record in self.records] == PAYLOADS
        assert not left
        assert len(self.positions) == len(FAILS)
        for count, position in self.positions:
            assert position == self.records[count].dlsn


def test_a_blocking_reader(written: str, short_of_memory: list[bytes]) -> None:
    seen = Seen()
    with blocking.open_namespace(written) as namespace, namespace.open_reader("log", follow=False) as reader:
        while not seen.is_complete:
            try:
                seen.records.append(next(reader))
            except MemoryError:
                seen.failed(reader.position)
        assert next(reader, None) is None
    seen.check(short_of_memory)


def test_a_reader_of_trio(written: str, short_of_memory: list[bytes]) -> None:
    seen = Seen()

    async def main() -> None:
        async with (
            dlog.open_namespace(written) as namespace,
            namespace.open_reader("log", follow=False) as reader,
        ):
            while not seen.is_complete:
                try:
                    seen.records.append(await anext(reader))
                except MemoryError:
                    seen.failed(reader.position)

    trio.run(main)
    seen.check(short_of_memory)


def test_a_reader_of_asyncio(written: str, short_of_memory: list[bytes]) -> None:
    seen = Seen()

    async def main() -> None:
        async with (
            aio.open_namespace(written) as namespace,
            namespace.open_reader("log", follow=False) as reader,
        ):
            while not seen.is_complete:
                try:
                    seen.records.append(await anext(reader))
                except MemoryError:
                    seen.failed(reader.position)

    asyncio.run(main())
    seen.check(short_of_memory)
