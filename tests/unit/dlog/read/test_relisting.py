"""A reader at the end of a log lists the segments more and more rarely while nothing happens."""

from __future__ import annotations

from itertools import pairwise

import attrs
import pytest
import trio

import dlog
from dlog.read.read_ahead import RELIST_FACTOR_MAX
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.dict_namespace import CONFIG, WatchedStore, open_on, write_segments

EVERY_S = 10.0


class Listings:
    """When the segments of a log were listed."""

    def __init__(self, store: WatchedStore) -> None:
        self.at: list[float] = []
        store.after = self._after

    async def _after(self, kind: str, _path: str) -> None:
        if kind == "children":
            self.at.append(trio.current_time())

    def pauses_s(self) -> list[float]:
        return [round(later - earlier, 1) for earlier, later in pairwise(self.at) if later - earlier > 1]


@pytest.mark.slow
async def test_an_idle_reader_lists_more_and_more_rarely_and_a_record_makes_it_begin_again(
    autojump_clock: object,
) -> None:
    config = attrs.evolve(CONFIG, reader=dlog.ReaderConfig(relist_interval_s=EVERY_S))
    async with open_cluster() as cluster, open_on(cluster, config=config) as opened:
        await write_segments(opened.namespace, "a", 1)
        async with (
            opened.namespace.open_writer("a") as writer,
            opened.namespace.open_reader("a") as reader,
        ):
            await writer.append(b"1")
            assert [(await anext(reader)).payload for _ in range(2)] == [b"0", b"1"]
            listings = Listings(opened.store)
            with trio.move_on_after(1_000):
                await anext(reader)
            pauses = listings.pauses_s()
            assert pauses[:3] == [2 * EVERY_S, 4 * EVERY_S, RELIST_FACTOR_MAX * EVERY_S]
            assert set(pauses[3:]) == {RELIST_FACTOR_MAX * EVERY_S}
            await writer.append(b"2")
            assert (await anext(reader)).payload == b"2"
            listings.at.clear()
            with trio.move_on_after(100):
                await anext(reader)
            assert listings.pauses_s()[:1] == [2 * EVERY_S]
