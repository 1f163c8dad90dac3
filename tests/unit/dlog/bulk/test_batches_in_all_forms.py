"""Batches in threads and in asyncio, on a directory."""

from __future__ import annotations

import asyncio
import datetime
from contextlib import suppress
from pathlib import Path

import pytest

import dlog.aio
import dlog.blocking

NOW = datetime.timedelta()


@pytest.mark.slow
def test_threads_write_a_batch_and_give_up_a_segment_whose_block_raised(tmp_path: Path) -> None:
    with dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace:
        namespace.create_log("a")
        plan = namespace.batches.begin(["a"], series="query", number=1)
        assert plan is not None
        with namespace.batches.open_segment(plan, "a") as segment:
            segment.append_many([b"x", bytearray(b"y")])
        with suppress(ZeroDivisionError), namespace.batches.open_segment(plan, "a") as failed:
            failed.append_many([b"z"])
            raise ZeroDivisionError
        assert failed.result is None
        assert segment.result is not None
        assert not namespace.batches.attach(plan, [segment.result]).is_repeated
        assert namespace.batches.abandon(plan, [segment.result]) == []
        assert namespace.repair.find_orphans(older_than=NOW) == []
        with namespace.open_reader("a", follow=False) as reader:
            assert [record.payload for record in reader] == [b"x", b"y"]


@pytest.mark.slow
def test_asyncio_writes_a_batch_and_gives_up_a_segment_whose_block_raised(tmp_path: Path) -> None:
    async def main() -> None:
        async with dlog.aio.open_namespace(tmp_path.as_uri()) as namespace:
            await namespace.create_log("a")
            plan = await namespace.batches.begin(["a"], series="query", number=1)
            assert plan is not None
            async with namespace.batches.open_segment(plan, "a") as segment:
                await segment.append_many([b"x", bytearray(b"y")])
            with suppress(ZeroDivisionError):
                async with namespace.batches.open_segment(plan, "a") as failed:
                    await failed.append_many([b"z"])
                    raise ZeroDivisionError
            assert failed.result is None
            assert segment.result is not None
            assert not (await namespace.batches.attach(plan, [segment.result])).is_repeated
            assert await namespace.repair.find_orphans(older_than=NOW) == []
            async with namespace.open_reader("a", follow=False) as reader:
                assert [record.payload async for record in reader] == [b"x", b"y"]

    asyncio.run(main())
