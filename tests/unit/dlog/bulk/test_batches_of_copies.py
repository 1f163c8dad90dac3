"""Batches that copy records: with the transaction ids of their source, and a note how far the copy is."""

from __future__ import annotations

import attrs
import pytest

import dlog
from dlog.bulk import BatchOvertakenError
from tests.fakes.dict_bookies import DictCluster
from tests.fakes.dict_namespace import CONFIG, open_on, read_all
from tests.unit.dlog.bulk.test_batches import begun, cluster, make_logs, segment

__all__ = ["cluster"]


async def test_records_keep_their_own_transaction_ids_in_order(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        async with namespace.open_writer("a") as log:
            await log.append(b"0", txid=10)
        plan = await begun(namespace, logs=["a"])
        async with namespace.batches.open_segment(plan, "a") as second:
            await second.append_many([b"3", b"4"], txids=[12, 30])
        async with namespace.batches.open_segment(plan, "a") as first:
            for wrong in ([9, 9], [11, 10], [-1, 10], [10], [10, 2**63 - 1]):
                with pytest.raises((ValueError, dlog.TxidOutOfOrderError)):
                    await first.append_many([b"x", b"y"], txids=wrong)
            await first.append_many([b"1"], txids=[10])
            with pytest.raises(dlog.TxidOutOfOrderError):
                await first.append_many([b"x"], txids=[9])
            await first.append_many([b"2"], txids=[12])
        assert first.result is not None
        assert second.result is not None
        await namespace.batches.attach(plan, [first.result, second.result])
        async with namespace.open_reader("a", follow=False) as reader:
            records = [(record.txid, record.payload) async for record in reader]
        assert records == [(10, b"0"), (10, b"1"), (12, b"2"), (12, b"3"), (30, b"4")]
        async with namespace.open_reader("a", start=12, follow=False) as reader:
            assert (await anext(reader)).payload == b"2"
        assert (await namespace.repair.verify("a")).is_sound
        async with namespace.open_writer("a") as log:
            with pytest.raises(dlog.TxidOutOfOrderError):
                await log.append(b"5", txid=29)


async def test_segments_whose_transaction_ids_overlap_are_refused(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await begun(namespace, logs=["a"])
        segments = []
        for txids in ([5, 9], [7, 8]):
            async with namespace.batches.open_segment(plan, "a") as writer:
                await writer.append_many([b"x", b"y"], txids=txids)
            assert writer.result is not None
            segments.append(writer.result)
        with pytest.raises(ValueError, match="begins with transaction id 7"):
            await namespace.batches.attach(plan, segments)
        assert await read_all(namespace, "a") == []


async def test_properties_are_set_with_the_batch_or_not_at_all(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await make_logs(namespace, "a", "b")
        await namespace.properties.change("a", {"owner": "shop"})
        plan = await begun(namespace)
        other = await begun(namespace, number=2)
        await namespace.batches.attach(
            plan, [await segment(namespace, plan, "b", b"1")], properties={"done": "through 1"}
        )
        expected = {"owner": "shop", "done": "through 1", "dlog.batch.query": "1"}
        assert dict((await namespace.properties.get("a")).values) == expected
        with pytest.raises(BatchOvertakenError):
            await namespace.batches.attach(
                other, [await segment(namespace, other, "b", b"2")], properties={"done": "through 2"}
            )
        assert dict((await namespace.properties.get("a")).values) == expected
        unnumbered = await namespace.batches.begin(["b"], record_log="a")
        assert unnumbered is not None
        await namespace.batches.attach(unnumbered, [], properties={"done": "through 3"})
        assert (await namespace.properties.get("a")).values["done"] == "through 3"


async def test_large_records_are_written_in_parts(cluster: DictCluster) -> None:
    payloads = [b"small", bytes(range(256)) * 10_000, b"", bytes(1_500_000), b"last"]
    for shared in (True, False):
        writer = attrs.evolve(CONFIG.writer, record_bytes_max=3_000_000)
        config = attrs.evolve(CONFIG, writer=writer, shared_with_java=shared)
        async with open_on(cluster, config=config) as opened:
            namespace = opened.namespace
            await namespace.create_log("a", exist_ok=True)
            if shared:
                with pytest.raises(dlog.ConfigError, match="Apache's readers cannot read"):
                    await begun(namespace, logs=["a"])
                continue
            plan = await begun(namespace, logs=["a"])
            async with namespace.batches.open_segment(plan, "a") as segment:
                with pytest.raises(dlog.RecordTooLongError):
                    await segment.append_many([bytes(3_000_001)])
                await segment.append_many(payloads[:2], txids=[3, 4])
                await segment.append_many(payloads[2:], txids=[5, 5, 6])
            assert segment.result is not None
            await namespace.batches.attach(plan, [segment.result])
            async with namespace.open_reader("a", follow=False) as reader:
                records = [record async for record in reader]
            assert [record.payload for record in records] == payloads
            assert [record.txid for record in records] == [3, 4, 5, 5, 6]
            assert (await namespace.repair.verify("a")).is_sound
            assert (await namespace.repair.verify_entries("a", 1)).is_sound
            async with namespace.open_reader("a", start=records[3].dlsn, follow=False) as reader:
                assert [record.payload async for record in reader] == payloads[3:]
