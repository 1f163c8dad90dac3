"""What a batch of segments refuses: ledgers that are open, logs and namespaces that take none, damage."""

# covers: dlog/bulk/detached.py

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

import dlog
from dlog.bulk import BatchOvertakenError
from dlog.bulk.plan import BatchPlan
from ledger.digest import DigestType
from namespace.policy import Policy, Right, Rule
from tests.fakes.dict_bookies import DictCluster
from tests.fakes.dict_namespace import CONFIG, open_on, read_all, write_segments
from tests.unit.dlog.bulk.test_batches import begun, cluster, make_logs, segment

__all__ = ["cluster"]  # a fixture


async def test_only_closed_ledgers_are_attached(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await begun(namespace, logs=["a"])
        part = await segment(namespace, plan, "a", b"x")
        mark = (await opened.client.metadata(part.ledger_id)).custom
        async with await opened.client.create(
            ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32, custom=mark
        ) as handle:
            for wrong in (
                attrs.evolve(part, last_entry_id=1),
                attrs.evolve(part, ledger_id=handle.ledger_id, last_entry_id=-1),
            ):
                with pytest.raises(dlog.LogMetadataError, match="is not closed at entry"):
                    await namespace.batches.attach(plan, [wrong])
        with pytest.raises(ValueError, match="given twice"):
            await namespace.batches.attach(plan, [part, part])
        assert await read_all(namespace, "a") == []


async def test_a_block_that_fails_leaves_no_ledger(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await begun(namespace, logs=["a"])
        with pytest.raises(dlog.RecordTooLongError):
            async with namespace.batches.open_segment(plan, "a") as writer:
                await writer.append_many([b"x", bytes(dlog.PAYLOAD_BYTES_MAX + 1)])
        assert writer.result is None
        async with namespace.batches.open_segment(plan, "a") as writer:
            await writer.append_many([b"x"])
            writer.give_up()
        assert writer.result is None
        assert await opened.client.ledger_ids() == []


async def test_logs_that_take_no_records_take_no_batch(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await make_logs(namespace, "a", "b")
        await namespace.seal_log("b")
        with pytest.raises(dlog.EndOfStreamError):
            await namespace.batches.begin(["a", "b"], series="query", number=1)
        with pytest.raises(dlog.LogNotFoundError):
            await namespace.batches.begin(["a", "missing"], series="query", number=1)
        plan = await begun(namespace, logs=["a"])
        part = await segment(namespace, plan, "a", b"x")
        await namespace.seal_log("a")
        with pytest.raises(BatchOvertakenError):
            await namespace.batches.attach(plan, [part])
        with pytest.raises(ValueError, match="not begun for log 'b'"):
            namespace.batches.open_segment(plan, "b")
    async with open_on(cluster, "/federated", federated=True) as opened:
        with pytest.raises(dlog.ConfigError, match="takes no batch"):
            await opened.namespace.batches.begin(["a"], series="query", number=1)


async def test_a_log_with_a_hash_chain_takes_no_batch(cluster: DictCluster) -> None:
    chained = attrs.evolve(CONFIG, writer=attrs.evolve(CONFIG.writer, hash_chain=True))
    async with open_on(cluster, config=chained) as opened:
        await write_segments(opened.namespace, "a", 1)
        with pytest.raises(dlog.ConfigError, match="ask for encryption or a hash chain"):
            await opened.namespace.batches.begin(["a"], series="query", number=1)
    async with open_on(cluster) as opened:
        with pytest.raises(dlog.ConfigError, match="has a hash chain"):
            await opened.namespace.batches.begin(["a"], series="query", number=1)
        assert (await opened.namespace.repair.verify("a")).is_sound


class Keys:
    """One key."""

    def current(self) -> tuple[str, bytes]:
        return "a", bytes(32)

    def key(self, key_id: str) -> bytes:
        return {"a": bytes(32)}[key_id]


async def test_where_payloads_are_encrypted_no_batch_is_written_in_clear(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("a")
        plan = await begun(opened.namespace, logs=["a"])
    secret = attrs.evolve(CONFIG, writer=attrs.evolve(CONFIG.writer, encryption=Keys()))
    async with open_on(cluster, config=secret) as opened:
        with pytest.raises(dlog.ConfigError, match="ask for encryption"):
            await begun(opened.namespace, logs=["a"])
        with pytest.raises(dlog.ConfigError, match="ask for encryption"):
            await segment(opened.namespace, plan, "a", b"secret")
        assert await opened.client.ledger_ids() == []


async def test_a_number_that_does_not_parse_is_never_replaced(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await begun(namespace, logs=["a"])
        part = await segment(namespace, plan, "a", b"x")
        await namespace.properties.change("a", {"dlog.batch.query": "seven"})
        with pytest.raises(dlog.LogMetadataError, match="no number of a batch"):
            await namespace.batches.attach(plan, [part])
        await namespace.properties.change("a", {"dlog.batch.query": None, "owner": "shop"})
        await namespace.batches.attach(plan, [part])
        assert (await namespace.properties.get("a")).values == {"dlog.batch.query": "1", "owner": "shop"}


async def test_each_call_of_a_batch_needs_the_right_to_write_the_log_that_records_it(
    cluster: DictCluster,
) -> None:
    rules = [Rule("root", "*", frozenset({Right.ADMIN})), Rule("test", "mine", frozenset({Right.WRITE}))]
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await make_logs(namespace, "mine", "secret")
        await namespace.properties.change("secret", {"owner": "them"})
        await namespace.policy.set(Policy(tuple(rules)))
        with pytest.raises(dlog.AccessDeniedError, match="log 'secret'"):
            await namespace.batches.begin(["mine"], series="nightly", number=9, record_log="secret")
        plan = await begun(namespace, logs=["mine"])
        part = await segment(namespace, plan, "mine", b"x")
        edited = attrs.evolve(plan, series="nightly", number=10**9, record_log="secret")
        with pytest.raises(dlog.AccessDeniedError, match="log 'secret'"):
            await namespace.batches.attach(edited, [part], properties={"dlog.copy": "x"})
        with pytest.raises(dlog.AccessDeniedError, match="log 'secret'"):
            await namespace.batches.abandon(edited, [part])
        with pytest.raises(dlog.AccessDeniedError, match="log 'secret'"):
            await namespace.batches.abandon(
                attrs.evolve(plan, logs={**plan.logs, "secret": plan.logs["mine"]}), []
            )
        with pytest.raises(dlog.InvalidLogNameError):
            await namespace.batches.attach(attrs.evolve(plan, record_log="../ns/secret"), [part])
        assert part.ledger_id in await opened.client.ledger_ids()
        stored = json.loads((await opened.store.get("/ns/secret/<default>/dlog-properties")).value)
        assert stored["properties"] == {"owner": "them"}


async def test_properties_that_are_no_notes_of_a_pipeline_need_the_right_to_administer_the_log(
    cluster: DictCluster,
) -> None:
    rules = [Rule("root", "*", frozenset({Right.ADMIN})), Rule("test", "mine", frozenset({Right.WRITE}))]
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await make_logs(namespace, "mine")
        await namespace.policy.set(Policy(tuple(rules)))
        plan = await begun(namespace, logs=["mine"])
        part = await segment(namespace, plan, "mine", b"x")
        for key in ("owner", "dlog.shards", "dlog.shards.hash"):
            with pytest.raises(dlog.AccessDeniedError, match="no right to admin"):
                await namespace.batches.attach(plan, [part], properties={key: "1"})
        await namespace.batches.attach(plan, [part], properties={"dlog.copy": "note"})
        assert (await namespace.properties.get("mine")).values["dlog.copy"] == "note"


@pytest.mark.parametrize(
    "change",
    [
        {"record_count": 2**31},
        {"record_count": 0},
        {"last_txid": 2**63},
        {"txid": 2**63},
        {"last_slot_id": 2**63},
    ],
)
async def test_numbers_that_would_make_the_log_unreadable_are_refused(
    change: dict[str, Any], cluster: DictCluster
) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("a")
        plan = await begun(namespace, logs=["a"])
        part = await segment(namespace, plan, "a", b"x")
        with pytest.raises(ValueError, match="no writer makes a segment with these numbers"):
            await namespace.batches.attach(plan, [attrs.evolve(part, **change)])
        await namespace.batches.attach(plan, [part])
        assert await read_all(namespace, "a") == [b"x"]


def test_a_batch_without_a_series_has_no_property() -> None:
    plan = BatchPlan(series=None, number=0, record_log="a", logs={})
    with pytest.raises(ValueError, match="has no property"):
        _ = plan.property_key
