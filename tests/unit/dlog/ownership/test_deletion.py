"""Which ledgers a log may delete: its own, by the metadata store, whatever a caller says."""

# covers: dlog/ownership/identity.py

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import attrs
import pytest

import dlog
from dlog.errors import LogUnavailableError
from dlog.ownership import LedgerMark, MadeHere, NamedByLog, ReplacedAllocation, delete_ledger
from ledger.digest import DigestType
from ledger.errors import NoSuchLedgerError
from namespace.log_identity import new_log_id
from namespace.log_nodes import LogNodes
from namespace.logs import create_log, open_log
from namespace.segment_nodes import complete_segment, list_segments, record_allocation, start_segment
from namespace.segments.segment import LogSegment, encode_segment
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import Opened, open_on, read_all, write_segments
from tests.fakes.log_paths import paths_of

NS = "/ns"


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


async def new_ledger(opened: Opened, custom: dict[str, bytes] | None = None, *entries: bytes) -> int:
    """A closed ledger with this custom metadata."""
    async with await opened.client.create(
        ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32, custom=custom
    ) as handle:
        for entry in entries:
            await handle.append(entry)
        await handle.close()
    return handle.ledger_id


async def exists(opened: Opened, ledger_id: int) -> bool:
    return ledger_id in await opened.client.ledger_ids()


async def newest_ledger(opened: Opened, log: str) -> tuple[int, str]:
    """The ledger of a log's newest segment, and the name of the segment's node."""
    segment = (await list_segments(LogNodes(opened.store, NS, log))).segments[-1]
    return segment.ledger_id, segment.name


async def plant(opened: Opened, log: str, ledger_id: int) -> None:
    """Have the first segment of a log name another ledger."""
    first = (await list_segments(LogNodes(opened.store, NS, log))).segments[0]
    path = paths_of(NS, log).segment_path(first.name)
    await opened.store.put(path, encode_segment(attrs.evolve(first, ledger_id=ledger_id)))


async def test_a_ledger_that_a_segment_of_the_log_names_is_deleted(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        ledger_id, name = await newest_ledger(opened, "log")
        claim = NamedByLog.as_segment(LogNodes(opened.store, NS, "log"), name)
        assert await delete_ledger(opened.client, ledger_id, claim) is None
        assert not await exists(opened, ledger_id)
        assert await delete_ledger(opened.client, ledger_id, claim) is None, "it is gone already"


@pytest.mark.parametrize("node", ["inprogress_000000000000000001", "logrecs_000000000000000002", "other"])
async def test_a_ledger_that_the_node_does_not_name_is_kept(cluster: DictCluster, node: str) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 2)
        ledger_id = (await list_segments(LogNodes(opened.store, NS, "log"))).segments[0].ledger_id
        if node == "other":
            await opened.store.create(paths_of(NS, "log").segment_path(node), b"\xff")
        reason = await delete_ledger(
            opened.client, ledger_id, NamedByLog.as_segment(LogNodes(opened.store, NS, "log"), node)
        )
        assert reason is not None
        assert "does not name it" in reason
        assert await exists(opened, ledger_id)


async def test_a_ledger_of_another_log_is_kept_although_a_node_names_it(
    cluster: DictCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "secret", 1)
        await write_segments(opened.namespace, "mine", 2)
        stolen, _ = await newest_ledger(opened, "secret")
        await plant(opened, "mine", stolen)
        with caplog.at_level(logging.WARNING):
            await opened.namespace.delete_log("mine")
        assert "it was made for log 'secret' of namespace /ns" in caplog.text
        assert f"`dlog ledger show {stolen}`" in caplog.text
        assert await opened.namespace.list_logs() == ["secret"]
        assert await read_all(opened.namespace, "secret") == [b"0"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["purge", "retain", "allocation", "recovery", "repair"])
async def test_no_step_of_a_log_deletes_a_ledger_of_another_log(cluster: DictCluster, step: str) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.create_log("secret")
        metadata = await open_log(LogNodes(opened.store, NS, "secret"))
        stolen = await new_ledger(opened, LedgerMark(NS, "secret", metadata.log_id).custom)
        await write_segments(namespace, "mine", 3)
        if step in ("purge", "retain"):
            await plant(opened, "mine", stolen)
            await namespace.truncate_log("mine", dlog.DLSN(3, 0, 0))
            purged = await (
                namespace.purge_log("mine") if step == "purge" else namespace.retention.apply("mine")
            )
            assert purged[0].ledger_id == stolen
        else:
            mine = await open_log(LogNodes(opened.store, NS, "mine"))
            mine = await record_allocation(mine, stolen)
            if step == "allocation":
                await write_segments(namespace, "mine", 1, first=3)
            else:
                segment = LogSegment(segment_seqno=4, ledger_id=stolen, first_txid=3)
                await start_segment(mine, segment)
                if step == "recovery":
                    await namespace.repair.recover("mine")
                else:
                    await namespace.repair.apply("mine")
        assert await exists(opened, stolen)
        assert stolen not in [each.ledger_id for each in await namespace.segments("mine")]
        assert (await namespace.repair.check("mine")).is_consistent


@pytest.mark.parametrize(
    "custom",
    [None, {"application": b"distributedlog", "component": b"log"}, LedgerMark(NS, "log").custom],
    ids=["none", "apache", "older"],
)
async def test_ledgers_without_an_identity_are_purged_if_the_log_names_them(
    cluster: DictCluster, custom: dict[str, bytes] | None
) -> None:
    async with open_on(cluster) as opened:
        await create_log(LogNodes(opened.store, NS, "log"))  # as Apache does: without an identity
        metadata = await open_log(LogNodes(opened.store, NS, "log"))
        ledgers = []
        for seqno in range(1, 4):
            ledgers.append(await new_ledger(opened, custom, b"not read"))
            segment = LogSegment(segment_seqno=seqno, ledger_id=ledgers[-1], first_txid=seqno)
            metadata = await start_segment(metadata, segment)
            completed = segment.completed(
                last_txid=seqno,
                record_count=1,
                last_entry_id=0,
                last_slot_id=0,
                completed_ms=1,
                start_sequence_id=seqno - 1,
            )
            metadata = await complete_segment(metadata, segment, completed)
        await opened.namespace.truncate_log("log", dlog.DLSN(3, 0, 0))
        await opened.namespace.purge_log("log")
        assert await opened.client.ledger_ids() == ledgers[2:]
        await opened.namespace.delete_log("log")
        assert await opened.client.ledger_ids() == []


async def test_a_ledger_with_a_damaged_mark_is_kept(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 2)
        for custom in {"dlog.log": b"log"}, LedgerMark(NS, "log", "x" * 32).custom:
            kept = await new_ledger(opened, custom)
            await plant(opened, "log", kept)
            name = (await list_segments(LogNodes(opened.store, NS, "log"))).segments[0].name
            claim = NamedByLog.as_segment(LogNodes(opened.store, NS, "log"), name)
            assert "does not parse" in (await delete_ledger(opened.client, kept, claim) or "")
            assert await exists(opened, kept)


async def test_metadata_that_do_not_parse_keep_the_ledger(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        ledger_id, _ = await newest_ledger(opened, "log")
        await opened.store.put(opened.client._context.catalog.path(ledger_id), b"damaged")
        await opened.namespace.delete_log("log")
        assert await exists(opened, ledger_id)
        assert await opened.namespace.list_logs() == []


async def test_a_log_that_was_deleted_and_created_again_has_another_identity(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        before = await open_log(LogNodes(opened.store, NS, "log"))
        old = await new_ledger(opened, LedgerMark(NS, "log", before.log_id).custom)
        await opened.namespace.delete_log("log")
        await write_segments(opened.namespace, "log", 2)
        assert (await open_log(LogNodes(opened.store, NS, "log"))).log_id not in (None, before.log_id)
        await plant(opened, "log", old)
        await opened.namespace.delete_log("log")
        assert await opened.client.ledger_ids() == sorted({old, *await opened.client.ledger_ids()})
        assert await exists(opened, old)


async def test_a_renamed_log_deletes_its_ledgers_and_the_next_log_of_its_name_does_not(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "old", 3)
        log_id = (await open_log(LogNodes(opened.store, NS, "old"))).log_id
        await opened.namespace.rename_log("old", "new")
        assert (await open_log(LogNodes(opened.store, NS, "new"))).log_id == log_id
        await write_segments(opened.namespace, "old", 2, first=7)
        moved, _ = await newest_ledger(opened, "new")
        await plant(opened, "old", moved)
        await opened.namespace.delete_log("old")
        assert await read_all(opened.namespace, "new") == [b"0", b"1", b"2"]
        await opened.namespace.truncate_log("new", dlog.DLSN(3, 0, 0))
        await opened.namespace.purge_log("new")
        assert await exists(opened, moved)
        await opened.namespace.delete_log("new")
        assert not await exists(opened, moved)


async def test_a_log_that_apache_renamed_gets_its_identity_back_from_its_ledgers(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 3)
        log_id = (await open_log(LogNodes(opened.store, NS, "log"))).log_id
        await opened.store.put(paths_of(NS, "log").root_path, b"")  # what Apache's library writes
        await opened.namespace.truncate_log("log", dlog.DLSN(2, 0, 0))
        assert len(await opened.namespace.purge_log("log")) == 1
        await write_segments(opened.namespace, "log", 1, first=3)
        assert (await open_log(LogNodes(opened.store, NS, "log"))).log_id == log_id
        await opened.namespace.delete_log("log")
        assert await opened.client.ledger_ids() == []


async def test_a_log_without_identity_gets_one_with_its_first_ledger_and_no_write_more_afterwards(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster) as opened:
        await create_log(LogNodes(opened.store, NS, "log"))
        writes: list[str] = []

        async def before(kind: str, path: str) -> None:
            if kind == "put" and path == paths_of(NS, "log").root_path:
                writes.append(path)

        opened.store.before = before
        await write_segments(opened.namespace, "log", 3)
        assert len(writes) == 1
        log_id = (await open_log(LogNodes(opened.store, NS, "log"))).log_id
        for segment in await opened.namespace.segments("log"):
            custom = (await opened.client.metadata(segment.ledger_id)).custom
            assert LedgerMark.of(custom) == LedgerMark(NS, "log", log_id)
        await write_segments(opened.namespace, "ours", 2)
        assert len(writes) == 1, "a log that we create has one from the start"


async def test_a_ledger_that_allocation_named_is_deleted_only_after_the_node_was_written(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster) as opened:
        await create_log(LogNodes(opened.store, NS, "log"))
        left = await new_ledger(opened)
        before = await record_allocation(await open_log(LogNodes(opened.store, NS, "log")), left)
        claim = ReplacedAllocation(before)
        assert "was not written since" in (await delete_ledger(opened.client, left, claim) or "")
        other = await new_ledger(opened)
        assert "was not written since" in (await delete_ledger(opened.client, other, claim) or "")
        await record_allocation(before, other)
        assert "was not written since" in (await delete_ledger(opened.client, other, claim) or "")
        stray = await new_ledger(opened)
        assert "was not written since" in (await delete_ledger(opened.client, stray, claim) or "")
        assert await delete_ledger(opened.client, left, claim) is None
        assert await opened.client.ledger_ids() == [other, stray]
        claim = ReplacedAllocation(await open_log(LogNodes(opened.store, NS, "log")))
        await opened.namespace.rename_log("log", "new")
        assert "was not written since" in (await delete_ledger(opened.client, other, claim) or "")


async def test_an_allocated_ledger_is_deleted_with_its_log(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await create_log(LogNodes(opened.store, NS, "log"))
        left = await new_ledger(opened)
        await record_allocation(await open_log(LogNodes(opened.store, NS, "log")), left)
        await opened.namespace.delete_log("log")
        assert not await exists(opened, left)


async def test_only_the_creator_deletes_a_ledger_that_no_node_names(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        mark = LedgerMark(NS, "log", new_log_id()).custom
        made = await new_ledger(opened, mark)
        other = MadeHere(LedgerMark(NS, "log", new_log_id()).custom)
        assert "not that of its creator" in (await delete_ledger(opened.client, made, other) or "")
        assert await delete_ledger(opened.client, made, MadeHere(mark)) is None
        assert await opened.client.ledger_ids() == []


async def test_a_ledger_that_changes_after_the_check_is_checked_again(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        catalog, changes, checks = opened.client._context.catalog, 1, 0
        made = await new_ledger(opened)

        class Changing:
            """A claim that holds while another client changes the ledger."""

            async def refusal(self, ledger: object) -> str | None:
                nonlocal checks
                checks += 1
                if checks <= changes:
                    now = await catalog.get(made)
                    await catalog.put(made, now.metadata, expected=now.version)
                return None

        changes = 1_000
        with pytest.raises(LogUnavailableError, match="20 times"):
            await delete_ledger(opened.client, made, Changing())
        assert await exists(opened, made)
        checks, changes = 0, 1
        assert await delete_ledger(opened.client, made, Changing()) is None
        assert checks == 2
        with pytest.raises(NoSuchLedgerError):
            await opened.client.stored(made)


async def test_a_log_of_a_federated_namespace_is_purged_in_its_sub_namespace(cluster: DictCluster) -> None:
    async with open_on(cluster, "/federated", federated=True, logs_max=0) as whole:
        await whole.store.create("/federated/.subnamespaces", b"")
        await write_segments(whole.namespace, "log", 3)
        location = await whole.namespace.log_location("log")
    assert location.startswith("/federated/.subnamespaces/")
    async with open_on(cluster, location) as part:
        await part.namespace.truncate_log("log", dlog.DLSN(3, 0, 0))
        assert len(await part.namespace.purge_log("log")) == 2
        assert len(await part.client.ledger_ids()) == 1
