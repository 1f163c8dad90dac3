"""Renaming a log of a namespace: what stays, what is refused, and what readers and later logs see."""

# covers: dlog/operations/administration.py
# covers: dlog/operations/calls.py
# covers: dlog/operations/opening.py
# covers: dlog/operations/policy.py
# covers: dlog/operations/properties.py

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

import dlog
import dlog.aio
import dlog.blocking
from dlog import Denial, OrphanOrigin
from dlog.promotion.nodes import begin
from dlog.promotion.record import SourcePhase, SourceRecord
from ledger.metadata_store.store import Create, Delete, MetadataStore
from ledger.policy import LogMark
from ledger.runtime.clock import wall_ms
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from namespace.origin import read_origin
from namespace.policy import Policy, Right, Rule
from namespace.segment_nodes import record_allocation
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import CONFIG, Opened, open_on, read_all, write_segments
from tests.fakes.log_paths import paths_of
from tests.fakes.promotion_world import LOG, TARGET, open_world, records_of, target_of

NOW = datetime.timedelta()
KEY = bytes(range(32))


class Keys:
    """One key."""

    def current(self) -> tuple[str, bytes]:
        return "a", KEY

    def key(self, key_id: str) -> bytes:
        return {"a": KEY}[key_id]


SECRET = attrs.evolve(
    CONFIG,
    writer=attrs.evolve(CONFIG.writer, encryption=Keys(), hash_chain=True),
    reader=attrs.evolve(CONFIG.reader, encryption=Keys()),
)


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


async def test_records_positions_cursors_and_settings_stay(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        payloads = await write_segments(namespace, "old", 3)
        await namespace.truncate_log("old", dlog.DLSN(2, 0, 0))
        await namespace.cursors("old").set("mine", dlog.DLSN(3, 0, 0))
        await namespace.retention.set("old", dlog.Retention(age_s=86_400))
        await namespace.properties.change("old", {"owner": "shop"})
        before = await namespace.describe_log("old")
        await namespace.rename_log("old", "shop/new")
        assert await namespace.list_logs() == ["shop/new"]
        assert await namespace.describe_log("shop/new") == attrs.evolve(before, name="shop/new")
        assert await read_all(namespace, "shop/new") == payloads[1:]
        assert [each.position for each in await namespace.cursors("shop/new").list()] == [dlog.DLSN(3, 0, 0)]
        assert await namespace.retention.get("shop/new") == dlog.Retention(age_s=86_400)
        assert (await namespace.properties.get("shop/new")).values == {"owner": "shop"}
        assert len(await namespace.purge_log("shop/new")) == 1
        assert (await namespace.repair.check("shop/new")).findings == ()
        await write_segments(namespace, "shop/new", 1, first=3)
        assert await read_all(namespace, "shop/new") == [*payloads[1:], b"3"]
        await namespace.delete_log("shop/new")
        assert await opened.client.ledger_ids() == []


async def test_a_sealed_log_stays_sealed(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        payloads = await write_segments(opened.namespace, "old", 2)
        await opened.namespace.seal_log("old")
        await opened.namespace.rename_log("old", "new")
        assert (await opened.namespace.describe_log("new")).is_sealed
        assert await read_all(opened.namespace, "new") == payloads
        with pytest.raises(dlog.EndOfStreamError):
            await write_segments(opened.namespace, "new", 1)


async def test_an_encrypted_log_with_a_hash_chain_goes_on_under_its_new_name(cluster: DictCluster) -> None:
    async with open_on(cluster, config=SECRET) as opened:
        namespace = opened.namespace
        await write_segments(namespace, "old", 2)
        head = (await namespace.repair.verify("old")).head
        await namespace.rename_log("old", "new")
        await write_segments(namespace, "new", 1, first=2)
        await namespace.rename_log("new", "newer")
        await write_segments(namespace, "newer", 1, first=3)
        assert await read_all(namespace, "newer") == [b"0", b"1", b"2", b"3"]
        found = await namespace.repair.verify("newer", expect_head=head)
        assert (found.problem, found.chained_records) == (None, 4)
        await namespace.rename_log("newer", "old")
        assert await read_all(namespace, "old") == [b"0", b"1", b"2", b"3"]
        assert (await namespace.repair.verify("old")).is_sound


async def test_a_later_log_of_the_old_name_is_bound_to_another_name(cluster: DictCluster) -> None:
    async with open_on(cluster, config=SECRET) as opened:
        namespace, store = opened.namespace, opened.store
        await write_segments(namespace, "old", 1)
        await namespace.rename_log("old", "new")
        await write_segments(namespace, "old", 1, first=7)
        assert await read_all(namespace, "old") == [b"7"]
        assert await read_all(namespace, "new") == [b"0"]
        # The entries of one log do not pass for those of the other, although both began with one name.
        of_new, of_old = (
            paths_of("/ns", log).segment_path("logrecs_000000000000000001") for log in ("new", "old")
        )
        ours, theirs = (await store.get(of_old)).value, (await store.get(of_new)).value
        await store.put(of_old, theirs)
        with pytest.raises(dlog.DecryptionError, match="moved from another log"):
            await read_all(namespace, "old")
        found = await namespace.repair.verify("old")
        assert found.problem is not None
        assert "hash chain" in found.problem.evidence
        await store.put(of_old, ours)
        assert (await namespace.repair.verify("old")).is_sound


async def rename_as_apache_does(store: MetadataStore, old: str, new: str) -> None:
    """In one transaction, without the lock; it leaves no origin."""
    tree = [f"/ns/{old}"]
    for path in tree:
        tree += [f"{path}/{name}" for name in (await store.children(path)).names]
    created = [
        Create(path.replace(f"/ns/{old}", f"/ns/{new}"), (await store.get(path)).value) for path in tree
    ]
    await store.commit([*created, *(Delete(path) for path in reversed(tree))])


async def test_plain_logs_that_apache_renamed_are_read_and_encrypted_ones_are_an_error(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster, config=SECRET) as opened, open_on(cluster) as plain:
        await write_segments(plain.namespace, "plain", 1)
        await write_segments(opened.namespace, "secret", 1)
        for log in ("plain", "secret"):
            await rename_as_apache_does(opened.store, log, f"{log}-2")
        assert await read_all(plain.namespace, "plain-2") == [b"0"]
        assert await plain.namespace.repair.find_orphans(older_than=NOW) == []
        with pytest.raises(dlog.DecryptionError, match="another program has renamed the log"):
            await read_all(opened.namespace, "secret-2")
        await rename_as_apache_does(opened.store, "secret-2", "secret")
        await opened.namespace.rename_log("secret", "secret-2")
        assert await read_all(opened.namespace, "secret-2") == [b"0"]


async def test_a_log_with_a_writer_is_refused_and_the_writer_goes_on(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, open_on(cluster) as other:
        async with opened.namespace.open_writer("old", create=True) as writer:
            await writer.append(b"0", txid=0)
            for namespace in (opened.namespace, other.namespace):
                with pytest.raises(dlog.LogLockedError):
                    await namespace.rename_log("old", "new")
            await writer.append(b"1", txid=1)
        await other.namespace.rename_log("old", "new")
        assert await read_all(other.namespace, "new") == [b"0", b"1"]


async def take_away(other: Opened, writer: dlog.LogWriter) -> None:
    """Rename the log of a writer whose lock is lost, and make another one of the old name."""
    await writer.append(b"0", txid=0)
    lock = paths_of("/ns", "old").lock_path
    (member,) = (await other.store.children(lock)).names
    await other.store.delete(f"{lock}/{member}")
    await other.namespace.rename_log("old", "new")
    await write_segments(other.namespace, "old", 1, first=7)


async def test_a_writer_that_is_stalled_can_add_nothing_after_the_rename(cluster: DictCluster) -> None:
    """Its session is over, and it does not know; its ledger is fenced before the log moves."""
    async with open_on(cluster) as opened, open_on(cluster) as other:
        async with opened.namespace.open_writer("old", create=True) as writer:
            await take_away(other, writer)
            with pytest.raises(dlog.WriteError):
                await writer.append(b"late", txid=1)
        assert await read_all(other.namespace, "new") == [b"0"]
        assert await read_all(other.namespace, "old") == [b"7"]


async def test_a_writer_does_not_reopen_another_log_that_has_its_name_now(cluster: DictCluster) -> None:
    async with open_on(cluster, config=SECRET) as opened, open_on(cluster, config=SECRET) as other:
        async with opened.namespace.open_writer("old", create=True) as writer:
            await take_away(other, writer)
            with pytest.raises(dlog.WriteError):
                await writer.append(b"late", txid=1)
            with pytest.raises(dlog.LogFencedError, match="another log of its name"):
                await writer.reopen()
        assert await read_all(other.namespace, "old") == [b"7"]


async def test_a_client_that_waits_for_the_lock_stops_the_rename(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, open_on(cluster) as other:
        await write_segments(opened.namespace, "old", 1)
        has_refused = trio.Event()

        async def wait() -> None:
            async with other.namespace.open_writer("old", lock_timeout_s=60):
                assert has_refused.is_set()

        async with trio.open_nursery() as nursery:
            begun: list[str] = []

            async def begin(kind: str, path: str) -> None:
                if kind == "commit" and not begun:
                    begun.append(path)
                    nursery.start_soon(wait)
                    while len((await other.store.children(paths_of("/ns", "old").lock_path)).names) < 2:
                        await trio.lowlevel.checkpoint()

            opened.store.before = begin
            with pytest.raises(dlog.LogRenameError, match="waits for its lock"):
                await opened.namespace.rename_log("old", "new")
            has_refused.set()


async def test_segments_that_a_dead_writer_left_are_completed_first(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        async with open_on(cluster) as dying:
            manager = dying.namespace.open_writer("old", create=True)
            writer = await manager.__aenter__()
            await writer.append(b"0", txid=0)
            dying.store.expire()
            await manager.__aexit__(None, None, None)
        (segment,) = await opened.namespace.segments("old")
        assert not segment.is_completed
        await opened.namespace.rename_log("old", "new")
        (segment,) = await opened.namespace.segments("new")
        assert segment.is_completed
        assert await read_all(opened.namespace, "new") == [b"0"]


async def test_open_readers_are_told_the_new_name(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, open_on(cluster) as other:
        await write_segments(opened.namespace, "old", 2)
        async with opened.namespace.open_reader("old") as reader:
            assert [(await anext(reader)).payload for _ in range(2)] == [b"0", b"1"]
            await other.namespace.rename_log("old", "shop/new")
            with pytest.raises(dlog.LogRenamedError, match="renamed to 'shop/new'") as caught:
                await anext(reader)
            assert caught.value.renamed_to == "shop/new"
            position = reader.position
        with pytest.raises(dlog.LogRenamedError):
            await read_all(opened.namespace, "old")
        with pytest.raises(dlog.LogRenamedError):
            await write_segments_to_existing(opened.namespace, "old")
        with pytest.raises(dlog.LogRenamedError):
            await opened.namespace.rename_log("old", "newer")
        await write_segments(opened.namespace, "shop/new", 1, first=2)
        assert position is not None
        async with opened.namespace.open_reader("shop/new", start=position, follow=False) as reader:
            assert [record.payload async for record in reader] == [b"2"]


async def write_segments_to_existing(namespace: dlog.Namespace, log: str) -> None:
    async with namespace.open_writer(log):
        pass


async def test_an_open_reader_does_not_read_a_later_log_of_the_old_name(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, open_on(cluster) as other:
        await write_segments(opened.namespace, "old", 1)
        async with opened.namespace.open_reader("old") as reader:
            assert (await anext(reader)).payload == b"0"
            looks = trio.Event()

            async def wait(_kind: str, _path: str) -> None:
                await looks.wait()

            opened.store.before = wait  # until there is another log of the old name
            await other.namespace.rename_log("old", "new")
            await write_segments(other.namespace, "old", 2, first=7)
            looks.set()
            with pytest.raises(dlog.LogMetadataError, match="created again"):
                await anext(reader)


async def test_an_existing_target_and_bad_names_are_refused(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await write_segments(namespace, "old", 1)
        await write_segments(namespace, "new", 1, first=7)
        with pytest.raises(dlog.LogExistsError, match="choose another new name"):
            await namespace.rename_log("old", "new")
        with pytest.raises(dlog.LogRenameError, match="its name already"):
            await namespace.rename_log("old", "old")
        with pytest.raises(dlog.LogNotFoundError):
            await namespace.rename_log("nothing", "something")
        for bad in ("", ".x", "a b", "a//b", "a/", "/a"):
            with pytest.raises(dlog.InvalidLogNameError):
                await namespace.rename_log("old", bad)
            with pytest.raises(dlog.InvalidLogNameError):
                await namespace.rename_log(bad, "other")
        assert await read_all(namespace, "old") == [b"0"]
        assert await read_all(namespace, "new") == [b"7"]


def rule(logs: str, *rights: Right, principal: str = "test") -> Rule:
    return Rule(principal, logs, frozenset(rights))


async def test_the_right_to_administer_both_names_is_needed(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await write_segments(namespace, "mine-1", 1)
        await write_segments(namespace, "theirs-1", 1)
        root = rule("*", Right.ADMIN, principal="root")
        await namespace.policy.set(Policy((root, rule("mine*", Right.ADMIN), rule("theirs*", Right.WRITE))))
        for old, new in [("mine-1", "theirs-2"), ("theirs-1", "mine-2"), ("theirs-1", "theirs-2")]:
            with pytest.raises(dlog.AccessDeniedError, match="no right to admin"):
                await namespace.rename_log(old, new)
        await namespace.rename_log("mine-1", "mine-2")


async def test_rules_that_hold_for_one_of_the_names_only_refuse_the_rename(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await write_segments(namespace, "secret", 1)
        all_logs = rule("*", Right.ADMIN)
        await namespace.policy.set(Policy((all_logs, rule("secret", Right.READ, principal="boss"))))
        with pytest.raises(dlog.LogRenameError, match="'boss' on 'secret'"):
            await namespace.rename_log("secret", "public")
        await namespace.policy.set(Policy((all_logs, rule("*c*", Right.READ, principal="boss"))))
        await namespace.rename_log("secret", "public")


async def test_denials_hold_after_a_rename_as_before(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.access.enable()
        await write_segments(namespace, "old", 1)
        await namespace.access.set("old", frozenset({Denial.TRUNCATE}))
        for new in ("new", "shop/new"):
            with pytest.raises(dlog.LogRenameError, match="deny other operations"):
                await namespace.rename_log("old", new)
        for denial in (Denial.DELETE, Denial.ACQUIRE):
            for log in ("old", "new"):
                await namespace.access.set(log, frozenset({denial}))
            with pytest.raises(dlog.AccessDeniedError, match=f"deny to {denial.name.lower()}"):
                await namespace.rename_log("old", "new")
        for log in ("old", "new"):
            await namespace.access.set(log, frozenset({Denial.TRUNCATE}))
        await namespace.rename_log("old", "new")
        with pytest.raises(dlog.AccessDeniedError):
            await namespace.truncate_log("new", dlog.DLSN(1, 0, 0))


async def test_a_federated_namespace_and_its_parts_refuse(cluster: DictCluster) -> None:
    async with (
        open_on(cluster, "/ns/.subnamespaces/NS_0000000001") as inside,
        open_on(cluster, federated=True) as above,
    ):
        await write_segments(inside.namespace, "old", 1)
        for opened in (inside, above):
            with pytest.raises(dlog.ConfigError, match="was not renamed"):
                await opened.namespace.rename_log("old", "new")
        assert await above.namespace.list_logs() == ["old"]


async def test_a_log_that_is_or_was_promoted_is_refused_on_both_sides(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world, world.process("one") as namespace:
        target = await target_of(namespace)
        copying = SourceRecord("1", TARGET, SourcePhase.COPYING)
        await begin(namespace.context.nodes(LOG), copying)
        with pytest.raises(dlog.PromotionError, match="being promoted to"):
            await namespace.rename_log(LOG, "new")
        await namespace.promotion.promote(LOG, TARGET)
        with pytest.raises(dlog.LogMovedError):
            await namespace.rename_log(LOG, "new")
        with pytest.raises(dlog.LogRenameError, match="was moved"):
            await target.rename_log(LOG, "new")
        assert await records_of(namespace) == world.acknowledged


async def test_a_promotion_brings_the_origin_along(autojump_clock: trio.testing.MockClock) -> None:
    async with open_world() as world, world.process("one") as namespace:
        target = await target_of(namespace)
        await namespace.rename_log(LOG, "first")
        await write_segments(namespace, LOG, 1)
        for log, origin in [("first", LOG), (LOG, f"{LOG}<1>")]:
            await namespace.promotion.promote(log, TARGET)
            assert await read_origin(target.context.nodes(log)) == origin
        assert await records_of(namespace, "first") == world.acknowledged


async def test_no_ledger_of_a_renamed_log_is_an_orphan(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await write_segments(namespace, "old-4", 2)
        await namespace.rename_log("old-4", "new-4")
        await write_segments(namespace, "new-4", 1, first=2)
        await write_segments(namespace, "old-4", 1, first=7)
        # The numbers in names and in their nodes are no ids of ledgers.
        ids = await opened.client.ledger_ids()
        leaked = await opened.client.create(custom=LogMark("/ns", "old-4").custom)
        leaked.abandon()
        found = await namespace.repair.find_orphans(older_than=NOW)
        assert [each.ledger_id for each in found] == [leaked.ledger_id]
        assert found[0].origin is OrphanOrigin.UNPROVEN
        outcomes = await namespace.repair.delete_orphans([*ids, leaked.ledger_id], older_than=NOW)
        assert [each.ledger_id for each in outcomes if each.is_deleted] == [leaked.ledger_id]
        assert await read_all(namespace, "new-4") == [b"0", b"1", b"2"]
        assert await read_all(namespace, "old-4") == [b"7"]


@pytest.mark.parametrize("is_created_again", [False, True])
async def test_a_log_that_is_renamed_before_the_last_look_of_a_deletion_keeps_its_ledgers(
    cluster: DictCluster, is_created_again: bool
) -> None:
    """A writer puts the ledger into its log after the search, and the log is renamed."""
    async with open_on(cluster) as opened, open_on(cluster) as other:
        await other.namespace.create_log("old")
        metadata = await open_log(LogNodes(other.store, "/ns", "old"))
        handle = await other.client.create(custom=LogMark("/ns", "old").custom | metadata.allocation_stamp)
        handle.abandon()
        ledger_path = opened.client._context.catalog.path(handle.ledger_id)
        steps = ["register", "rename"]

        async def before(kind: str, path: str) -> None:
            if kind != "get" or not steps:
                return
            if path == ledger_path and steps[0] == "register":  # the search has read all logs
                steps.pop(0)
                await record_allocation(metadata, handle.ledger_id)
            elif path == paths_of("/ns", "old").allocation_path and steps == ["rename"]:
                steps.pop(0)
                begun_ms = wall_ms()
                while wall_ms() == begun_ms:  # the next log has another time of creation
                    await trio.lowlevel.checkpoint()
                await other.namespace.rename_log("old", "new")
                if is_created_again:
                    await other.namespace.create_log("old")

        opened.store.before = before
        (outcome,) = await opened.namespace.repair.delete_orphans([handle.ledger_id], older_than=NOW)
        assert not steps
        assert (outcome.is_deleted, outcome.reason) == (
            False,
            "its log was created, deleted or renamed meanwhile; try again",
        )
        assert (await open_log(LogNodes(other.store, "/ns", "new"))).allocated_ledger_id == handle.ledger_id


@pytest.mark.slow
async def test_the_other_faces_rename_too(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"

    def block() -> None:
        with dlog.blocking.open_namespace(uri) as namespace:
            namespace.create_log("one")
            namespace.rename_log("one", "two", lock_timeout_s=1)
            assert namespace.list_logs() == ["two"]

    async def loop() -> None:
        async with dlog.aio.open_namespace(uri) as namespace:
            await namespace.rename_log("two", "three")
            assert await namespace.list_logs() == ["three"]

    await trio.to_thread.run_sync(block)
    await trio.to_thread.run_sync(lambda: asyncio.run(loop()))
