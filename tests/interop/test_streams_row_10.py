"""Row 10: one stream, one Java writer and one of ours.

Only one of them writes at a time, also after a crash or pause of the other. Each acknowledged record is in
the stream once, in order, at its position.
"""

from __future__ import annotations

import queue
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import attrs
import pytest
import trio

import dlog
from dlog import DLSN, Record
from ledger.catalog.metadata_codec import decode_metadata
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.zookeeper import open_zookeeper_store
from tests.fakes.log_paths import paths_of
from tests.interop.driver import Driver, DriverEndedError, DriverError
from tests.interop.java_streams import AT_ONCE, JavaLog, JavaRecord, JavaWriter
from tests.interop.killed_writers import stored_metadata
from tests.interop.streams import (
    OWNERSHIP_ACQUIRE_FAILED,
    SHORT_SESSION,
    TEST_TIMEOUT_S,
    TRANSMIT_ERROR,
    WRITE_CANCELLED,
    StreamPlace,
    read_by_us,
    without_attributes,
)
from tests.interop.table import proves

NO_GAP = "no gap, no repetition"
JAVA_THEN_OURS = "lock hand-over, Java then ours"
OURS_THEN_JAVA = "lock hand-over, ours then Java"
ACKED_BEFORE = 100  # records of a flood before the test pauses, fences or kills its writer
IN_FLIGHT = 20
SECOND_TXID = 1_000_000  # greater than all transaction ids of a flood
OVERTAKEN = ("NodeExistsException", "BadVersionException", "NoNodeException", "DLIllegalStateException")
REOPENED_MAX = 20
FENCED_TIMEOUT_S = 20.0  # a writer that is fenced may not answer at all
NO_LOCK = {"writeLockEnabled": "false"}
BUSY = {"writerOutputBufferSize": "100", "enableImmediateFlush": "true", **SHORT_SESSION}


@attrs.define
class Share:
    """The records of one writer in a log: prefix + 1, prefix + 2 and so on."""

    prefix: str
    acked: dict[int, DLSN] = attrs.field(factory=dict)
    not_written: Sequence[int] = ()

    def acknowledged(self, dlsns: Sequence[DLSN]) -> None:
        """Add the positions of the next records."""
        for dlsn in dlsns:
            self.acked[len(self.acked) + 1] = dlsn


async def read_by_both(place: StreamPlace, log: str) -> list[Record]:
    """The records as we read them, after a check that Apache's reader and ours get the same."""
    async with place.namespace() as namespace, place.java_log(log) as java:
        records = await read_by_us(namespace, log)
        got = await java.read(len(records), up_to=records[-1].dlsn)
        ends = {
            each["segment_seqno"]: decode_metadata(
                await stored_metadata(place.cluster, each["ledger_id"])
            ).last_entry_id
            for each in await java.segments()
        }
        # A Java reader also reads entries after the end of a closed ledger, which a recovery wrote again but
        # did not keep: it uses the LAC of a bookie's reply (docs/compatibility.md).
        there = [each for each in got if each.dlsn.entry_id <= ends[each.dlsn.segment_seqno]]
        assert there == without_attributes(records)
        assert (await java.ends())["record_count"] == len(records)
    return records


async def check_whole(place: StreamPlace, log: str, *shares: Share) -> list[Record]:
    """Check that both sides read the same records: the shares one after the other.

    Each share starts at its first record and has no gap and no repetition. Each acknowledged record is at its
    position. No record with the outcome NOT_WRITTEN is there. Returns all records.
    """
    records = await read_by_both(place, log)
    assert [each.sequence_id for each in records] == list(range(len(records)))
    rest = list(records)
    for share in shares:
        mine = [each for each in rest if each.payload.startswith(share.prefix.encode())]
        assert mine == rest[: len(mine)]
        del rest[: len(mine)]
        numbers = [int(each.payload.removeprefix(share.prefix.encode())) for each in mine]
        assert numbers == list(range(1, len(mine) + 1))
        assert {number: mine[number - 1].dlsn for number in share.acked} == share.acked
        assert not set(numbers) & set(share.not_written)
    assert rest == []
    return records


class Flood:
    """A writer in a driver that writes until a write fails."""

    def __init__(self, driver: Driver, writer: str, prefix: str, **options: bool) -> None:
        self.driver, self.share = driver, Share(prefix)
        self._reply: Future[Any] = driver.begin(
            "flood", on=writer, prefix=prefix, first_txid=1, in_flight=IN_FLIGHT, **options
        )

    async def wait_acked(self, count: int) -> None:
        """Wait until ``count`` more records are acknowledged."""
        target = len(self.share.acked) + count
        while len(self.share.acked) < target:
            await trio.to_thread.run_sync(self._take_acked, abandon_on_cancel=True)

    async def kill(self) -> Share:
        """Send SIGKILL while the writer writes; return its share."""
        self.driver.process.kill()
        with pytest.raises(DriverEndedError):
            await self.driver.wait("flood", self._reply)
        self._take_events()
        return self.share

    async def wait_stopped(self) -> dict[str, Any]:
        """Wait until a write fails; return the reply to the flood."""
        reply: dict[str, Any] = await self.driver.wait("flood", self._reply, timeout_s=TEST_TIMEOUT_S)
        self._take_events()
        self.share.not_written = reply.get("outcomes", {}).get("NOT_WRITTEN", [])
        return reply

    def _take_acked(self) -> None:
        while True:
            try:
                event = self.driver.events.get(timeout=0.2)
            except queue.Empty:
                assert not self._reply.done(), f"the flood ended: {self._reply.result()}"
                continue
            if event["event"] == "acked":
                self._add_acked(event)
                return

    def _take_events(self) -> None:
        while not self.driver.events.empty():
            event = self.driver.events.get()
            if event["event"] == "acked":
                self._add_acked(event)

    def _add_acked(self, event: dict[str, Any]) -> None:
        assert event["number"] == len(self.share.acked) + 1, "acknowledged out of order"
        self.share.acknowledged([DLSN(*event["dlsn"])])


async def start_our_flood(place: StreamPlace, log: str, prefix: str, **options: bool) -> Flood:
    driver = await trio.to_thread.run_sync(place.start_our_driver)
    await driver.call("writer", log=log, name="writer")
    flood = Flood(driver, "writer", prefix, **options)
    await flood.wait_acked(ACKED_BEFORE)
    return flood


async def start_java_flood(driver: Driver, java: JavaLog, prefix: str) -> tuple[Flood, JavaWriter]:
    writer = await java.start_writer()
    flood = Flood(driver, writer.name, prefix)
    await flood.wait_acked(ACKED_BEFORE)
    return flood, writer


async def write_by_us(writer: dlog.LogWriter, share: Share, count: int, first_txid: int) -> None:
    """Append the share's next records as one batch."""
    first = len(share.acked) + 1
    payloads = [f"{share.prefix}{number}".encode() for number in range(first, first + count)]
    share.acknowledged(await writer.append_many(payloads, txids=range(first_txid, first_txid + count)))


async def write_by_java(writer: JavaWriter, share: Share, count: int, first_txid: int) -> None:
    """Write the share's next records, one by one."""
    first = len(share.acked) + 1
    records = [
        JavaRecord(first_txid + index, f"{share.prefix}{first + index}".encode()) for index in range(count)
    ]
    share.acknowledged(await writer.write(*records))


async def take_over_with_retries(
    java: JavaLog, share: Share, count: int, txid_after: Callable[[int], int]
) -> JavaWriter:
    """Open a Java writer and write; repeat this while changes of the other writer interfere.

    Java reads the metadata of a log and their versions before it has the lock. If the holder changes them
    before it releases the lock, then opening or the first write fails, with an error of ZooKeeper or with
    Java's error about an unexpected segment number. The failed attempt writes nothing and harms nothing, and
    a new attempt succeeds. Users of Java must do the same.
    """
    for _ in range(REOPENED_MAX):
        try:
            writer = await java.start_writer()
        except DriverError as exc:
            if exc.class_name not in OVERTAKEN:
                raise
            continue
        try:
            await write_by_java(writer, share, count, txid_after(writer.last_txid))
        except DriverError as exc:
            await writer.abort()
            if exc.class_name not in OVERTAKEN:
                raise
            continue
        return writer
    raise AssertionError(f"changes of the other writer interfered {REOPENED_MAX} times")


@proves(10, JAVA_THEN_OURS, OURS_THEN_JAVA, NO_GAP)
async def test_writers_that_close_hand_the_log_over_repeatedly(place: StreamPlace) -> None:
    log, shares = (
        place.fresh_log(),
        [Share(f"{name}{turn}:") for turn in range(3) for name in ("java", "ours")],
    )
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.namespace() as namespace, place.java_log(log, AT_ONCE) as java:
            for turn, share in enumerate(shares):
                txid = 10 * turn + 1
                if share.prefix.startswith("java"):
                    async with java.open_writer() as writer:
                        assert writer.last_txid == (txid - 6 if turn else -999)
                        await write_by_java(writer, share, 5, txid)
                else:
                    async with namespace.open_writer(log) as ours:
                        assert ours.last_txid == txid - 6
                        await write_by_us(ours, share, 5, txid)
        assert len(await check_whole(place, log, *shares)) == 30


@proves(10, JAVA_THEN_OURS, NO_GAP)
async def test_our_writer_waits_until_java_releases_the_lock(place: StreamPlace) -> None:
    log, first, second = place.fresh_log(), Share("java:"), Share("ours:")
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.namespace() as namespace,
            place.java_log(log, AT_ONCE, client_id="the holder") as java,
            trio.open_nursery() as nursery,
        ):
            writer = await java.start_writer()
            await write_by_java(writer, first, 3, 1)
            with pytest.raises(dlog.LogLockedError) as locked:
                async with namespace.open_writer(log, lock_timeout_s=0):
                    pass
            assert locked.value.owner == "the holder"
            assert (await namespace.describe_log(log)).writer == "the holder"

            async def take_over() -> None:
                async with namespace.open_writer(log) as ours:
                    await write_by_us(ours, second, 3, ours.last_txid + 1)

            nursery.start_soon(take_over)
            await write_by_java(writer, first, 3, 4)
            assert not second.acked
            await writer.close()
        assert len(await check_whole(place, log, first, second)) == 9


@proves(10, OURS_THEN_JAVA, NO_GAP)
async def test_java_waits_until_our_writer_releases_the_lock(place: StreamPlace) -> None:
    log, first, second = place.fresh_log(), Share("ours:"), Share("java:")
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.namespace(client_id="the holder") as namespace, trio.open_nursery() as nursery:
            waiting = trio.Event()

            async def take_over() -> None:
                async with place.java_log(log, AT_ONCE) as java:
                    waiting.set()
                    writer = await take_over_with_retries(java, second, 3, lambda last: max(last, 0) + 1)
                    assert writer.last_txid == 6
                    await writer.close()

            async with namespace.open_writer(log, create=True) as ours:
                await write_by_us(ours, first, 3, 1)
                async with place.java_log(log, {"lockTimeoutSeconds": "1"}) as hasty:
                    with pytest.raises(DriverError, match="the holder") as refused:
                        await hasty.start_writer()
                    assert refused.value.code == OWNERSHIP_ACQUIRE_FAILED
                nursery.start_soon(take_over)
                await waiting.wait()
                await write_by_us(ours, first, 3, 4)
                assert not second.acked
        assert len(await check_whole(place, log, first, second)) == 9


@proves(10, JAVA_THEN_OURS, OURS_THEN_JAVA, NO_GAP)
async def test_both_writers_contend_for_the_log_and_each_writes_all_its_records(place: StreamPlace) -> None:
    log, rounds = place.fresh_log(), 4
    shares: list[Share] = []  # in the order in which their writers had the lock
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.namespace() as namespace, place.java_log(log, AT_ONCE) as java:

            async def by_us() -> None:
                for turn in range(rounds):
                    share = Share(f"ours{turn}:")
                    async with namespace.open_writer(log) as writer:
                        await write_by_us(writer, share, 3, max(writer.last_txid, 0) + 1)
                        shares.append(share)

            async def by_java() -> None:
                for turn in range(rounds):
                    share = Share(f"java{turn}:")
                    writer = await take_over_with_retries(java, share, 3, lambda last: max(last, 0) + 1)
                    shares.append(share)
                    await writer.close()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(by_us)
                nursery.start_soon(by_java)
        records = await check_whole(place, log, *shares)
        assert [each.txid for each in records] == list(range(1, 6 * rounds + 1))


@proves(10, OURS_THEN_JAVA, NO_GAP)
async def test_java_and_ours_get_past_a_waiter_of_ours_that_lives_no_more(place: StreamPlace) -> None:
    log, first = place.fresh_log(), Share("holder:")
    shares = [first]  # in the order in which their writers had the lock
    path = paths_of(place.path, log).lock_path
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            place.namespace(client_id="the holder") as namespace,
            open_zookeeper_store(place.originals.zookeeper_hosts) as killed,  # its session never ends here
            open_zookeeper_store(place.originals.zookeeper_hosts) as observer,
            trio.open_nursery() as nursery,
        ):

            async def members(count: int) -> None:
                changed = trio.Event()
                while len((await observer.children(path, watch=changed)).names) < count:
                    await changed.wait()
                    changed = trio.Event()

            async def by_java() -> None:
                share = Share("java:")
                async with place.java_log(log, AT_ONCE) as java:
                    writer = await take_over_with_retries(java, share, 3, lambda last: max(last, 0) + 1)
                    shares.append(share)
                    await writer.close()

            async def by_us() -> None:
                share = Share("ours:")
                async with namespace.open_writer(log, lock_timeout_s=TEST_TIMEOUT_S) as writer:
                    await write_by_us(writer, share, 3, max(writer.last_txid, 0) + 1)
                    shares.append(share)

            async with namespace.open_writer(log, create=True) as holder:
                await write_by_us(holder, first, 3, 1)
                await DistributedLock(killed, path, "killed")._create_member(is_marked=True)
                nursery.start_soon(by_java)
                await members(3)
                nursery.start_soon(by_us)
                await members(4)
        assert len(await check_whole(place, log, *shares)) == 9


@proves(10, JAVA_THEN_OURS, NO_GAP)
async def test_our_writer_continues_after_java_was_killed_while_writing(place: StreamPlace) -> None:
    log, second = place.fresh_log(), Share("ours:")
    with trio.fail_after(TEST_TIMEOUT_S):
        driver = await trio.to_thread.run_sync(place.start_driver)
        async with place.java_log(log, BUSY, driver=driver) as java, place.namespace() as namespace:
            flood, _ = await start_java_flood(driver, java, "java:")
            first = await flood.kill()
            async with namespace.open_writer(log) as ours:
                assert ours.last_txid >= len(first.acked)
                await write_by_us(ours, second, 5, SECOND_TXID)
        await check_whole(place, log, first, second)


@proves(10, OURS_THEN_JAVA, NO_GAP)
@pytest.mark.parametrize("keys", [False, True], ids=["plain", "with_keys"])
async def test_java_continues_after_our_writer_was_killed_while_writing(
    place: StreamPlace, keys: bool
) -> None:
    """With keys, the last entry that Apache's recovery finds ends with our control record."""
    log, second = place.fresh_log(), Share("java:")
    with trio.fail_after(TEST_TIMEOUT_S):
        flood = await start_our_flood(place, log, "ours:", **({"keys": True} if keys else {}))
        first = await flood.kill()
        async with place.java_log(log, AT_ONCE) as java, java.open_writer() as writer:
            assert writer.last_txid >= len(first.acked)
            await write_by_java(writer, second, 5, SECOND_TXID)
        records = await check_whole(place, log, first, second)
        ours = [each for each in records if each.payload.startswith(b"ours:")]
        expected = [(each.payload, {"header": each.payload}) if keys else (None, {}) for each in ours]
        assert [(each.key, each.headers) for each in ours] == expected


async def assert_acknowledges_nothing(writer: JavaWriter, driver: Driver) -> None:
    """A writer of Apache's that is fenced refuses each record, or never answers.

    If its segment fails while it sends a buffer, it forgets the records that still wait for the next one.
    """
    with suppress(DriverEndedError):
        later = await writer.outcomes(*[JavaRecord(2 * SECOND_TXID, b"late")] * 3, timeout_s=FENCED_TIMEOUT_S)
        assert all(isinstance(each, DriverError) for each in later)
    assert driver.process.is_running


async def close_fenced(writer: JavaWriter, driver: Driver) -> None:
    """Let a fenced writer do what it can to the log, which may be to wait for ever."""
    with suppress(DriverEndedError):
        await writer.close(timeout_s=FENCED_TIMEOUT_S)
    assert driver.process.is_running


@proves(10, "fencing", JAVA_THEN_OURS, NO_GAP)
async def test_java_paused_during_our_takeover_writes_nothing_when_resumed(
    place: StreamPlace,
) -> None:
    log, second = place.fresh_log(), Share("ours:")
    with trio.fail_after(TEST_TIMEOUT_S):
        driver = await trio.to_thread.run_sync(place.start_driver)
        async with place.java_log(log, BUSY, driver=driver) as java, place.namespace() as namespace:
            flood, writer = await start_java_flood(driver, java, "java:")
            driver.process.pause()
            async with namespace.open_writer(log) as ours:
                await write_by_us(ours, second, 5, SECOND_TXID)
                driver.process.resume()
                await flood.wait_stopped()
                await assert_acknowledges_nothing(writer, driver)
                await write_by_us(ours, second, 5, SECOND_TXID + 5)
            await close_fenced(writer, driver)
        await trio.to_thread.run_sync(driver.process.stop)
        await check_whole(place, log, flood.share, second)


@proves(10, "fencing", OURS_THEN_JAVA, NO_GAP)
async def test_our_writer_paused_during_java_s_takeover_writes_nothing_when_resumed(
    place: StreamPlace,
) -> None:
    log, second = place.fresh_log(), Share("java:")
    with trio.fail_after(TEST_TIMEOUT_S):
        flood = await start_our_flood(place, log, "ours:")
        flood.driver.process.pause()
        async with place.java_log(log, AT_ONCE) as java, java.open_writer() as writer:
            await write_by_java(writer, second, 5, SECOND_TXID)
            flood.driver.process.resume()
            stopped = await flood.wait_stopped()
            # It learns first that its session has expired, or that its ledger is fenced.
            assert stopped["failure"]["class"] in ("LogFencedError", "LogLockLostError")
            await write_by_java(writer, second, 5, SECOND_TXID + 5)
        await trio.to_thread.run_sync(flood.driver.process.stop)
        await check_whole(place, log, flood.share, second)


@proves(10, "fencing", NO_GAP)
async def test_without_a_lock_java_fences_ours(place: StreamPlace) -> None:
    log, second = place.fresh_log(), Share("java:")
    with trio.fail_after(TEST_TIMEOUT_S):
        flood = await start_our_flood(place, log, "ours:")
        async with place.java_log(log, {**AT_ONCE, **NO_LOCK}) as java:
            # If our writer is first, it completes the segment that Java has fenced, and continues.
            writer = await take_over_with_retries(java, second, 5, lambda _: SECOND_TXID)
            stopped = await flood.wait_stopped()
            assert stopped["failure"]["class"] == "LogFencedError"
            await write_by_java(writer, second, 5, SECOND_TXID + 5)
            await writer.close()
        await trio.to_thread.run_sync(flood.driver.process.stop)
        await check_whole(place, log, flood.share, second)


@asynccontextmanager
async def writing_beside(
    namespace: dlog.Namespace, log: str, share: Share, count: int, first_txid: int
) -> AsyncIterator[dlog.LogWriter]:
    """A writer of ours that has appended the share's next records as one batch.

    Without a lock, Java may complete the same segment just then. For records that still wait, it may also
    take a ledger for its next segment, before ours does. Such an attempt writes nothing, and the next writer
    of ours gets further.
    """
    async with AsyncExitStack() as stack:
        for is_last in (False, False, False, True):
            async with AsyncExitStack() as attempt:
                try:
                    writer = await attempt.enter_async_context(namespace.open_writer(log))
                    await write_by_us(writer, share, count, first_txid)
                except dlog.LogFencedError as exc:
                    if is_last or exc.outcome is not dlog.RecordOutcome.NOT_WRITTEN:
                        raise
                    continue
                stack.push_async_exit(attempt.pop_all())
                break
        yield writer


@proves(10, "fencing", NO_GAP)
async def test_without_a_lock_ours_fences_java(place: StreamPlace) -> None:
    log, second = place.fresh_log(), Share("ours:")
    with trio.fail_after(TEST_TIMEOUT_S):
        driver = await trio.to_thread.run_sync(place.start_driver)
        async with place.java_log(log, {**BUSY, **NO_LOCK}, driver=driver) as java:
            flood, writer = await start_java_flood(driver, java, "java:")
            async with (
                place.namespace() as namespace,
                writing_beside(namespace, log, second, 5, SECOND_TXID) as ours,
            ):
                stopped = await flood.wait_stopped()
                # The first failure is of a record in flight, or of a record that still waited.
                assert stopped["failure"]["code"] in (TRANSMIT_ERROR, WRITE_CANCELLED)
                await assert_acknowledges_nothing(writer, driver)
                await write_by_us(ours, second, 5, SECOND_TXID + 5)
            await close_fenced(writer, driver)
        await trio.to_thread.run_sync(driver.process.stop)
        await check_whole(place, log, flood.share, second)
