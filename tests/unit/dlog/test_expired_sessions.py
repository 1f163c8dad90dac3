"""A namespace whose session with the metadata store expires: readers, cursors and writers go on."""

# covers: dlog/retry_policy.py

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import dlog
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from dlog.retry_policy import is_store_away
from ledger.catalog.catalog import StoredLedger
from ledger.causes import cause_of
from ledger.client import LedgerClient, open_ledger_client
from ledger.handle import WriteHandle
from ledger.ledger_spec import LedgerSpec
from ledger.metadata_store.errors import ConnectionLostError, StoreDiskError
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.store import SessionState
from namespace.policy import Policy, Right, Rule
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.sessions_by_hand import Sessions

CONFIG = dlog.NamespaceConfig(
    writer=dlog.WriterConfig(lock_timeout_s=5, close_timeout_s=5), reader=dlog.ReaderConfig()
).for_scheme("distributedlog")


@attrs.frozen
class Program:
    """An application: its namespace, and its sessions."""

    namespace: Namespace
    sessions: Sessions
    store: RenewingStore
    client: LedgerClient

    async def lose_session(self) -> None:
        """Let the session expire; return when the next one is open."""
        self.sessions.expire()
        await trio.lowlevel.checkpoint()
        await self.store.wait_state_change(SessionState.SUSPENDED)


@asynccontextmanager
async def program(cluster: DictCluster, name: str) -> AsyncIterator[Program]:
    sessions = Sessions(cluster.tree)
    async with (
        sessions.open_store() as store,
        open_ledger_client(store, cluster.dial) as client,
    ):
        namespace = Namespace(NamespaceContext(f"test:{name}", store, client, "/ns", CONFIG, client_id=name))
        with trio.fail_after(600):
            yield Program(namespace, sessions, store, client)


@asynccontextmanager
async def two_programs() -> AsyncIterator[tuple[Program, Program]]:
    async with open_cluster() as cluster, program(cluster, "one") as one, program(cluster, "two") as two:
        await one.store.create("/ns")
        await one.namespace.create_log("log")
        yield one, two


async def payloads(namespace: Namespace) -> list[bytes]:
    async with namespace.open_reader("log", follow=False) as reader:
        return [record.payload async for record in reader]


async def test_a_follower_gets_each_record_once_and_in_order_over_expired_sessions(
    autojump_clock: MockClock,
) -> None:
    wanted = [b"%d" % number for number in range(40)]
    seen: list[bytes] = []
    async with two_programs() as (one, two), trio.open_nursery() as nursery:

        async def follow() -> None:
            async with two.namespace.open_reader("log") as reader:
                async for record in reader:
                    seen.append(record.payload)
                    if len(seen) == len(wanted):
                        return

        nursery.start_soon(follow)
        small = attrs.evolve(CONFIG.writer, segment_bytes_max=200)  # a new segment after a few records
        async with one.namespace.open_writer("log", config=small) as writer:
            for number, payload in enumerate(wanted):
                await writer.append(payload)
                if number % 10 == 5:
                    two.sessions.failures = number % 3  # of attempts to open the next session
                    two.sessions.expire()
    assert seen == wanted


async def test_a_reader_that_lost_its_session_sees_what_happened_meanwhile(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, two):
        async with one.namespace.open_writer("log") as writer:
            await writer.append(b"0")
        async with two.namespace.open_reader("log") as reader:
            assert (await anext(reader)).payload == b"0"
            two.sessions.failures = 10**6
            two.sessions.expire()
            for number in range(1, 4):  # three segments that no watch tells of
                async with one.namespace.open_writer("log") as writer:
                    await writer.append(b"%d" % number)
            two.sessions.failures = 0
            assert [(await anext(reader)).payload for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_reader_notices_a_log_that_was_created_again_while_it_had_no_session(
    autojump_clock: MockClock,
) -> None:
    async with two_programs() as (one, two):
        async with one.namespace.open_writer("log") as writer:
            await writer.append(b"0")
        async with two.namespace.open_reader("log") as reader:
            assert (await anext(reader)).payload == b"0"
            two.sessions.failures = 10**6
            two.sessions.expire()
            await one.namespace.delete_log("log")
            async with one.namespace.open_writer("log", create=True) as writer:
                await writer.append(b"another log")
            two.sessions.failures = 0
            with pytest.raises(dlog.LogMetadataError, match="deleted and created again"):
                await anext(reader)


async def test_a_cursor_is_committed_in_the_next_session(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, two):
        async with one.namespace.open_writer("log") as writer:
            await writer.append_many([b"0", b"1", b"2"])
        async with two.namespace.open_reader("log", cursor="c", follow=False) as reader:
            await anext(reader)
            await reader.commit()
            two.sessions.failures = 2
            two.sessions.expire()
            await anext(reader)
            await reader.commit()
        async with two.namespace.open_reader("log", cursor="c", follow=False) as reader:
            assert (await anext(reader)).payload == b"2"


async def test_a_writer_that_lost_its_session_does_not_claim_that_another_took_over(
    autojump_clock: MockClock,
) -> None:
    async with two_programs() as (one, _):
        async with one.namespace.open_writer("log") as writer:
            await writer.append(b"0")
            await one.lose_session()
            await wait_all_tasks_blocked()
            with pytest.raises(dlog.LogLockLostError) as caught:
                await writer.append(b"1")
            assert "the session with the metadata store expired" in str(caught.value)
            assert "another writer may have taken the lock" in str(caught.value)
            assert "taken over" not in str(caught.value)
            assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
        async with one.namespace.open_writer("log"):
            pass  # recovers, so that the last record is visible
        assert await payloads(one.namespace) == [b"0"]


async def test_a_writer_that_lost_its_session_changes_no_segment_in_the_next_one(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = LedgerClient.create_from
    async with two_programs() as (one, two), one.namespace.open_writer("log") as writer:

        async def create_slowly(client: LedgerClient, spec: LedgerSpec, **options: Any) -> WriteHandle:
            await one.lose_session()
            return await create(client, spec, **options)

        monkeypatch.setattr(LedgerClient, "create_from", create_slowly)
        with pytest.raises(dlog.LogLockLostError):
            await writer.append(b"0")
        await wait_all_tasks_blocked()
        assert (await two.store.get("/ns/log/<default>/allocation")).stat.version == 0


async def test_a_deletion_whose_session_expires_touches_nothing_of_the_writer_that_took_the_lock(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = LedgerClient.delete_unchanged
    async with two_programs() as (one, two), AsyncExitStack() as stack:
        for _ in range(2):
            async with one.namespace.open_writer("log") as writer:
                await writer.append(b"to be deleted")
        writers: list[dlog.LogWriter] = []

        async def delete_slowly(client: LedgerClient, seen: StoredLedger) -> bool:
            assert await delete(client, seen)
            if not writers:
                await one.lose_session()
                writers.append(await stack.enter_async_context(two.namespace.open_writer("log")))
                await writers[0].append(b"new")
            return True

        monkeypatch.setattr(LedgerClient, "delete_unchanged", delete_slowly)
        with pytest.raises(dlog.LogLockedError, match="two holds its lock"):
            await one.namespace.delete_log("log")
        assert [each.segment_seqno for each in await two.namespace.segments("log")] == [1, 2, 3]
        last = await writers[0].append(b"newer")
        await writers[0].flush()
        assert await two.namespace.last_dlsn("log") == last


async def test_a_full_disk_is_no_store_that_comes_back(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, _):
        full = dlog.LogUnavailableError("cannot be reached")
        full.__cause__ = StoreDiskError("/ns", "the disk is full")
        away = dlog.LogUnavailableError("cannot be reached")
        away.__cause__ = ConnectionLostError("/ns")
        assert [is_store_away(each, one.store) for each in (full, away)] == [False, True]


async def test_a_deleted_lock_node_is_told_as_such(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, two), one.namespace.open_writer("log") as writer:
        await writer.append(b"0")
        lock = "/ns/log/<default>/lock"
        (member,) = (await two.store.children(lock)).names
        await two.store.delete(f"{lock}/{member}")
        await wait_all_tasks_blocked()
        with pytest.raises(dlog.LogLockLostError, match="the lock's node was deleted"):
            await writer.append(b"1")


async def test_records_in_flight_get_one_outcome_and_a_reopened_writer_goes_on(
    autojump_clock: MockClock,
) -> None:
    async with two_programs() as (one, two):
        async with one.namespace.open_writer("log") as writer:
            await writer.append(b"durable")
            pendings = [writer.submit(b"%d" % number) for number in range(5)]
            await one.lose_session()
            await writer.reopen()
            outcomes = [pending.outcome for pending in pendings]
            assert dlog.RecordOutcome.PENDING not in outcomes
            assert dlog.RecordOutcome.UNKNOWN not in outcomes
            for pending in pendings:
                try:
                    await pending
                except dlog.WriteError:
                    pass
            last = await writer.append(b"after")
            assert await writer.append_after(b"conditional", last) > last
            await writer.flush()
        kept = [b"%d" % n for n, each in enumerate(outcomes) if each is dlog.RecordOutcome.DURABLE]
        assert await payloads(two.namespace) == [b"durable", *kept, b"after", b"conditional"]


async def test_a_writer_is_reopened_behind_the_one_that_took_over(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, two):
        async with one.namespace.open_writer("log") as writer:
            await writer.append(b"0", txid=10)
            await one.lose_session()
            async with two.namespace.open_writer("log") as other:
                await other.append(b"1", txid=20)
                with pytest.raises(dlog.LogLockedError, match="two holds its lock"):
                    await writer.reopen()
                with pytest.raises(dlog.LogLockLostError):
                    writer.submit(b"x")
            await writer.reopen()
            assert writer.last_txid == 20
            with pytest.raises(dlog.TxidOutOfOrderError):
                await writer.append(b"x", txid=15)
            await writer.append(b"2", txid=21)
        assert await payloads(two.namespace) == [b"0", b"1", b"2"]


async def test_a_writer_whose_right_is_gone_writes_on_and_is_not_opened_again(
    autojump_clock: MockClock,
) -> None:
    async with two_programs() as (one, two), one.namespace.open_writer("log") as writer:
        await two.namespace.policy.set(Policy((Rule("two", "*", frozenset({Right.ADMIN})),)))
        await writer.append(b"0")
        await one.lose_session()
        with pytest.raises(dlog.AccessDeniedError, match="gives 'one' no right to write"):
            await writer.reopen()
        async with two.namespace.open_writer("log") as other:
            await other.append(b"1")
        assert await payloads(two.namespace) == [b"0", b"1"]


async def test_reopening_twice_at_once_and_reopening_a_working_writer_take_the_lock_once(
    autojump_clock: MockClock,
) -> None:
    async with two_programs() as (one, _), one.namespace.open_writer("log") as writer:
        await writer.reopen()
        await writer.append(b"0")
        await one.lose_session()
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(writer.reopen)
        await writer.append(b"1")
        assert len((await one.store.children("/ns/log/<default>/lock")).names) == 1


async def test_a_closed_writer_is_not_reopened(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, _), one.namespace.open_writer("log") as writer:
        await writer.aclose()
        with pytest.raises(dlog.WriterClosedError):
            await writer.reopen()


async def test_a_writer_closed_while_it_is_reopened_holds_no_lock(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, two):
        async with one.namespace.open_writer("log") as writer, trio.open_nursery() as nursery:
            await writer.append(b"0")
            await one.lose_session()
            await wait_all_tasks_blocked()

            async def reopen() -> None:
                with pytest.raises(dlog.WriterClosedError):
                    await writer.reopen()

            async with two.namespace.open_writer("log"):
                nursery.start_soon(reopen)
                await wait_all_tasks_blocked()
                await writer.aclose()
        assert (await two.store.children("/ns/log/<default>/lock")).names == ()


async def test_closing_a_reopened_writer_still_tells_of_a_record_that_failed_before(
    autojump_clock: MockClock,
) -> None:
    async with two_programs() as (one, _):

        async def write() -> None:
            async with one.namespace.open_writer("log") as writer:
                one.sessions.opened[-1].suspend()  # so the writer starts no segment for the record
                writer.submit(b"its outcome is never asked for")
                await wait_all_tasks_blocked()
                await one.lose_session()
                await writer.reopen()
                await writer.append(b"after")

        with pytest.raises(dlog.LogLockLostError):
            await write()
        assert await payloads(one.namespace) == [b"after"]


async def test_a_writer_is_opened_when_the_store_comes_back(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, two):
        began_s = trio.current_time()
        one.sessions.failures = 30  # 0.2 s each
        one.sessions.expire()
        async with one.namespace.open_writer("log") as writer:
            await writer.append(b"0")
        assert trio.current_time() - began_s >= 5
        assert await payloads(two.namespace) == [b"0"]


async def test_a_writer_is_not_opened_while_the_store_stays_away(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, _):
        one.sessions.failures = 10**6
        one.sessions.expire()
        with pytest.raises(dlog.LogUnavailableError) as caught:
            async with one.namespace.open_writer("log"):
                pass
        assert isinstance(cause_of(caught.value), ConnectionLostError)
        assert not isinstance(caught.value, dlog.NamespaceLostError)
        one.sessions.failures = 0


async def test_a_session_lost_while_waiting_for_the_lock_is_no_end(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, two), trio.open_nursery() as nursery:

        async def write() -> None:
            async with two.namespace.open_writer("log", lock_timeout_s=60) as writer:
                await writer.append(b"1")

        async with one.namespace.open_writer("log") as writer:
            await writer.append(b"0")
            nursery.start_soon(write)
            await wait_all_tasks_blocked()
            await two.lose_session()
            await wait_all_tasks_blocked()
        while await payloads(one.namespace) != [b"0", b"1"]:  # noqa: ASYNC110
            await trio.sleep(0.1)
