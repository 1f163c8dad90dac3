"""The figures of a log and its cursors, on a directory."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import pytest
import trio

import dlog
from dlog.namespace_handle import Namespace
from dlog.page import log_figures as module
from dlog.page.log_figures import Growth, SeenLog, age_s
from ledger.runtime.clock import wall_ms

READER = ("cursor", "billing")


async def seen_log(namespace: Namespace) -> SeenLog:
    described = await namespace.describe_log("orders")
    seen = SeenLog(described)
    seen.look(described)
    return seen


async def test_a_lag_counts_from_the_time_of_the_record_also_after_a_restart(tmp_path: Path) -> None:
    hour_ago = wall_ms() - 3_600_000
    async with dlog.open_namespace((tmp_path / "namespace").as_uri()) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"1", txid=hour_ago - 3_600_000)
            second = await writer.append(b"2", txid=hour_ago)
            await writer.append(b"3")
        seen = await seen_log(namespace)  # as a program that has just been started
        lag_s = await seen.lag_s(namespace, READER, second, 2, until_s=math.inf)
        assert lag_s == pytest.approx(3600, abs=60)
        assert await seen.lag_s(namespace, READER, second, 0, until_s=math.inf) == 0
        # Without the time to read, it is known since when this program saw the record.
        assert await seen.lag_s(namespace, READER, second, 2, until_s=trio.current_time()) < 60


async def test_the_record_of_a_cursor_that_stays_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    open_reader = Namespace.open_reader

    def counted(self: Namespace, name: str, **options: object) -> object:
        opened.append(name)
        return open_reader(self, name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Namespace, "open_reader", counted)
    async with dlog.open_namespace((tmp_path / "namespace").as_uri()) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            places = [await writer.append(b"x") for _ in range(3)]
        seen = await seen_log(namespace)
        for _ in range(3):
            await seen.lag_s(namespace, READER, places[0], 3, until_s=math.inf)
        assert len(opened) == 1
        await seen.lag_s(namespace, READER, places[1], 2, until_s=math.inf)
        assert len(opened) == 2
        seen.forget_readers([])
        await seen.lag_s(namespace, READER, places[1], 2, until_s=math.inf)
        assert len(opened) == 3


async def test_the_size_of_a_log_is_that_of_all_its_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEGMENTS_SIZED_MAX", 2)
    async with dlog.open_namespace((tmp_path / "namespace").as_uri()) as namespace:
        for _ in range(3):
            async with namespace.open_writer("orders", create=True) as writer:
                await writer.append(b"x" * 1000)
        async with namespace.open_writer("orders") as writer:
            await writer.append(b"x" * 500)
            await writer.flush()
            seen = await seen_log(namespace)
            assert await seen.size_bytes(namespace) is None, "one segment is still unknown"
            size = await seen.size_bytes(namespace)
    assert size is not None
    assert 3500 < size < 4500


async def test_a_log_without_records_has_no_bytes(tmp_path: Path) -> None:
    async with dlog.open_namespace((tmp_path / "namespace").as_uri()) as namespace:
        await namespace.create_log("orders")
        assert await (await seen_log(namespace)).size_bytes(namespace) == 0


@pytest.mark.parametrize("txid", [None, 0, 17, 999_999_999_999, 2**63 - 1])
def test_an_id_that_is_no_time_has_no_age(txid: int | None) -> None:
    assert age_s(txid, 1_800_000_000_000) is None


def test_an_age_is_never_negative() -> None:
    now_ms = 1_800_000_000_000
    assert age_s(now_ms - 2500, now_ms) == 2.5
    assert age_s(now_ms + 2500, now_ms) == 0


async def test_a_purge_does_not_change_how_long_a_record_waits(tmp_path: Path) -> None:
    async with dlog.open_namespace((tmp_path / "namespace").as_uri()) as namespace:
        for number in range(2):
            async with namespace.open_writer("orders", create=True) as writer:
                await writer.append(b"%d" % number)
        described = await namespace.describe_log("orders")
    assert [each.record_count for each in described.segments] == [1, 1]
    growth = Growth()
    one = attrs.evolve(described, segments=described.segments[:1], record_count=1)
    assert growth.look(one, 10.0) == 1
    assert growth.look(described, 20.0) == 2
    purged = attrs.evolve(described, segments=described.segments[1:], record_count=1)
    assert growth.look(purged, 30.0) == 2
    assert (growth.lag_s(1, 30.0), growth.lag_s(0, 30.0), growth.idle_s(30.0)) == (10.0, 20.0, 10.0)
