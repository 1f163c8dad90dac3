"""One log that several programs write: each call is that of a writer of one's own, whoever owns the log."""

# covers: dlog/forwarding/meeting.py

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

import dlog
import dlog.aio
import dlog.blocking
from dlog import DLSN, RecordOutcome
from dlog.forwarding.network_meeting import NetworkMeeting
from dlog.write.log_writer import LogWriter
from namespace.owner_address import parse_listen_at
from namespace.owner_node import LogOwner, encode_owner

pytestmark = pytest.mark.slow
TEST_TIMEOUT_S = 60


@attrs.frozen
class Program:
    """A namespace that has the log open, as a program of its own would."""

    namespace: dlog.Namespace
    writer: LogWriter
    close: Callable[[], Awaitable[None]]


@attrs.define
class Programs:
    """Several programs with one log. The first owns it."""

    uri: str
    _stack: AsyncExitStack
    over_tcp: bool = False

    @asynccontextmanager
    async def namespace(self) -> AsyncIterator[dlog.Namespace]:
        """A namespace whose programs meet as the fixture's parameter says."""
        async with dlog.open_namespace(self.uri) as namespace:
            if self.over_tcp:
                meet = partial(NetworkMeeting, parse_listen_at("127.0.0.1"))
                namespace = dlog.Namespace(attrs.evolve(namespace.context, meet=meet))
            yield namespace

    async def start(self, **given: object) -> Program:
        end, ended = trio.Event(), trio.Event()

        async def run(task_status: trio.TaskStatus[tuple[dlog.Namespace, LogWriter]]) -> None:
            async with self.namespace() as namespace:
                opening = namespace.open_writer("log", create=True, shared=True, **given)  # type: ignore[arg-type]
                async with opening as writer:
                    task_status.started((namespace, writer))
                    await end.wait()
            ended.set()

        async def close() -> None:
            end.set()
            await ended.wait()

        namespace, writer = await self.nursery.start(run)
        return Program(namespace, writer, close)

    nursery: trio.Nursery = attrs.field(init=False)

    async def stored(self) -> list[bytes]:
        async with (
            dlog.open_namespace(self.uri) as namespace,
            namespace.open_reader("log", follow=False) as reader,
        ):
            return [record.payload async for record in reader]


@asynccontextmanager
async def opened(uri: str, *, over_tcp: bool = False) -> AsyncIterator[Programs]:
    async with AsyncExitStack() as stack:
        programs = Programs(uri, stack, over_tcp)
        with trio.fail_after(TEST_TIMEOUT_S):
            async with trio.open_nursery() as programs.nursery:
                yield programs
                programs.nursery.cancel_scope.cancel()


@pytest.fixture(params=["socket", "tcp"])
async def programs(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Programs]:
    async with opened(f"file://{tmp_path}/ns", over_tcp=request.param == "tcp") as some:
        yield some


@pytest.fixture
async def in_directory(tmp_path: Path) -> AsyncIterator[Programs]:
    async with opened(f"file://{tmp_path}/ns") as some:
        yield some


async def append_until_it_fails(program: Program) -> None:
    while True:
        await program.writer.append(b"more")


async def test_one_program_owns_the_log_and_the_others_forward(programs: Programs) -> None:
    first, second, third = [await programs.start() for _ in range(3)]
    assert [each.writer.is_owner for each in (first, second, third)] == [True, False, False]
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert first.writer.forwarder_count == 2
    dlsns = [await each.writer.append(b"%d" % at) for at, each in enumerate((first, second, third))]
    assert dlsns == sorted(dlsns)
    await third.writer.flush()
    assert await programs.stored() == [b"0", b"1", b"2"]
    assert third.writer.last_txid >= 0
    assert third.writer.state is dlog.WriterState.OPEN
    assert third.writer.health().reason is None
    assert "forwarding" in repr(third.writer)


async def test_every_call_of_a_writer_works_through_the_owner(programs: Programs) -> None:
    await programs.start()
    writer = (await programs.start()).writer
    one = await writer.append(b"one", txid=5, key=b"k", headers={"h": b"v"})
    two, three = await writer.append_many([b"two", b"three"], txids=[6, 7])
    four, five = await writer.append_many([b"four", b"five"], atomic=True, keys=[b"a", None])
    assert (four.entry_id, four.slot_id + 1) == (five.entry_id, five.slot_id)
    pending = writer.submit(b"six")
    six = await pending
    assert pending.outcome is RecordOutcome.DURABLE
    seven = await writer.append_after(b"seven", six)
    with pytest.raises(dlog.PositionConflictError) as caught:
        await writer.append_after(b"x", six)
    assert (caught.value.expected, caught.value.actual) == (six, seven)
    (eight,) = await writer.append_many_after([b"eight"], seven)
    big = writer.last_txid + 1000
    nine = await writer.append_once(b"nine", txid=big, key=b"k")
    assert await writer.append_once(b"nine", txid=big, key=b"k") == nine
    with pytest.raises(dlog.TxidReusedError):
        await writer.append_once(b"other", txid=big, key=b"k")
    assert await writer.outcome(big) == nine
    assert await writer.outcome(big + 1) is None
    assert [one, two, three, four, five, six, seven, eight, nine] == sorted(
        [one, two, three, four, five, six, seven, eight, nine]
    )
    assert await writer.truncate(two) == DLSN(1, 0, 0)
    names = b"one two three four five six seven eight nine".split()
    assert await programs.stored() == names


async def test_a_record_that_the_owner_refuses_fails_alone(programs: Programs) -> None:
    first = await programs.start()
    writer = (await programs.start()).writer
    await first.writer.append(b"one", txid=2**50)
    with pytest.raises(dlog.TxidOutOfOrderError) as caught:
        await writer.append(b"two", txid=7)
    assert caught.value.outcome is RecordOutcome.NOT_WRITTEN
    assert (caught.value.txid, caught.value.last_txid) == (7, 2**50)
    await writer.append(b"three")
    with pytest.raises(dlog.RecordTooLongError):
        await writer.append(bytes(2_000_000))
    with pytest.raises(dlog.BatchTooLongError):
        await writer.append_many([bytes(600_000)] * 2, atomic=True)
    await writer.append(bytes(writer.payload_bytes_max), key=None)
    await writer.flush()
    assert [each[:5] for each in await programs.stored()] == [b"one", b"three", bytes(5)]


async def test_records_of_one_program_keep_their_order_beside_those_of_others(programs: Programs) -> None:
    some = [await programs.start() for _ in range(3)]

    async def write(program: Program, name: int) -> None:
        for number in range(300):
            program.writer.submit(b"%d %d" % (name, number))
            if number % 50 == 0:
                await program.writer.wait_capacity()
        await program.writer.flush()

    async with trio.open_nursery() as nursery:
        for name, program in enumerate(some):
            nursery.start_soon(write, program, name)
    stored = [tuple(map(int, each.split())) for each in await programs.stored()]
    for name in range(3):
        assert [number for which, number in stored if which == name] == list(range(300))


async def test_when_the_owner_closes_another_program_takes_over(programs: Programs) -> None:
    first, second = await programs.start(), await programs.start()
    await second.writer.append(b"one")
    await first.close()
    await second.writer.append(b"two")
    assert second.writer.is_owner
    third = await programs.start()
    await third.writer.append(b"three")
    assert not third.writer.is_owner
    await second.close()
    await third.writer.append(b"four")
    await third.writer.flush()
    assert await programs.stored() == [b"one", b"two", b"three", b"four"]


async def test_records_under_way_when_the_owner_closes_are_stored_once(programs: Programs) -> None:
    owner, others = await programs.start(), [await programs.start() for _ in range(3)]
    pendings = [
        program.writer.submit(b"%d %d" % (name, number))
        for number in range(500)
        for name, program in enumerate(others)
    ]
    await owner.close()
    dlsns = [await each for each in pendings]
    assert len(set(dlsns)) == 1500
    await others[0].writer.flush()
    stored = [tuple(map(int, each.split())) for each in await programs.stored()]
    assert len(stored) == 1500
    for name in range(3):
        assert [number for which, number in stored if which == name] == list(range(500))


async def test_a_producer_repeats_after_a_restart_what_it_does_not_know_to_be_stored(
    programs: Programs,
) -> None:
    await programs.start()
    one = await programs.start(producer="checkout-7")
    stored = [await one.writer.append(b"%d" % number, sequence=number) for number in range(4)]
    await one.close()
    again = (await programs.start(producer="checkout-7")).writer
    assert again.last_sequence == 3
    assert [await again.append(b"%d" % number, sequence=number) for number in range(4)] == stored
    with pytest.raises(dlog.SequenceReusedError):
        await again.append(b"other", sequence=3)
    with pytest.raises(dlog.SequenceReusedError):
        await again.append(b"3", key=b"other", sequence=3)
    await again.append_many([b"3", b"4", b"5"], sequence=3)
    await again.append(b"6")
    await again.flush()
    assert await programs.stored() == [b"%d" % number for number in range(7)]


async def test_many_records_with_long_headers_are_forwarded_in_frames_that_the_owner_takes(
    programs: Programs,
) -> None:
    await programs.start()
    other = await programs.start()
    headers = [{"h": b"%05d" % number * 4000} for number in range(400)]
    with trio.fail_after(60):
        dlsns = await other.writer.append_many([b""] * 400, headers=headers)
    await other.writer.flush()
    async with other.namespace.open_reader("log", follow=False) as reader:
        found = [(record.dlsn, dict(record.headers)) async for record in reader]
    assert found == list(zip(dlsns, headers, strict=True))


async def test_a_record_too_long_for_the_owner_ends_the_writer_with_the_reason(programs: Programs) -> None:
    await programs.start()
    config = dlog.WriterConfig(record_bytes_max=8_000_000, bytes_in_flight_max=32_000_000)
    other = await programs.start(config=config)
    with pytest.raises(dlog.WriteError, match="frame") as caught:
        await other.writer.append(bytes(7_000_000))
    assert caught.value.outcome is not RecordOutcome.DURABLE
    assert await programs.stored() == []


async def test_the_numbers_of_a_producer_survive_the_end_of_all_programs(programs: Programs) -> None:
    one = await programs.start(producer="checkout-7")
    await one.writer.append_many([b"0", b"1", b"2"])
    await one.close()
    again = (await programs.start(producer="checkout-7")).writer
    assert again.last_sequence == 2
    await again.append(b"2", sequence=2)
    await again.append(b"3")
    await again.flush()
    assert await programs.stored() == [b"0", b"1", b"2", b"3"]


async def test_two_programs_cannot_be_one_producer(programs: Programs) -> None:
    await programs.start(producer="a")
    await programs.start(producer="b")
    for name in ("a", "b"):
        async with programs.namespace() as namespace:
            with pytest.raises(dlog.ConfigError, match=f"as producer '{name}'"):
                async with namespace.open_writer("log", shared=True, producer=name):
                    raise AssertionError("it was opened")


async def test_a_log_that_is_sealed_by_one_program_is_closed_to_all(programs: Programs) -> None:
    first, second, third = [await programs.start() for _ in range(3)]
    await third.writer.append(b"one")
    await second.writer.seal()
    for program in (first, third):
        with pytest.raises(dlog.WriterClosedError, match="sealed"):
            await append_until_it_fails(program)
    assert await programs.stored() == [b"one"]
    with pytest.raises(dlog.EndOfStreamError):
        await programs.start()


async def test_a_writer_that_is_not_shared_keeps_shared_ones_out_and_they_keep_it_out(
    programs: Programs, tmp_path: Path
) -> None:
    async with programs.namespace() as namespace:
        async with namespace.open_writer("log", create=True) as own:
            await own.append(b"own")
            with pytest.raises(dlog.LogLockedError):
                async with namespace.open_writer("log", shared=True, lock_timeout_s=0):
                    raise AssertionError("it was opened")
            with pytest.raises(dlog.ConfigError, match="is not shared"):
                await own.append(b"x", sequence=1)
        shared = await programs.start()
        with pytest.raises(dlog.LogLockedError):
            async with namespace.open_writer("log", lock_timeout_s=0):
                raise AssertionError("it was opened")
        await shared.writer.append(b"shared")
        await shared.writer.flush()
        with pytest.raises(dlog.ConfigError, match="only a shared writer has a producer"):
            namespace.open_writer("log", producer="p")
    assert await programs.stored() == [b"own", b"shared"]


async def test_records_that_wait_too_long_for_an_owner_fail_and_the_writer_goes_on(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dlog.WriterConfig(retry_timeout_s=0.1)
    owner, other = await programs.start(), await programs.start(config=config)
    await other.writer.append(b"one")
    async with programs.namespace() as namespace:
        async with trio.open_nursery() as nursery:
            taken, release = trio.Event(), trio.Event()

            async def in_the_way() -> None:
                async with namespace.context.locked("log", 30.0):
                    taken.set()
                    await release.wait()

            nursery.start_soon(in_the_way)
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.start_soon(owner.close)
            await taken.wait()
            with pytest.raises(dlog.LogWriteError, match=r"no program has owned it for 0\.1 s") as caught:
                await append_until_it_fails(other)
            assert caught.value.outcome in (RecordOutcome.UNKNOWN, RecordOutcome.NOT_WRITTEN)
            assert other.writer.state is dlog.WriterState.RECOVERING
            with pytest.raises(dlog.LogWriteError):
                await other.writer.append_after(b"three", None)
            release.set()
        while True:
            try:
                await other.writer.append(b"four")
                break
            except dlog.LogWriteError:
                continue
    await other.writer.aclose()
    assert (await programs.stored())[-1] == b"four"


async def test_operators_see_who_owns_a_log_and_how_many_forward_to_it(programs: Programs) -> None:
    first, second, third = [await programs.start() for _ in range(3)]
    await second.writer.append_many([b"one", b"two"])
    while (described := await first.namespace.describe_log("log")).forwarders != 2:  # noqa: ASYNC110
        await trio.sleep(0.02)
    assert described.writer is not None
    assert str(os.getpid()) in described.writer
    gauges = first.namespace.statistics().gauges
    assert gauges["dlog_forwarders"] == 2
    assert gauges["dlog_window_records"] == 2
    assert first.namespace.statistics().counters["dlog_ownerships"] == 1
    assert second.namespace.statistics().counters["dlog_records_forwarded"] == 2
    assert third.namespace.statistics().counters["dlog_records_forwarded"] == 0
    await first.close()
    await third.writer.append(b"three")
    assert second.writer.is_owner or third.writer.is_owner
    async with third.namespace.open_writer("alone", create=True):
        assert (await third.namespace.describe_log("alone")).forwarders is None


async def test_strangers_find_a_socket_that_only_this_user_can_reach(
    in_directory: Programs, tmp_path: Path
) -> None:
    await in_directory.start()
    (socket,) = [name for name in os.listdir(tmp_path / "ns") if name.startswith("log-")]
    found = os.stat(tmp_path / "ns" / socket)
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "ns").st_mode) == 0o700


async def test_an_address_that_leads_elsewhere_is_not_followed(programs: Programs) -> None:
    first = await programs.start()
    await first.writer.append(b"one")
    nodes = first.namespace.context.nodes("log")
    nobody = f"127.0.0.1:1#{'0' * 32}"
    for address in ("bookie.sock", "../x.sock", "", "log-0000000000000000-0.sock", "127.0.0.1:1", nobody):
        await nodes.store.put(nodes.owner_path, encode_owner(LogOwner(address, 0)))
        async with programs.namespace() as namespace:
            with pytest.raises((dlog.LogLockedError, dlog.LogUnavailableError)):
                async with namespace.open_writer("log", shared=True, lock_timeout_s=0):
                    raise AssertionError("it was opened")
    await first.writer.append(b"two")
    await first.writer.flush()
    assert await programs.stored() == [b"one", b"two"]


async def test_a_namespace_without_a_meeting_refuses_a_shared_writer_with_what_to_do_instead(
    in_directory: Programs,
) -> None:
    program = await in_directory.start()
    nowhere = dlog.Namespace(attrs.evolve(program.namespace.context, meet=None))
    with pytest.raises(dlog.ConfigError, match="a log, or a shard"):
        async with nowhere.open_writer("log", shared=True):
            raise AssertionError("it was opened")


def test_the_face_without_async_shares_a_log_with_that_of_asyncio(tmp_path: Path) -> None:
    import asyncio

    uri = f"file://{tmp_path}/ns"
    with (
        dlog.blocking.open_namespace(uri) as namespace,
        namespace.open_writer("log", create=True, shared=True, producer="b") as writer,
    ):
        assert (writer.is_owner, writer.producer, writer.last_sequence) == (True, "b", -1)

        async def other() -> DLSN:
            async with dlog.aio.open_namespace(uri) as aio, aio.open_writer("log", shared=True) as forwarder:
                assert not forwarder.is_owner
                await forwarder.append(b"one", key=b"k")
                await forwarder.submit(b"two", sequence=1)
                return await forwarder.append(b"three")

        third = asyncio.run(other())
        fourth = writer.append(b"four", sequence=7)
        assert fourth > third
        assert writer.submit(b"five").result() > fourth
        assert writer.last_sequence == 8
    with dlog.blocking.open_namespace(uri) as namespace, namespace.open_reader("log", follow=False) as reader:
        records = list(reader)
    assert [each.payload for each in records] == [b"one", b"two", b"three", b"four", b"five"]
    assert [each.producer for each in records[3:]] == [("b", 7), ("b", 8)]


def test_two_commands_write_one_log_at_the_same_time(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/ns"
    command = [sys.executable, "-m", "dlog", "write", "log", "--shared", "--create", "--uri", uri]
    first, second = (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    )
    for number in range(5):
        for name, process in ((b"a", first), (b"b", second)):
            assert process.stdin is not None
            process.stdin.write(b"%b%d\n" % (name, number))
            process.stdin.flush()
    ends = [process.communicate(timeout=60) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], ends
    with dlog.blocking.open_namespace(uri) as namespace, namespace.open_reader("log", follow=False) as reader:
        stored = [record.payload for record in reader]
    for name in (b"a", b"b"):
        assert [each for each in stored if each.startswith(name)] == [b"%b%d" % (name, at) for at in range(5)]
