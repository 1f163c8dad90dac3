"""A writer beside failing ledgers, lost replies of the metadata store, and a second writer that takes over.

The ledgers are scripted: they acknowledge in order and late, fail at any moment, and a recovery keeps any
prefix of the entries that were not acknowledged. Metadata is in the in-memory store, which loses replies. The
test checks the whole promise: the outcome that a caller got for each record is true of the log at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from unittest import mock

import attrs
import pytest
import trio
import trio.testing
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import dlog
from dlog.format.record import RECORD_HEADER_BYTES, TXID_MAX
from dlog.namespace_handle import Namespace
from tests.effort import examples
from tests.fakes.failing_ledgers import LOCK, World, namespace_in
from tests.strategies import SEEDS


@attrs.define
class KnownOutcome:
    """The outcome of one record as its caller got it."""

    payload: bytes
    outcome: dlog.RecordOutcome
    dlsn: dlog.DLSN | None = None


async def append_many(
    writer: dlog.LogWriter, payloads: list[bytes], outcomes: list[KnownOutcome], *, atomic: bool
) -> None:
    """Append several records; note the outcome of each, also from the error of a call that failed."""
    try:
        dlsns: Sequence[dlog.DLSN] = await writer.append_many(payloads, atomic=atomic)
        assert len(dlsns) == len(payloads)
    except dlog.WriteError as exc:
        dlsns = exc.durable
        assert len(dlsns) < len(payloads)
        rest = payloads[len(dlsns) :]
        if exc.outcome is not dlog.RecordOutcome.NOT_WRITTEN and not atomic:
            rest = rest[:1]  # the outcome of those after it is not known
        outcomes += [KnownOutcome(payload, exc.outcome) for payload in rest]
        raise
    finally:
        outcomes += [
            KnownOutcome(payload, dlog.RecordOutcome.DURABLE, dlsn)
            for payload, dlsn in zip(payloads, dlsns, strict=False)
        ]


async def appender(
    world: World, writer: dlog.LogWriter, name: str, outcomes: list[KnownOutcome], looking: Namespace
) -> None:
    """Submit records in each way that a writer offers; note each outcome."""
    rng = world.rng
    for number in range(rng.randint(1, 12)):
        way = rng.randrange(5)
        width = 1 if way == 4 else rng.choice([1, 1, 30, 60])  # 60: several parts; no atomic batch has such
        payloads = [b"%s-%d-%0*d" % (name.encode(), number, width, i) for i in range(rng.randint(1, 6))]
        await trio.sleep(rng.random() * 0.03)
        pendings: list[tuple[bytes, dlog.Pending]] = []
        try:
            match way:
                case 0:
                    await append_many(writer, payloads, outcomes, atomic=False)
                case 4:
                    world.atomic.append(payloads)
                    await append_many(writer, payloads, outcomes, atomic=True)
                case 1:
                    payload = payloads[0]
                    try:
                        outcomes.append(
                            KnownOutcome(payload, dlog.RecordOutcome.DURABLE, await writer.append(payload))
                        )
                    except dlog.WriteError as exc:
                        outcomes.append(KnownOutcome(payload, exc.outcome))
                        raise
                case _:
                    for payload in payloads:
                        pendings.append((payload, writer.submit(payload)))
                    if rng.random() < 0.3:
                        await writer.flush()
                        seen = await looking.last_dlsn("log")
                        assert seen is not None
                        assert seen >= pendings[-1][1].dlsn, "flushed records are visible"
                    for payload, pending in pendings:
                        outcomes.append(KnownOutcome(payload, dlog.RecordOutcome.DURABLE, await pending))
                    pendings = []
        except dlog.WriteError:
            for payload, pending in pendings:
                while pending.outcome is dlog.RecordOutcome.PENDING:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                durable = pending.outcome is dlog.RecordOutcome.DURABLE
                outcomes.append(KnownOutcome(payload, pending.outcome, pending.dlsn if durable else None))
            return


@contextmanager
def small_parts() -> Iterator[None]:
    """Let a record of more than 40 bytes take several entries, with 25 bytes of its payload in each."""
    with (
        mock.patch("dlog.format.large_record.PART_BYTES_MAX", 25),
        mock.patch("dlog.write.record_rooms.PAYLOAD_BYTES_MAX", 40),
        mock.patch("dlog.write.batcher.PAYLOAD_BYTES_MAX", 40),
        mock.patch("dlog.write.batcher.RECORD_BYTES_MAX", 40 + RECORD_HEADER_BYTES),
    ):
        yield


async def run_world(
    seed: int,
    failure_rate: float,
    lost_reply_rate: float,
    *,
    takeover: str | None,
    hash_chain: bool = False,
    seals: bool = False,
) -> World:
    world = World(seed, failure_rate, lost_reply_rate)
    world.hash_chain, world.seals = hash_chain, seals
    outcomes: list[KnownOutcome] = []
    # Virtual seconds. The limit ends a caller whose record never settles.
    with small_parts(), trio.fail_after(120):
        log, live = await run_writers(world, outcomes, takeover)
    check(log, live, outcomes)
    check_atomic(log, live, world.atomic)
    if takeover is None and max(failure_rate, lost_reply_rate) <= 0.1:
        # No failure lasts as long as the retry timeout. So every record is durable; the writer never stops.
        assert {each.outcome for each in outcomes} == {dlog.RecordOutcome.DURABLE}
    return world


async def run_writers(
    world: World, outcomes: list[KnownOutcome], takeover: str | None
) -> tuple[list[dlog.Record], list[dlog.Record]]:
    """Write, take over, recover. Return the final log, and the records that a following reader saw."""
    world_rates = world.failure_rate, world.lost_reply_rate
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        world.begin(nursery)
        setup, looking = namespace_in(world, "setup")
        await setup.create("/ns")
        world.calm()
        first_store, first = namespace_in(world, "first")
        _, second = namespace_in(world, "second")
        stack.push_async_callback(setup.aclose)
        await first.create_log("log")
        live: list[dlog.Record] = []

        async def follow() -> None:
            async with second.open_reader("log") as reader:
                async for record in reader:
                    live.append(record)

        nursery.start_soon(follow)

        async def write(namespace: Namespace, name: str) -> None:
            try:
                async with namespace.open_writer("log") as writer:
                    world.failure_rate, world.lost_reply_rate = world_rates
                    async with trio.open_nursery() as appenders:
                        for index in range(3):
                            appenders.start_soon(appender, world, writer, f"{name}{index}", outcomes, looking)
            except (dlog.WriteError, dlog.LogUnavailableError, dlog.NamespaceLostError):
                pass  # the test checks the outcome of each record

        async with trio.open_nursery() as writers:
            writers.start_soon(write, first, "a")
            if takeover:
                await trio.sleep(world.rng.random() * 0.3)
                if takeover == "session":
                    first_store.expire()
                else:
                    # The first writer cannot reach the metadata, so it does not learn that its lock is lost.
                    first_store.suspend()
                    for name in (await setup.children(LOCK)).names:
                        await setup.delete(f"{LOCK}/{name}")
                await write(second, "b")
                if takeover == "lock":
                    await trio.sleep(world.rng.random())
                    first_store.resume()
        world.calm()
        # The next writer recovers the log. After that its records are final.
        async with second.open_writer("log") as writer:
            outcomes.append(KnownOutcome(b"last", dlog.RecordOutcome.DURABLE, await writer.append(b"last")))
        if world.seals:
            world.failure_rate, world.lost_reply_rate = world_rates
            await seal(world, second)
        async with second.open_reader("log", follow=world.seals) as reader:
            log = [record async for record in reader]
            assert reader.is_sealed == world.seals
            assert await reader.read_batch(1) is None
        await check_starts(world, second, log)
        if world.hash_chain:
            found = await second.repair.verify("log")
            assert found.problem is None
            assert found.records == found.chained_records == len(log)
        with trio.fail_after(60):
            while len(live) < len(log):  # noqa: ASYNC110
                await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    return log, live


async def seal(world: World, namespace: Namespace) -> None:
    """Seal the log, with failures on the way, until it is sealed."""
    for _ in range(5):
        try:
            await namespace.seal_log("log")
            break
        except (dlog.WriteError, dlog.LogUnavailableError):
            pass
    world.calm()
    await namespace.seal_log("log")
    try:
        async with namespace.open_writer("log"):
            raise AssertionError("a sealed log took a writer")
    except dlog.EndOfStreamError:
        pass
    described = await namespace.describe_log("log")
    assert described.is_sealed
    assert described.segments[-1].last_txid == TXID_MAX


def check(log: list[dlog.Record], live: list[dlog.Record], outcomes: list[KnownOutcome]) -> None:
    where = {record.payload: record.dlsn for record in log}
    assert len(where) == len(log), "a record is in the log twice"
    for each in outcomes:
        if each.outcome is dlog.RecordOutcome.DURABLE:
            assert where.get(each.payload) == each.dlsn, f"{each} is not at its position"
        elif each.outcome is dlog.RecordOutcome.NOT_WRITTEN:
            assert each.payload not in where, f"{each} is in the log"
    dlsns = [record.dlsn for record in log]
    assert dlsns == sorted(dlsns)
    assert [record.txid for record in log] == sorted(record.txid for record in log)
    assert [record.sequence_id for record in log] == list(range(len(log)))
    for name in {record.payload.rpartition(b"-")[0].rpartition(b"-")[0] for record in log}:
        mine = [r.payload for r in log if r.payload.startswith(name + b"-")]
        assert mine == sorted(mine, key=lambda p: [int(part) for part in p.split(b"-")[1:]]), "out of order"
    assert live == log, "the following reader saw other records than the log holds"


async def check_starts(world: World, namespace: Namespace, log: list[dlog.Record]) -> None:
    """A reader may begin and end anywhere, also between the parts of a large record."""
    for _ in range(6):
        near, last = world.rng.choice(log).dlsn, world.rng.choice(log).dlsn
        start = dlog.DLSN(
            near.segment_seqno, max(0, near.entry_id - world.rng.randint(0, 3)), world.rng.randint(0, 1)
        )
        async with namespace.open_reader("log", start=start, end=last) as reader:
            assert [each async for each in reader] == [each for each in log if start <= each.dlsn <= last]
        assert await namespace.count_records("log", start=start) == sum(each.dlsn >= start for each in log)


def check_atomic(log: list[dlog.Record], live: list[dlog.Record], batches: list[list[bytes]]) -> None:
    for records in (log, live):
        where = {record.payload: record.dlsn for record in records}
        for payloads in batches:
            found = [where[payload] for payload in payloads if payload in where]
            assert len(found) in (0, len(payloads)), f"{len(found)} of an atomic batch of {len(payloads)}"
            assert len({(dlsn.segment_seqno, dlsn.entry_id) for dlsn in found}) < 2


# A smaller seed is not a simpler case.
UNSHRUNK = [Phase.explicit, Phase.reuse, Phase.generate]
rates = st.sampled_from([0.0, 0.02, 0.1, 0.3])


@pytest.mark.slow
@settings(max_examples=examples(150), phases=UNSHRUNK)
@given(seed=SEEDS, failure_rate=rates, lost_reply_rate=rates, schedule=st.random_module())
def test_the_outcome_of_each_record_is_true(
    seed: int, failure_rate: float, lost_reply_rate: float, schedule: object
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(lambda: run_world(seed, failure_rate, lost_reply_rate, takeover=None), clock=clock)


@pytest.mark.slow
@settings(max_examples=examples(150), phases=UNSHRUNK)
@given(
    seed=SEEDS,
    failure_rate=rates,
    lost_reply_rate=rates,
    takeover=st.sampled_from(["session", "lock"]),
    schedule=st.random_module(),
)
def test_the_outcome_of_each_record_is_true_when_another_writer_takes_over(
    seed: int, failure_rate: float, lost_reply_rate: float, takeover: str, schedule: object
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(lambda: run_world(seed, failure_rate, lost_reply_rate, takeover=takeover), clock=clock)


@pytest.mark.slow
@settings(max_examples=examples(100), phases=UNSHRUNK)
@given(
    seed=SEEDS,
    failure_rate=rates,
    lost_reply_rate=rates,
    takeover=st.sampled_from([None, "session", "lock"]),
    hash_chain=st.booleans(),
    schedule=st.random_module(),
)
def test_a_hash_chain_and_the_end_of_a_stream_hold_over_failures_rolls_and_takeovers(
    seed: int,
    failure_rate: float,
    lost_reply_rate: float,
    takeover: str | None,
    hash_chain: bool,
    schedule: object,
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(
        lambda: run_world(
            seed, failure_rate, lost_reply_rate, takeover=takeover, hash_chain=hash_chain, seals=True
        ),
        clock=clock,
    )
