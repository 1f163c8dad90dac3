"""Sealing a log: its readers end, its writers are refused, and a second attempt finishes the first."""

# covers: dlog/write/opening.py

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dlog
import dlog.blocking
from dlog.cli.main import main
from dlog.format.record import TXID_MAX
from dlog.write.segment_lifecycle import SegmentLifecycle


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    async with dlog.open_namespace(f"file://{tmp_path}") as opened:
        yield opened


async def assert_sealed(namespace: dlog.Namespace, records: int) -> None:
    for _ in range(2):
        async with namespace.open_reader("log") as reader:
            assert len([record async for record in reader]) == records
            assert reader.is_sealed
            assert await reader.read_batch(1) is None
            with pytest.raises(StopAsyncIteration):
                await anext(reader)
    described = await namespace.describe_log("log")
    assert (described.is_sealed, described.record_count) == (True, records)
    assert described.segments[-1].last_txid == TXID_MAX
    assert all(segment.is_completed for segment in described.segments)
    with pytest.raises(dlog.EndOfStreamError):
        async with namespace.open_writer("log"):
            pass
    await namespace.seal_log("log")
    assert len(await namespace.segments("log")) == len(described.segments)


@pytest.mark.parametrize("hash_chain", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_a_writer_seals_behind_all_its_records(namespace: dlog.Namespace, hash_chain: bool) -> None:
    await namespace.create_log("log")
    async with namespace.open_reader("log") as follower:
        config = dlog.WriterConfig(hash_chain=hash_chain)
        async with namespace.open_writer("log", config=config) as log:
            first = await log.append(b"1", txid=1)
            pending = log.submit(b"2", txid=7)
            await log.seal()
            assert await pending > first
            for refused in (log.append(b"x"), log.append_many([b"x"]), log.seal()):
                with pytest.raises(
                    dlog.WriterClosedError, match="it is sealed; write to another log"
                ) as caught:
                    await refused
                assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
        assert [record.txid async for record in follower] == [1, 7]
        assert follower.is_sealed
    await assert_sealed(namespace, 2)
    assert await namespace.last_dlsn("log") == await pending
    assert len(await namespace.segments("log")) == 1


@pytest.mark.slow
async def test_an_empty_log_and_a_closed_one_are_sealed(namespace: dlog.Namespace) -> None:
    await namespace.create_log("log")
    await namespace.seal_log("log")
    assert [each.first_txid for each in await namespace.segments("log")] == [TXID_MAX]
    await assert_sealed(namespace, 0)
    await namespace.delete_log("log")
    async with namespace.open_writer("log", create=True) as log:
        await log.append(b"1")
        with pytest.raises(dlog.LogLockedError):
            await namespace.seal_log("log")
        await log.append(b"2")
    await namespace.seal_log("log")
    await assert_sealed(namespace, 2)
    with pytest.raises(dlog.LogNotFoundError):
        await namespace.seal_log("nothing")


@pytest.mark.parametrize("hash_chain", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_a_marker_whose_segment_was_not_completed_is_found_by_the_next_writer(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch, hash_chain: bool
) -> None:
    async def overtaken(*_: object, **__: object) -> None:
        raise dlog.LogFencedError("log", "another writer has changed its segments")

    config = dlog.WriterConfig(hash_chain=hash_chain)
    with monkeypatch.context() as patched:
        patched.setattr(SegmentLifecycle, "complete", overtaken)
        async with namespace.open_writer("log", create=True, config=config) as log:
            await log.append(b"1")
            with pytest.raises(dlog.LogFencedError) as caught:
                await log.seal()
            assert caught.value.outcome is dlog.RecordOutcome.DURABLE  # of the marker
    assert not (await namespace.describe_log("log")).is_sealed
    with pytest.raises(dlog.EndOfStreamError):
        async with namespace.open_writer("log"):
            pass
    await assert_sealed(namespace, 1)


@pytest.mark.slow
def test_blocking_calls_and_the_command_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLOG_URI", f"file://{tmp_path}")
    with dlog.blocking.open_namespace(f"file://{tmp_path}") as namespace:
        with namespace.open_writer("a", create=True) as log:
            log.append(b"1")
            log.seal()
        namespace.create_log("b")
        namespace.seal_log("b")
        namespace.create_log("c")
        assert [namespace.describe_log(name).is_sealed for name in "abc"] == [True, True, False]
    assert main(["log", "seal", "a", "c", "--yes"]) == 0
    assert capfd.readouterr().err == "sealed a\nsealed c\n"
    line = tmp_path / "line"
    line.write_text("x")
    assert main(["write", "c", str(line)]) == 1
    assert "is sealed (end of stream)" in capfd.readouterr().err
