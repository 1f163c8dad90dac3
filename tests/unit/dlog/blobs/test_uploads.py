"""Uploads: a program that ends at any moment leaves no part of a blob, and no ledger of a blob is deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
import trio

import dlog
from dlog.blobs import BlobConflictError, BlobSweep, UploadLostError
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.client import open_ledger_client
from ledger.metadata_store.errors import ConnectionLostError, NoNodeError
from ledger.metadata_store.store import Check, Operation
from namespace.binding import new_binding
from namespace.bindings import bind
from namespace.blob_nodes import BlobNodes
from tests.fakes.dict_bookies import DictCluster
from tests.fakes.dict_namespace import CONFIG, Opened, WatchedStore, open_on
from tests.unit.dlog.test_expired_sessions import program

pytestmark = pytest.mark.usefixtures("small_pieces")
OLD, NEW = b"old" * 20, b"new content" * 7


class Interrupted(WatchedStore):
    """A session that loses the reply to one transaction."""

    replies_left: int | None = None  # before the one that is lost; None: none is

    async def commit(self, operations: Sequence[Operation]) -> None:
        await super().commit(operations)
        if self.replies_left is not None:
            self.replies_left -= 1
            if self.replies_left < 0:
                self.replies_left = None
                raise ConnectionLostError(operations[0].path, "the reply was lost")


@asynccontextmanager
async def other_program(cluster: DictCluster, *, dies: bool = True) -> AsyncIterator[Opened]:
    """A program of its own; at the end of the block its session is over, as if it had been killed."""
    store = Interrupted(cluster.tree)
    if await store.exists("/ns") is None:
        await bind(store, "/ns", new_binding("zk:2181", "/ledgers"))
    async with open_ledger_client(store, cluster.dial) as client:
        context = NamespaceContext("test:/ns", store, client, "/ns", CONFIG, client_id="other")
        try:
            yield Opened(Namespace(context), store, client)
        finally:
            await store.aclose()


async def named_ledgers(opened: Opened) -> list[int]:
    blobs = await opened.namespace.blobs.list()
    return sorted(piece.ledger_id for blob in blobs for piece in blob.pieces)


async def check_nothing_left(opened: Opened) -> None:
    assert (await opened.namespace.blobs.sweep()).live == 0
    assert await opened.client.ledger_ids() == await named_ledgers(opened)
    nodes = BlobNodes(opened.store, "/ns")
    for parent in (nodes.uploads_path, nodes.owners_path):
        with suppress(NoNodeError):  # a program that ended before its first write
            assert (await opened.store.children(parent)).names == ()


@pytest.mark.parametrize("replace", [False, True])
async def test_a_program_that_ends_before_any_write_leaves_the_old_state_or_the_new_one(
    cluster: DictCluster, replace: bool
) -> None:
    async with open_on(cluster) as opened:
        blobs = opened.namespace.blobs
        before = OLD if replace else None
        outcomes = []
        for writes in range(100):
            if replace:
                await blobs.put("a", OLD, replace=True)
            async with other_program(cluster) as victim:
                victim.store.writes_left = writes
                was_put = False
                with suppress(dlog.DLogError), trio.move_on_after(1):
                    await victim.namespace.blobs.put("a", NEW, replace=replace)
                    was_put = True
                victim.store.is_cut = True
            found = [await blobs.get(blob.name) for blob in await blobs.list()]
            now = found[0] if found else None
            assert now == NEW or (now == before and not was_put), (writes, found)
            await check_nothing_left(opened)
            assert [await blobs.get(blob.name) for blob in await blobs.list()] == found
            outcomes.append(now)
            if was_put and not victim.store.writes_left:
                break
            if not replace and now is not None:
                await blobs.delete("a")
        assert outcomes[0] == before
        assert outcomes[-1] == NEW
        assert outcomes.count(before) > 5


@pytest.mark.parametrize("replies", range(6))
async def test_a_blob_whose_reply_is_lost_is_put_once(cluster: DictCluster, replies: int) -> None:
    async with open_on(cluster) as opened, other_program(cluster) as other:
        assert isinstance(other.store, Interrupted)
        await opened.namespace.blobs.put("a", OLD)
        other.store.replies_left = replies
        put = await other.namespace.blobs.put("a", NEW, replace=True)
        assert await opened.namespace.blobs.describe("a") == put
        assert await opened.namespace.blobs.get("a") == NEW
        await check_nothing_left(opened)


async def test_a_deletion_whose_reply_is_lost_is_made_once(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, other_program(cluster) as other:
        assert isinstance(other.store, Interrupted)
        await opened.namespace.blobs.put("a", OLD)
        other.store.replies_left = 0
        await other.namespace.blobs.delete("a")
        assert await opened.namespace.blobs.list() == []
        await check_nothing_left(opened)


async def test_a_sweep_leaves_alone_what_a_program_still_writes(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, other_program(cluster) as other:
        async with other.namespace.blobs.open_writer("a") as writer:
            await writer.write(NEW)
            written = await opened.client.ledger_ids()
            assert await opened.namespace.blobs.sweep() == BlobSweep(uploads=0, ledgers=0, live=1)
            assert await opened.client.ledger_ids() == written
        assert await opened.namespace.blobs.get("a") == NEW


async def test_what_a_dead_program_wrote_is_deleted_by_the_next_put(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        async with other_program(cluster) as victim, trio.open_nursery() as nursery:

            async def write() -> None:
                async with victim.namespace.blobs.open_writer("a") as writer:
                    await writer.write(NEW)
                    victim.store.is_cut = True
                    nursery.cancel_scope.cancel()

            nursery.start_soon(write)
        left = await opened.client.ledger_ids()
        assert len(left) > 1
        await opened.namespace.blobs.put("b", OLD)
        assert not set(left) & set(await opened.client.ledger_ids())
        await check_nothing_left(opened)


async def test_a_program_whose_upload_was_swept_makes_no_blob_of_it(cluster: DictCluster) -> None:
    """It lives, and its session ended. The sweep deletes ledgers, so the blob must never be made."""
    async with open_on(cluster) as opened, other_program(cluster) as other:

        async def put_slowly() -> None:
            async with other.namespace.blobs.open_writer("a") as writer:
                await writer.write(NEW[:20])
                nodes = BlobNodes(opened.store, "/ns")
                (owner,) = (await opened.store.children(nodes.owners_path)).names
                await opened.store.delete(nodes.owner_path(owner))  # as the end of the session does
                assert await opened.namespace.blobs.sweep() == BlobSweep(uploads=1, ledgers=1, live=0)

        with pytest.raises(UploadLostError, match="put it again"):
            await put_slowly()
        assert await opened.namespace.blobs.list() == []
        await check_nothing_left(opened)


@pytest.mark.parametrize("writes_more", [False, True])
async def test_a_sweep_at_the_moment_of_publishing_deletes_no_ledger_of_the_blob(
    cluster: DictCluster, writes_more: bool
) -> None:
    """The sweep has read the upload, and saw no owner; the program continues; then the sweep continues."""
    async with open_on(cluster) as opened, other_program(cluster) as other:
        nodes = BlobNodes(opened.store, "/ns")
        has_continued, is_waiting, has_swept = trio.Event(), trio.Event(), trio.Event()
        exists = opened.store.exists

        async def before(kind: str, path: str) -> None:
            if kind == "put" and path.startswith(nodes.uploads_path):
                is_waiting.set()
                await has_continued.wait()

        async def no_owner(path: str, *, watch: trio.Event | None = None) -> object:
            return None if path.startswith(nodes.owners_path) else await exists(path, watch=watch)

        async def sweep() -> None:
            await opened.namespace.blobs.sweep()
            has_swept.set()

        async with trio.open_nursery() as nursery:
            async with other.namespace.blobs.open_writer("a") as writer:
                await writer.write(NEW[:20])
                opened.store.before, opened.store.exists = before, no_owner  # type: ignore[method-assign, assignment]
                nursery.start_soon(sweep)
                await is_waiting.wait()
                await writer.write(NEW[20:])
                if writes_more:
                    has_continued.set()
                    await has_swept.wait()
            has_continued.set()
        opened.store.exists = exists  # type: ignore[method-assign]
        assert await opened.namespace.blobs.get("a") == NEW
        await check_nothing_left(opened)


@pytest.mark.parametrize("writes_more", [False, True])
async def test_garbage_never_becomes_a_blob_again(cluster: DictCluster, writes_more: bool) -> None:
    """Its owner is still there, so only the version of the upload says that its ledgers are being deleted."""
    async with open_on(cluster) as opened, other_program(cluster) as other:
        nodes = BlobNodes(opened.store, "/ns")

        async def put_slowly() -> None:
            async with other.namespace.blobs.open_writer("a") as writer:
                await writer.write(NEW[:20])
                (blob_id,) = (await opened.store.children(nodes.uploads_path)).names
                path = nodes.upload_path(blob_id)
                value = (await opened.store.get(path)).value
                await opened.store.put(path, value.replace(b"writing", b"garbage"))
                if writes_more:
                    await writer.write(NEW[20:])

        with pytest.raises(UploadLostError):
            await put_slowly()
        assert await opened.namespace.blobs.list() == []
        await check_nothing_left(opened)


async def test_a_blob_that_is_replaced_twice_at_once_leaves_no_ledger(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, other_program(cluster) as other:
        await opened.namespace.blobs.put("a", OLD)
        nodes = BlobNodes(opened.store, "/ns")

        async def before(kind: str, path: str) -> None:
            if kind == "commit" and path.startswith(
                nodes.owners_path
            ):  # its first operation deletes the owner
                other.store.before = WatchedStore.before
                await opened.namespace.blobs.put("a", b"between", replace=True)

        other.store.before = before
        await other.namespace.blobs.put("a", NEW, replace=True)
        assert await opened.namespace.blobs.get("a") == NEW
        await check_nothing_left(opened)


async def test_of_two_programs_that_replace_a_blob_one_gets_a_conflict(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, other_program(cluster) as other:
        first = await opened.namespace.blobs.put("a", OLD)

        async def put_slowly() -> None:
            async with opened.namespace.blobs.open_writer("a", expect=first.blob_id) as writer:
                await writer.write(NEW)
                await other.namespace.blobs.put("a", b"faster", expect=first.blob_id)

        with pytest.raises(BlobConflictError):
            await put_slowly()
        assert await opened.namespace.blobs.get("a") == b"faster"
        await check_nothing_left(opened)


async def test_a_blob_that_fails_or_is_given_up_is_not_there(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        with suppress(KeyError):
            async with opened.namespace.blobs.open_writer("a") as writer:
                await writer.write(NEW)
                raise KeyError
        async with opened.namespace.blobs.open_writer("a") as writer:
            await writer.write(NEW)
            writer.give_up()
        assert writer.result is None
        with trio.CancelScope() as scope:
            async with opened.namespace.blobs.open_writer("a") as writer:
                await writer.write(NEW)
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert await opened.namespace.blobs.list() == []
        assert await opened.client.ledger_ids() == []
        await check_nothing_left(opened)


@pytest.mark.parametrize("begun", ["owners", "uploads"])
async def test_a_put_that_is_cancelled_at_its_beginning_leaves_nothing(
    cluster: DictCluster, begun: str
) -> None:
    async with open_on(cluster) as opened, other_program(cluster) as other:
        scope = trio.CancelScope()

        async def before(kind: str, path: str) -> None:
            if kind == "create" and f"/{begun}/" in path:
                other.store.before = WatchedStore.before
                scope.cancel()
                await trio.lowlevel.checkpoint()

        other.store.before = before
        with scope:
            await other.namespace.blobs.put("a", NEW)
        assert scope.cancelled_caught
        await check_nothing_left(opened)


async def test_a_program_whose_session_expires_says_so_and_can_put_again(
    cluster: DictCluster, autojump_clock: trio.testing.MockClock
) -> None:
    async with program(cluster, "one") as one:
        await one.store.create("/ns")

        async def put_slowly() -> None:
            async with one.namespace.blobs.open_writer("a") as writer:
                await writer.write(NEW[:5])
                await one.lose_session()

        with pytest.raises(UploadLostError):
            await put_slowly()
        await one.namespace.blobs.put("a", NEW)
        assert await one.namespace.blobs.get("a") == NEW
        assert await one.client.ledger_ids() == [
            piece.ledger_id for piece in (await one.namespace.blobs.describe("a")).pieces
        ]


async def test_a_damaged_upload_is_left_and_the_others_are_swept(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.blobs.put("a", OLD)
        path = BlobNodes(opened.store, "/ns").upload_path("f" * 32)
        await opened.store.create(path, b"{")
        await opened.namespace.blobs.delete("a")
        assert await opened.client.ledger_ids() == []
        assert await opened.store.exists(path) is not None


async def test_a_ledger_of_another_program_that_an_upload_names_is_kept(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        handle = await opened.client.create()
        await handle.close()
        put = await opened.namespace.blobs.put("a", b"x")
        nodes = BlobNodes(opened.store, "/ns")
        value = (await opened.store.get(nodes.blob_path("a"))).value
        forged = value.replace(b"[[%d, 1]]" % put.pieces[0].ledger_id, b"[[%d, 1]]" % handle.ledger_id)
        assert forged != value
        await opened.store.put(nodes.blob_path("a"), forged)
        await opened.namespace.blobs.delete("a")
        assert handle.ledger_id in await opened.client.ledger_ids()


async def test_the_search_for_orphans_finds_no_ledger_of_a_blob_or_of_an_upload(cluster: DictCluster) -> None:
    async with open_on(cluster, days_later=2) as opened:
        orphan = await opened.client.create()
        orphan.abandon()
        await opened.namespace.blobs.put("a", OLD)
        async with opened.namespace.blobs.open_writer("b") as writer:
            await writer.write(NEW)
            found = await opened.namespace.repair.find_orphans()
            assert [each.ledger_id for each in found] == [orphan.ledger_id]
            outcomes = await opened.namespace.repair.delete_orphans(await opened.client.ledger_ids())
            assert [each.ledger_id for each in outcomes if each.is_deleted] == [orphan.ledger_id]
        assert await opened.namespace.blobs.get("a") == OLD
        assert await opened.namespace.blobs.get("b") == NEW


async def test_a_ledger_is_in_its_upload_from_its_creation(cluster: DictCluster) -> None:
    """One transaction creates both, so that no kill leaves a ledger that nobody finds."""
    seen: list[Sequence[Operation]] = []

    class Recording(Interrupted):
        async def commit(self, operations: Sequence[Operation]) -> None:
            await super().commit(operations)
            seen.append(operations)

    async with open_on(cluster) as opened:
        store = Recording(cluster.tree)
        async with open_ledger_client(store, cluster.dial) as client:
            context = NamespaceContext("test:/ns", store, client, "/ns", CONFIG, client_id="x")
            await Namespace(context).blobs.put("a", NEW)
        created = [each for each in seen if each[0].path.startswith("/ledgers/")]
        assert len(created) == len(await opened.client.ledger_ids())
        assert all(any(isinstance(each, Check) for each in operations) for operations in created)
