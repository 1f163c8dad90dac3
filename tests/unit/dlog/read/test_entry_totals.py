"""The records and bytes of a segment up to an entry, on an embedded log."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlog

SMALL = dlog.NamespaceConfig(writer=dlog.WriterConfig(entry_bytes_target=200))


async def written(namespace: dlog.Namespace, count: int, *, first_txid: int) -> list[dlog.DLSN]:
    async with namespace.open_writer("log", create=True) as writer:
        positions: list[dlog.DLSN] = []
        for at in range(first_txid, first_txid + count, 5):
            txids = range(at, min(at + 5, first_txid + count))
            positions += await writer.append_many([b"x" * 30 for _ in txids], txids=txids)
        return positions


@pytest.mark.slow
async def test_totals_count_the_records_and_bytes_through_each_entry(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}", config=SMALL) as namespace:
        positions = await written(namespace, 40, first_txid=100)
        positions += await written(namespace, 13, first_txid=200)
        txids = [*range(100, 140), *range(200, 213)]
        entries = sorted({(each.segment_seqno, each.entry_id) for each in positions})
        assert len(entries) > 8
        totals = await namespace.entry_totals("log", entries)
        before = dict.fromkeys((1, 2), 0)
        for (segment, entry), total in zip(entries, totals, strict=True):
            assert total is not None
            through = [each for each in positions if each.segment_seqno == segment and each.entry_id <= entry]
            assert total.records == len(through)
            assert total.last_txid == txids[positions.index(through[-1])]
            assert total.size_bytes - before[segment] >= 30
            before[segment] = total.size_bytes


@pytest.mark.slow
async def test_an_entry_that_is_not_there_has_no_totals(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}", config=SMALL) as namespace:
        await written(namespace, 5, first_txid=1)
        first, *others = await namespace.entry_totals("log", [(1, 0), (1, 10_000), (1, -1), (7, 0)])
        assert first is not None
        assert others == [None, None, None]
        with pytest.raises(dlog.LogNotFoundError):
            await namespace.entry_totals("other", [(1, 0)])
