"""Appends that depend on what the log holds: after a position, and once for each transaction id."""

# covers: dlog/write/log_writer.py
# covers: dlog/write/repeats.py

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

import dlog
import dlog.blocking
from dlog import DLSN
from dlog.encryption import KeyFile


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    async with dlog.open_namespace(f"file://{tmp_path}") as opened:
        yield opened


async def read(namespace: dlog.Namespace) -> list[tuple[int, bytes]]:
    async with namespace.open_reader("log", follow=False) as reader:
        return [(record.txid, record.payload) async for record in reader]


@pytest.mark.slow
async def test_a_record_is_written_only_behind_the_expected_one(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log", create=True) as log:
        with pytest.raises(dlog.PositionConflictError) as caught:
            await log.append_after(b"x", DLSN(1, 0, 0))
        assert (caught.value.expected, caught.value.actual) == (DLSN(1, 0, 0), None)
        assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
        first = await log.append_after(b"first", None, txid=1)
        second = await log.append_after(b"second", first, txid=2)
        with pytest.raises(dlog.PositionConflictError, match="another append came first") as caught:
            await log.append_after(b"x", first)
        assert (caught.value.expected, caught.value.actual) == (first, second)
        many = await log.append_many([b"third", b"fourth"], txids=[3, 4])
        assert await log.append_after(b"fifth", many[-1], txid=5) > many[-1]
    assert await read(namespace) == [
        (1, b"first"),
        (2, b"second"),
        (3, b"third"),
        (4, b"fourth"),
        (5, b"fifth"),
    ]


@pytest.mark.slow
async def test_the_expected_record_may_be_that_of_an_earlier_writer(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log", create=True) as log:
        first = await log.append(b"first")
    async with namespace.open_writer("log") as log:
        with pytest.raises(dlog.PositionConflictError):
            await log.append_after(b"x", None)
        await log.append_after(b"second", first)
    assert [payload for _, payload in await read(namespace)] == [b"first", b"second"]


@pytest.mark.slow
async def test_records_in_flight_count(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log", create=True) as log:
        first = await log.append(b"first")
        pending = log.submit(b"second")
        with pytest.raises(dlog.PositionConflictError) as caught:
            await log.append_after(b"x", first)
        assert caught.value.actual == await pending


@pytest.mark.slow
async def test_one_of_many_tasks_with_the_same_expectation_wins(namespace: dlog.Namespace) -> None:
    won: list[int] = []
    async with namespace.open_writer("log", create=True) as log:
        last: DLSN | None = None

        async def contend(number: int) -> None:
            try:
                await log.append_after(b"%d" % number, last)
            except dlog.PositionConflictError:
                return
            won.append(number)

        for _ in range(5):
            won.clear()
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(contend, number)
            assert len(won) == 1
            await log.flush()
            last = await namespace.last_dlsn("log")
    assert len(await read(namespace)) == 5


@pytest.mark.slow
async def test_a_repeated_append_stores_once_and_returns_the_first_position(
    namespace: dlog.Namespace,
) -> None:
    async with namespace.open_writer("log", create=True) as log:
        first = [await log.append_once(b"%d" % txid, txid=txid) for txid in (1, 5, 9)]
        assert [await log.append_once(b"%d" % txid, txid=txid) for txid in (9, 1, 5)] == [
            first[2],
            first[0],
            first[1],
        ]
        pending = log.submit(b"10", txid=10)
        assert await log.append_once(b"10", txid=10) == await pending
        with pytest.raises(dlog.TxidOutOfOrderError):
            await log.append_once(b"never written", txid=7)
    async with namespace.open_writer("log") as log:
        assert await log.append_once(b"5", txid=5) == first[1]
        await log.append_once(b"11", txid=11)
        assert await log.append_once(b"9", txid=9) == first[2]
        await log.truncate(first[1])
    assert await read(namespace) == [(5, b"5"), (9, b"9"), (10, b"10"), (11, b"11")]


@pytest.mark.slow
async def test_a_repeated_id_with_another_payload_is_refused_and_nothing_is_written(
    namespace: dlog.Namespace,
) -> None:
    async with namespace.open_writer("log", create=True) as log:
        first = await log.append_once(b"first", txid=5)
        for another in (b"", b"firs", b"first ", b"x" * 2000):
            with pytest.raises(dlog.TxidReusedError, match="another payload") as caught:
                await log.append_once(another, txid=5)
            assert (caught.value.txid, caught.value.dlsn) == (5, first)
            assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
    async with namespace.open_writer("log") as log:
        with pytest.raises(dlog.TxidReusedError):
            await log.append_once(b"second", txid=5)
        assert await log.append_once(b"first", txid=5) == first
    assert await read(namespace) == [(5, b"first")]


@pytest.mark.slow
async def test_of_plain_records_with_equal_ids_the_first_is_the_one_that_is_found(
    namespace: dlog.Namespace,
) -> None:
    async with namespace.open_writer("log", create=True) as log:
        first, second = await log.append_many([b"first", b"second"], txids=[5, 5])
        third = await log.append(b"third", txid=5)
        assert await log.outcome(5) == first < second < third
        assert await log.append_once(b"first", txid=5) == first
        with pytest.raises(dlog.TxidReusedError):
            await log.append_once(b"second", txid=5)
    assert await read(namespace) == [(5, b"first"), (5, b"second"), (5, b"third")]


@pytest.mark.slow
async def test_a_great_id_holds_the_ids_of_later_records_where_it_is(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log", create=True) as log:
        await log.append(b"first", txid=2**62)
        await log.append(b"second")
    assert await read(namespace) == [(2**62, b"first"), (2**62, b"second")]


@pytest.mark.slow
async def test_an_encrypted_record_is_compared_by_its_payload(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("one " + "ab" * 32 + "\n")
    sealed = dlog.WriterConfig(encryption=KeyFile(keys))
    async with dlog.open_namespace(f"file://{tmp_path}/log") as namespace:
        async with namespace.open_writer("log", create=True, config=sealed) as log:
            first = await log.append_once(b"first", txid=5)
            assert await log.append_once(b"first", txid=5) == first
            with pytest.raises(dlog.TxidReusedError):
                await log.append_once(b"second", txid=5)
        async with namespace.open_writer("log") as log:  # without the key it cannot compare
            assert await log.append_once(b"first", txid=5) == first


@pytest.mark.slow
@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("key", [None, b"key"])
async def test_a_record_of_several_entries_is_compared_as_a_whole(
    key: bytes | None, is_sealed: bool, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("one " + "ab" * 32 + "\n")
    config = dlog.WriterConfig(record_bytes_max=4 << 20, encryption=KeyFile(keys) if is_sealed else None)
    large = b"a" * (3 << 20)
    others = (
        b"b" + large[1:],
        large[: 1 << 20] + b"b" + large[1 + (1 << 20) :],
        large[:-1],
        large + b"a",
        b"",
    )
    async with dlog.open_namespace(f"file://{tmp_path}/log") as namespace:
        async with namespace.open_writer("log", create=True, config=config) as log:
            await log.append_many([b"before"] * 3, txids=[1, 2, 3])
            first = await log.append_once(large, txid=5, key=key)
            await log.append(b"after", txid=6)
        async with namespace.open_writer("log", config=config) as log:
            assert await log.append_once(large, txid=5, key=key) == first == await log.outcome(5)
            for another in others:
                with pytest.raises(dlog.TxidReusedError):
                    await log.append_once(another, txid=5, key=key)


@pytest.mark.slow
async def test_tasks_that_repeat_one_append_store_it_once(namespace: dlog.Namespace) -> None:
    found: list[DLSN] = []
    async with namespace.open_writer("log", create=True) as log:

        async def repeat() -> None:
            found.append(await log.append_once(b"payload", txid=3))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(repeat)
    assert len(set(found)) == 1
    assert await read(namespace) == [(3, b"payload")]


@pytest.mark.slow
async def test_an_unknown_outcome_is_settled(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log", create=True) as log:
        first = await log.append(b"1", txid=1)
        await log.append_many([b"4", b"4"], txids=[4, 4])
        pending = log.submit(b"5", txid=5)
        assert await log.outcome(5) == await pending
        assert await log.outcome(6) is None
    async with namespace.open_writer("log") as log:
        assert await log.outcome(1) == first
        assert await log.outcome(2) is None
        found = await log.outcome(4)
        assert found is not None
        assert found < await pending
        await log.append(b"6", txid=6)
        await log.truncate(await pending)
        assert await log.outcome(1) is None


@pytest.mark.slow
def test_blocking_writers_offer_the_same(tmp_path: Path) -> None:
    with (
        dlog.blocking.open_namespace(f"file://{tmp_path}") as namespace,
        namespace.open_writer("log", create=True) as log,
    ):
        first = log.append_once(b"6", txid=6)
        assert log.append_once(b"6", txid=6) == log.outcome(6) == first
        assert log.append_after(b"7", first, txid=7) > first
        with pytest.raises(dlog.PositionConflictError):
            log.append_after(b"x", first)


REPEATING = """
import sys
import dlog.blocking

with dlog.blocking.open_namespace(sys.argv[1]) as namespace, namespace.open_writer("log", create=True) as log:
    for txid in range(int(sys.argv[2]), 1_000_000):
        log.append_once(b"%d" % txid, txid=txid)
        print(txid, flush=True)
"""


@pytest.mark.slow
def test_a_program_that_repeats_its_last_appends_after_each_kill_stores_each_once(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    begin = 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", REPEATING, uri, str(begin)], stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            for line in program.stdout:
                if int(line) >= begin + 60:
                    program.send_signal(signal.SIGKILL)
                    break
        begin += 50  # it does not know which of the last ones were written
    with dlog.blocking.open_namespace(uri) as namespace:
        with namespace.open_writer("log"):
            pass  # recovers
        with namespace.open_reader("log", follow=False) as reader:
            txids = [record.txid for record in reader]
    assert txids == list(range(len(txids)))
    assert len(txids) > 200
