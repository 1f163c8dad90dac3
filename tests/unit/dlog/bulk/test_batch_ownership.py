"""Which ledgers a batch attaches and deletes: those that say in the metadata store that it made them."""

# covers: dlog/bulk/attaching.py
# covers: dlog/bulk/ledgers.py

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import attrs
import pytest

import dlog
from dlog.bulk import BatchOvertakenError, BatchPlan, DetachedSegment, ForeignLedgerError
from dlog.namespace_handle import Namespace
from dlog.ownership import BatchMark, LedgerMark
from namespace.log_metadata import ALLOCATION_KEY
from namespace.log_nodes import LogNodes
from namespace.logs import create_log, open_log
from namespace.policy import Policy, Right, Rule
from namespace.segment_nodes import record_allocation
from tests.fakes.dict_bookies import DictCluster
from tests.fakes.dict_namespace import Opened, open_on, read_all, write_segments
from tests.unit.dlog.bulk.test_batches import NOW, begun, cluster, make_logs, segment
from tests.unit.dlog.ownership.test_deletion import exists, new_ledger

__all__ = ["cluster"]  # a fixture

NS = "/ns"


@pytest.fixture
async def opened(cluster: DictCluster) -> AsyncIterator[Opened]:
    """A namespace with the log ``mine``."""
    async with open_on(cluster) as opened:
        await opened.namespace.create_log("mine")
        yield opened


async def detached(opened: Opened, ledger_id: int, log: str = "mine") -> DetachedSegment:
    """What a caller says about a ledger of one record, whoever owns it."""
    size = (await opened.client.metadata(ledger_id)).length_bytes
    last = (await opened.client.metadata(ledger_id)).last_entry_id
    return DetachedSegment(
        log=log,
        ledger_id=ledger_id,
        txid=2**40,
        last_txid=2**40,
        record_count=1,
        last_entry_id=last,
        last_slot_id=0,
        size_bytes=size,
    )


async def unnumbered(namespace: Namespace, log: str = "mine") -> BatchPlan:
    plan = await namespace.batches.begin([log])
    assert plan is not None
    return plan


async def refused(opened: Opened, plan: BatchPlan, foreign: Sequence[DetachedSegment], match: str) -> None:
    """Neither attached nor deleted, alone and beside a segment of the batch."""
    namespace = opened.namespace
    own = await segment(namespace, plan, "mine", b"own")
    before = await opened.client.ledger_ids()
    for given in [*foreign], [own, *foreign]:
        with pytest.raises(ForeignLedgerError, match=match) as caught:
            await namespace.batches.attach(plan, given)
        assert "Nothing was attached, and nothing was deleted" in str(caught.value)
        assert caught.value.ledger_id in [each.ledger_id for each in foreign]
    assert await read_all(namespace, "mine") == []
    for given in [own, *foreign], [*foreign, own]:
        with pytest.raises(ForeignLedgerError, match=match):
            await namespace.batches.abandon(plan, given)
    assert await opened.client.ledger_ids() == before
    assert await namespace.batches.abandon(plan, [own]) == [own.ledger_id]


async def test_the_ledger_of_another_log_is_neither_attached_nor_deleted(opened: Opened) -> None:
    await write_segments(opened.namespace, "secret", 1)
    stolen = (await opened.namespace.segments("secret"))[0].ledger_id
    plan = await begun(opened.namespace, logs=["mine"])
    await refused(opened, plan, [await detached(opened, stolen)], "log 'secret' of namespace /ns, and not")
    assert await read_all(opened.namespace, "secret") == [b"0"]


async def test_the_batch_of_another_log_is_neither_attached_nor_deleted(opened: Opened) -> None:
    await make_logs(opened.namespace, "secret")
    theirs = await begun(opened.namespace, logs=["secret"])
    stolen = await segment(opened.namespace, theirs, "secret", b"x")
    plan = await begun(opened.namespace, logs=["mine"])
    await refused(opened, plan, [attrs.evolve(stolen, log="mine")], "made for log 'secret'")
    await opened.namespace.batches.attach(theirs, [stolen])


@pytest.mark.parametrize("plans", ["another number", "another series", "another token"])
async def test_the_ledger_of_another_batch_is_neither_attached_nor_deleted(
    opened: Opened, plans: str
) -> None:
    namespace = opened.namespace
    if plans == "another token":
        one, other = await unnumbered(namespace), await unnumbered(namespace)
    else:
        one = await begun(namespace, 2, logs=["mine"])
        series = "query" if plans == "another number" else "other"
        begun_too = await namespace.batches.begin(["mine"], series=series, number=1)
        assert begun_too is not None
        other = begun_too
    foreign = await segment(namespace, other, "mine", b"x")
    await refused(opened, one, [foreign], "made for another batch")


async def test_the_ledger_of_another_namespace_is_neither_attached_nor_deleted(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, open_on(cluster, "/other") as elsewhere:
        await opened.namespace.create_log("mine")
        log_id = (await open_log(LogNodes(opened.store, NS, "mine"))).log_id
        await create_log(LogNodes(elsewhere.store, "/other", "mine"), log_id=log_id)
        theirs = await begun(elsewhere.namespace, logs=["mine"])
        foreign = await segment(elsewhere.namespace, theirs, "mine", b"x")
        plan = await begun(opened.namespace, logs=["mine"])
        await refused(opened, plan, [foreign], "made for namespace /other, not for /ns")


@pytest.mark.parametrize("kind", ["none", "apache", "older batch", "own log", "damaged"])
async def test_a_ledger_without_the_mark_of_a_batch_is_neither_attached_nor_deleted(
    opened: Opened, kind: str
) -> None:
    plan = await begun(opened.namespace, logs=["mine"])
    mine = await open_log(LogNodes(opened.store, NS, "mine"))
    custom = {
        "none": None,
        "apache": {"application": b"distributedlog", "component": b"mine"},
        "older batch": LedgerMark(NS, "mine").custom | mine.allocation_stamp,
        "own log": LedgerMark(NS, "mine", mine.log_id).custom | mine.allocation_stamp,
        "damaged": plan.mark(NS, "mine").custom | mine.allocation_stamp | {"dlog.batch": b"{"},
    }[kind]
    ledger_id = await new_ledger(opened, custom, b"entry")
    await refused(opened, plan, [await detached(opened, ledger_id)], "no batch|not for a batch|not parse")


async def test_ledger_metadata_that_do_not_parse_are_refused(opened: Opened) -> None:
    plan = await begun(opened.namespace, logs=["mine"])
    part = await segment(opened.namespace, plan, "mine", b"x")
    await opened.store.put(opened.client._context.catalog.path(part.ledger_id), b"damaged")
    await refused(opened, plan, [part], "metadata do not parse")


@pytest.mark.parametrize("forgery", ["series", "number", "tokens", "versions", "log id", "created"])
async def test_a_plan_that_its_caller_edited_attaches_and_deletes_nothing_foreign(
    opened: Opened, forgery: str
) -> None:
    """Everything in the plan and in the segment says that the ledger is right; the store says otherwise."""
    namespace = opened.namespace
    await make_logs(namespace, "secret")
    await write_segments(namespace, "mine", 1)
    theirs = await begun(namespace, 3, logs=["secret"])
    stolen = await segment(namespace, theirs, "secret", b"x")
    honest = (await begun(namespace, 3, logs=["mine"])).logs["mine"]
    secret = theirs.logs["secret"]
    planned = {
        "versions": attrs.evolve(honest, versions=secret.versions),
        "log id": attrs.evolve(honest, log_id=secret.log_id),
        "created": attrs.evolve(honest, allocation_created_ms=honest.allocation_created_ms + 1),
    }.get(forgery, honest)
    plan = {
        "series": attrs.evolve(theirs, logs={"mine": planned}, record_log="mine"),
        "number": attrs.evolve(theirs, logs={"mine": planned}, record_log="mine", number=3),
        "tokens": attrs.evolve(theirs, logs={"mine": planned}, series=None, tokens=("", "x")),
    }.get(forgery, attrs.evolve(theirs, logs={"mine": planned}, record_log="mine"))
    forged = attrs.evolve(stolen, log="mine")
    with pytest.raises((ForeignLedgerError, BatchOvertakenError)):
        await namespace.batches.attach(plan, [forged])
    if forgery != "created":
        with pytest.raises(ForeignLedgerError):
            await namespace.batches.abandon(plan, [forged])
    else:
        assert await namespace.batches.abandon(plan, [forged]) == []
    assert await read_all(namespace, "mine") == [b"0"]
    await namespace.batches.attach(theirs, [stolen])
    assert await read_all(namespace, "secret") == [b"x"]


async def test_a_forged_mark_brings_a_ledger_only_into_the_log_that_its_maker_may_write(
    opened: Opened,
) -> None:
    namespace = opened.namespace
    await make_logs(namespace, "secret")
    plan = await begun(namespace, logs=["mine"])
    secret = await open_log(LogNodes(opened.store, NS, "secret"))
    forged = LedgerMark(NS, "secret", secret.log_id, BatchMark("query", 1)).custom
    ledger_id = await new_ledger(opened, forged | secret.allocation_stamp, b"entry")
    await refused(opened, plan, [await detached(opened, ledger_id)], "made for log 'secret'")
    await opened.namespace.delete_log("secret")
    assert await exists(opened, ledger_id), "no node of the log names it"


async def test_a_segment_that_was_written_for_an_older_state_of_the_log_is_refused(
    opened: Opened,
) -> None:
    """The sweep of orphans may delete it: its stamp says that it can never be attached."""
    namespace = opened.namespace
    overtaken = await begun(namespace, logs=["mine"])
    part = await segment(namespace, overtaken, "mine", b"x")
    await write_segments(namespace, "mine", 1)
    plan = await begun(namespace, logs=["mine"])
    with pytest.raises(ForeignLedgerError, match="another state of the log"):
        await namespace.batches.attach(plan, [attrs.evolve(part, txid=2**40, last_txid=2**40)])
    assert await namespace.batches.abandon(plan, [part]) == [part.ledger_id]


async def test_segments_that_are_in_the_log_are_not_attached_by_another_batch(opened: Opened) -> None:
    namespace = opened.namespace
    first = await begun(namespace, 1, logs=["mine"])
    there = await segment(namespace, first, "mine", b"1")
    await namespace.batches.attach(first, [there])
    second = await begun(namespace, 2, logs=["mine"])
    new = await segment(namespace, second, "mine", b"2")
    for given in [there], [there, new], [new, there]:
        with pytest.raises(ForeignLedgerError, match=r"another batch: query/1|are in the log already"):
            await namespace.batches.attach(second, given)
    assert await namespace.batches.last("query", "mine") == 1
    assert await namespace.batches.abandon(second, [there]) == []
    with pytest.raises(ValueError, match="given twice"):
        await namespace.batches.attach(second, [new, new])
    assert await read_all(namespace, "mine") == [b"1"]


async def test_a_repeated_batch_without_a_series_is_settled_after_a_part_of_it_was_purged(
    opened: Opened,
) -> None:
    namespace = opened.namespace
    plan = await unnumbered(namespace)
    parts = [await segment(namespace, plan, "mine", payload) for payload in (b"1", b"2")]
    await namespace.batches.attach(plan, parts)
    await namespace.truncate_log("mine", dlog.DLSN(2, 0, 0))
    await namespace.purge_log("mine")
    more = await segment(namespace, plan, "mine", b"3")
    with pytest.raises(ForeignLedgerError, match="are in the log already"):
        await namespace.batches.attach(plan, [*parts, more])
    again = await namespace.batches.attach(plan, parts)
    assert again.positions == {"mine": (dlog.DLSN(2, 0, 0), dlog.DLSN(2, 0, 0))}
    assert await read_all(namespace, "mine") == [b"2"]


async def test_a_log_that_was_deleted_and_created_again_is_another_log(opened: Opened) -> None:
    namespace = opened.namespace
    old = await begun(namespace, logs=["mine"])
    part = await segment(namespace, old, "mine", b"x")
    await namespace.delete_log("mine")
    await namespace.create_log("mine")
    plan = await begun(namespace, logs=["mine"])
    await refused(opened, plan, [part], "and 'mine' is another one")


async def test_a_renamed_and_a_promoted_log_take_batches(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("old")
        plan = await begun(namespace, logs=["old"])
        part = await segment(namespace, plan, "old", b"before")
        await namespace.rename_log("old", "mine")
        plan = await begun(namespace, logs=["mine"])
        moved = attrs.evolve(part, log="mine")
        with pytest.raises(ForeignLedgerError, match="another state"):
            await namespace.batches.attach(plan, [moved])
        await namespace.batches.attach(plan, [await segment(namespace, plan, "mine", b"x")])
        assert await read_all(namespace, "mine") == [b"x"]
        plan = await begun(namespace, 2, logs=["mine"])
        with pytest.raises(ForeignLedgerError, match="query/1"):
            await namespace.batches.abandon(plan, [moved])
        await namespace.truncate_log("mine", dlog.DLSN(9, 0, 0))
        await namespace.delete_log("mine")
        assert await opened.client.ledger_ids() == [part.ledger_id]


async def test_a_batch_in_a_log_of_apache_gives_the_log_an_identity(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await create_log(LogNodes(opened.store, NS, "mine"))
        plan = await begun(opened.namespace, logs=["mine"])
        assert plan.logs["mine"].log_id == (await open_log(LogNodes(opened.store, NS, "mine"))).log_id
        part = await segment(opened.namespace, plan, "mine", b"x")
        custom = (await opened.client.metadata(part.ledger_id)).custom
        assert LedgerMark.of(custom) == plan.mark(NS, "mine")
        assert custom.keys() >= {"dlog.log-id", "dlog.batch", ALLOCATION_KEY}
        await opened.namespace.batches.attach(plan, [part])
        assert await read_all(opened.namespace, "mine") == [b"x"]


async def test_an_administrator_adopts_unmarked_ledgers_that_no_log_names(opened: Opened) -> None:
    namespace = opened.namespace
    await make_logs(namespace, "source")
    donor = await begun(namespace, 1, logs=["source"])
    entries = await segment(namespace, donor, "source", b"x")
    async with await opened.client.open(entries.ledger_id) as reader:
        (entry,) = await reader.read_payloads(0, 0)
    mine = await open_log(LogNodes(opened.store, NS, "mine"))
    adopted = [
        await new_ledger(opened, custom, bytes(entry))
        for custom in (
            {"application": b"distributedlog"},
            None,
            LedgerMark(NS, "mine").custom,
            LedgerMark(NS, "mine", mine.log_id).custom,
        )
    ]
    plan = await unnumbered(namespace)
    given = [await detached(opened, each) for each in adopted]
    first = await namespace.batches.attach(plan, given, adopt_unmarked=True)
    assert await namespace.batches.attach(plan, given, adopt_unmarked=True) == first
    with pytest.raises(ForeignLedgerError):
        await namespace.batches.attach(plan, given)
    assert await read_all(namespace, "mine") == [b"x"] * 4
    await namespace.truncate_log("mine", dlog.DLSN(4, 0, 0))
    assert len(await namespace.purge_log("mine")) == 3
    assert await opened.client.ledger_ids() == [entries.ledger_id, adopted[3]]


@pytest.mark.parametrize("kind", ["another log", "a batch of another log", "named", "allocated", "damaged"])
async def test_an_administrator_adopts_no_ledger_that_a_log_or_a_batch_owns(
    opened: Opened, kind: str
) -> None:
    namespace = opened.namespace
    await make_logs(namespace, "secret")
    plan = await begun(namespace, logs=["mine"])
    secret = await open_log(LogNodes(opened.store, NS, "secret"))
    if kind == "another log":
        custom = LedgerMark(NS, "secret", secret.log_id).custom
    elif kind == "a batch of another log":
        custom = LedgerMark(NS, "secret", secret.log_id, BatchMark("query", 1)).custom
    else:
        custom = {"dlog.log": b"x"} if kind == "damaged" else {}
    ledger_id = await new_ledger(opened, custom, b"entry")
    if kind == "allocated":
        await record_allocation(secret, ledger_id)
    elif kind == "named":
        theirs = await begun(namespace, 9, logs=["secret"])
        await namespace.batches.attach(
            theirs, [await detached(opened, ledger_id, "secret")], adopt_unmarked=True
        )
    with pytest.raises(ForeignLedgerError):
        await namespace.batches.attach(plan, [await detached(opened, ledger_id)], adopt_unmarked=True)
    assert await exists(opened, ledger_id)


async def test_adopting_needs_the_right_to_administer_all_logs(opened: Opened) -> None:
    stray = await detached(opened, await new_ledger(opened, None, b"entry"))
    admin = frozenset({Right.ADMIN})
    # The principal of this namespace is "test".
    await opened.namespace.policy.set(Policy((Rule("operator", "*", admin), Rule("test", "mine", admin))))
    plan = await begun(opened.namespace, logs=["mine"])
    with pytest.raises(dlog.AccessDeniedError, match='"admin" on the logs'):
        await opened.namespace.batches.attach(plan, [stray], adopt_unmarked=True)
    assert await opened.namespace.segments("mine") == []


async def test_an_abandoned_ledger_that_its_log_can_still_take_is_kept(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of defence: the deletion itself sees that the log's node was not written."""
    namespace = opened.namespace
    plan = await begun(namespace, logs=["mine"])
    part = await segment(namespace, plan, "mine", b"x")
    put = opened.store.put

    async def forgetting(path: str, value: bytes, *, expected: int = -1) -> object:
        if path.endswith("/allocation"):
            return (await opened.store.get(path)).stat
        return await put(path, value, expected=expected)

    monkeypatch.setattr(opened.store, "put", forgetting)
    with pytest.raises(ForeignLedgerError, match="its log can still take it"):
        await namespace.batches.abandon(plan, [part])
    monkeypatch.undo()
    await namespace.batches.attach(plan, [part])
    assert await read_all(namespace, "mine") == [b"x"]


async def test_a_block_that_fails_deletes_only_the_ledger_that_it_made(opened: Opened) -> None:
    namespace = opened.namespace
    plan = await begun(namespace, logs=["mine"])
    kept = await segment(namespace, plan, "mine", b"y")
    async with namespace.batches.open_segment(plan, "mine") as writer:
        await writer.append_many([b"x"])
        writer.give_up()
    assert await opened.client.ledger_ids() == [kept.ledger_id]
    assert await namespace.batches.abandon(plan, [kept]) == [kept.ledger_id]
    assert await namespace.repair.find_orphans(older_than=NOW) == []
