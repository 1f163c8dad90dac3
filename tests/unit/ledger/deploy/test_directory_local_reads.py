"""Readers of a directory take entries from its entry logs, and get them whatever happens to the logs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

import bookie.embedded.garbage as embedded_garbage
import bookie.embedded.host as host
from bookie.embedded.garbage import EmbeddedGarbage
from ledger.config import ClientConfig
from ledger.context import EntryLogFile, OpenEntryLog
from ledger.deploy.embedded import EmbeddedStack, open_embedded_stack
from ledger.digest import ENTRY_HEADER, DigestType, EntryCodec
from ledger.errors import LedgerReadError
from ledger.handle import ReadHandle

ENTRIES = 2500
CONFIG = ClientConfig(batch_read_bytes_max=100_000)


def payload(ledger_id: int, entry_id: int) -> bytes:
    return b"%d:%d;" % (ledger_id, entry_id) * (60 + entry_id % 3 * (entry_id % 500 == 7))


class OpenedLogs:
    """Counts the entry logs that readers open; ``before`` runs before each."""

    def __init__(self, really: OpenEntryLog) -> None:
        self.really = really
        self.log_ids: list[int] = []
        self.before: Callable[[int], None] = lambda log_id: None

    def __call__(self, log_id: int, device: int, inode: int) -> EntryLogFile:
        self.before(log_id)
        file = self.really(log_id, device, inode)
        self.log_ids.append(log_id)
        return file


@attrs.frozen
class Opened:
    stack: EmbeddedStack
    logs: OpenedLogs
    path: Path

    async def write(self, count: int = ENTRIES, *, flush: bool = True) -> int:
        """Write a ledger; return its id."""
        writer = await self.stack.client.create(write_quorum=1, ensemble_size=1, ack_quorum=1)
        async with writer:
            for entry_id in range(count):
                writer.submit(payload(writer.ledger_id, entry_id))
        if flush:
            await self.flush()
        return writer.ledger_id

    async def flush(self) -> None:
        hosted = self.stack.hosting._hosted
        assert isinstance(hosted, host.HostedBookie)
        await hosted.bookie.storage.flush()

    def log_files(self) -> list[Path]:
        return sorted((self.path / "bookie" / "current").glob("*.log"))


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Opened]:
    async with open_embedded_stack(path, CONFIG) as stack:
        context = stack.client._context
        assert context.open_entry_log is not None
        logs = OpenedLogs(context.open_entry_log)
        stack.client._context = attrs.evolve(context, open_entry_log=logs)
        yield Opened(stack, logs, path)


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Opened]:
    async with opened(tmp_path / "log") as each:
        yield each


async def read_rest(reader: ReadHandle, first: int = 0, last: int = ENTRIES - 1) -> None:
    """Read all entries from ``first`` on; each must be the one that was written."""
    while first <= last:
        payloads = await reader.read_payloads(first, last)
        for at, found in enumerate(payloads, first):
            assert found == payload(reader.ledger_id, at)
        first += len(payloads)
    assert first == last + 1


def descriptors_of(path: Path) -> int:
    names = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum(name.startswith(str(path)) and name.endswith(".log") for name in names)


@pytest.mark.slow
async def test_flushed_entries_are_read_from_the_entry_log(directory: Opened) -> None:
    ledger_id = await directory.write()
    async with await directory.stack.client.open(ledger_id) as reader:
        await read_rest(reader)
        assert len(directory.logs.log_ids) >= 1
        assert reader._local is not None
        await read_rest(reader, 777)
        entries = await reader.read(100, 1200)
        assert [each.payload for each in entries] == [payload(ledger_id, at) for at in range(100, 1201)]
        assert all(type(each.payload) is bytes for each in entries)


@pytest.mark.slow
async def test_a_second_process_reads_them_too(directory: Opened) -> None:
    """A second stack attaches to the first as another process does, by the socket."""
    ledger_id = await directory.write()
    async with opened(directory.path) as other:
        assert other.stack.hosting._hosted is None
        async with await other.stack.client.open(ledger_id) as reader:
            await read_rest(reader)
        assert other.logs.log_ids
        assert not directory.logs.log_ids


@pytest.mark.slow
async def test_entries_in_memory_are_read_from_the_bookie(directory: Opened) -> None:
    ledger_id = await directory.write(50, flush=False)
    async with await directory.stack.client.open(ledger_id) as reader:
        await read_rest(reader, last=49)
    assert not directory.logs.log_ids


@pytest.mark.slow
async def test_nothing_is_located_beyond_what_the_reader_may_read(directory: Opened) -> None:
    ledger_id = await directory.write()
    async with await directory.stack.client.open(ledger_id) as reader:
        await read_rest(reader, last=600)
        local = reader._local
        assert local is not None
        assert directory.logs.log_ids
        assert local._first_entry_id + len(local._starts) <= 601
        assert not local.holds(601)


@pytest.mark.slow
async def test_each_reader_closes_its_log(directory: Opened) -> None:
    ledger_id = await directory.write()
    before = descriptors_of(directory.path)
    for stop_at in (0, 300, ENTRIES - 1):
        async with await directory.stack.client.open(ledger_id) as reader:
            await reader.read_payloads(stop_at, ENTRIES - 1)
    async with await directory.stack.client.open(ledger_id) as reader:
        await read_rest(reader)
        assert descriptors_of(directory.path) <= before + 1  # the bookie's own
    assert directory.logs.log_ids
    assert descriptors_of(directory.path) <= before + 1


@pytest.mark.slow
async def test_compaction_under_a_reader_changes_nothing_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_garbage, "ENTRY_LOG_BYTES_MAX", 600_000)
    async with opened(tmp_path / "log") as directory:
        dead = await directory.write(ENTRIES, flush=False)
        kept = await directory.write()
        for _ in range(2):  # the last log is complete once there is another one
            await directory.write(ENTRIES)
        logs = directory.log_files()
        readers = [await directory.stack.client.open(kept) for _ in range(3)]
        first = [await reader.read_payloads(at, ENTRIES - 1) for at, reader in enumerate(readers)]
        assert directory.logs.log_ids
        held = [reader for reader in readers if reader._local is not None and reader._local._log is not None]
        assert held
        await directory.stack.client.delete(dead)
        garbage = directory.stack.hosting.garbage
        assert isinstance(garbage, EmbeddedGarbage)
        collected = await garbage.collect()
        assert dead in collected.ledger_ids
        assert set(logs) - set(directory.log_files())  # files that held the ledger are gone
        for at, (reader, found) in enumerate(zip(readers, first, strict=True)):
            async with reader:
                assert found == [payload(kept, at + each) for each in range(len(found))]
                await read_rest(reader, at + len(found))


@pytest.mark.slow
async def test_a_log_that_vanishes_before_it_is_opened_is_read_through_the_bookie(
    directory: Opened,
) -> None:
    ledger_id = await directory.write()

    def vanish(log_id: int) -> None:
        raise FileNotFoundError

    directory.logs.before = vanish
    async with await directory.stack.client.open(ledger_id) as reader:
        await read_rest(reader)
        assert reader._local is not None
        assert not reader._local.may_locate  # it asks again later
    assert not directory.logs.log_ids


@pytest.mark.slow
async def test_another_file_with_the_name_of_the_log_is_not_read(directory: Opened) -> None:
    """The known bug: a file of another directory has entries with the same ids and good digests."""
    ledger_id = await directory.write()
    (log,) = (each for each in directory.log_files() if each.stat().st_size > 100_000)
    sound, at = log.read_bytes(), 5
    begin = sound.index(payload(ledger_id, at)) - 36
    _, _, lac, length = ENTRY_HEADER.unpack_from(sound, begin)
    other = b"!" * len(payload(ledger_id, at))
    entry = EntryCodec(DigestType.CRC32C, b"").pack(ledger_id, at, lac, length, other)
    forged = sound[:begin] + entry + sound[begin + len(entry) :]

    def replace(log_id: int) -> None:
        other = log.with_suffix(".other")
        other.write_bytes(forged)
        os.rename(log, log.with_suffix(".real"))
        os.rename(other, log)

    directory.logs.before = replace
    before = descriptors_of(directory.path)
    async with await directory.stack.client.open(ledger_id) as reader:
        found = await reader.read_payloads(0, ENTRIES - 1)
        assert not directory.logs.log_ids
        assert found == [payload(ledger_id, at) for at in range(len(found))]
    assert descriptors_of(directory.path) <= before + 1
    os.rename(log.with_suffix(".real"), log)


@pytest.mark.slow
async def test_damaged_bytes_are_reported_as_the_bookie_s_and_never_returned(directory: Opened) -> None:
    ledger_id = await directory.write()
    (log,) = (each for each in directory.log_files() if each.stat().st_size > 100_000)
    data = bytearray(log.read_bytes())
    at = data.index(payload(ledger_id, 1000))
    data[at + 3] ^= 1
    log.write_bytes(data)
    async with await directory.stack.client.open(ledger_id) as reader:
        await read_rest(reader, last=999)
        with pytest.raises(LedgerReadError, match="digest"):
            await read_rest(reader, 1000)
        with pytest.raises(LedgerReadError, match="digest"):
            await read_rest(reader, 998)
        assert reader.digest_mismatches >= 1


@pytest.mark.slow
async def test_a_log_cut_short_under_a_reader_raises_and_returns_nothing_else(directory: Opened) -> None:
    ledger_id = await directory.write()
    (log,) = (each for each in directory.log_files() if each.stat().st_size > 100_000)
    async with await directory.stack.client.open(ledger_id) as reader:
        found = await reader.read_payloads(0, ENTRIES - 1)
        os.truncate(log, log.read_bytes().index(payload(ledger_id, 900)) - 10)
        with pytest.raises(LedgerReadError):
            await read_rest(reader, len(found))
