"""Writing a sharded log: which shard gets a record, in which order, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import dlog
from dlog.shards import (
    ShardedPosition,
    create_sharded_log,
    open_sharded_reader,
    open_sharded_writer,
    shard_names,
    shard_of,
)
from dlog.write.health import WORST_LAST
from tests.unit.dlog.test_expired_sessions import two_programs

KEYS = [b"key-%d" % number for number in range(12)]


async def payloads(namespace: dlog.Namespace, shard: int) -> list[bytes]:
    async with namespace.open_reader(f"s/shard-{shard:05d}", follow=False) as reader:
        return [record.payload async for record in reader]


async def test_records_of_a_key_are_in_one_shard_in_their_order(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 3)
    positions: dict[bytes, ShardedPosition] = {}

    async def append(key: bytes) -> None:
        for number in range(5):
            payload = b"%s/%d" % (key, number)
            positions[payload] = await writer.append(key, bytearray(payload))

    async with open_sharded_writer(namespace, "s") as writer, trio.open_nursery() as nursery:
        for key in KEYS:
            nursery.start_soon(append, key)
    found = [await payloads(namespace, shard) for shard in range(3)]
    assert all(found)
    assert sum(map(len, found)) == len(positions) == 60
    for key in KEYS:
        of_key = [each for each in found[shard_of(key, 3)] if each.startswith(key + b"/")]
        assert of_key == [b"%s/%d" % (key, number) for number in range(5)]
    for shard, records in enumerate(found):
        assert {positions[each].shard for each in records} == {shard}
        dlsns = [positions[each].dlsn for each in records]
        assert dlsns == sorted(dlsns)


async def test_submitted_records_and_many_records_keep_the_order_too(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 2)
    async with open_sharded_writer(namespace, "s") as writer:
        pending = [writer.submit(key, b"1" + key, txid=7) for key in KEYS]
        await writer.wait_capacity()
        await writer.wait_capacity(KEYS[0])
        many = await writer.append_many((key, b"2" + key) for key in KEYS)
        await writer.flush()
        assert {each.outcome for each in pending} == {dlog.RecordOutcome.DURABLE}
        assert [(await each).shard for each in pending] == [shard_of(key, 2) for key in KEYS]
        for first, second in zip([await each for each in pending], many, strict=True):
            assert first.shard == second.shard
            assert first.dlsn < second.dlsn
        assert await writer.append_many([]) == []
        visible = [await payloads(namespace, shard) for shard in (0, 1)]
    for shard in (0, 1):
        mine = [key for key in KEYS if shard_of(key, 2) == shard]
        assert visible[shard] == [b"1" + key for key in mine] + [b"2" + key for key in mine]


async def test_many_records_are_checked_before_the_first_is_written(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 2)
    async with open_sharded_writer(namespace, "s") as writer:
        too_long = bytes(dlog.PAYLOAD_BYTES_MAX + 1)
        last = next(key for key in KEYS if shard_of(key, 2) != shard_of(KEYS[0], 2))
        with pytest.raises(dlog.RecordTooLongError):
            await writer.append_many([(KEYS[0], b"x"), (last, too_long)])
        with pytest.raises(TypeError):
            await writer.append_many([(KEYS[0], b"x"), (last, "text")])  # type: ignore[list-item]
    assert await payloads(namespace, 0) == await payloads(namespace, 1) == []


async def test_a_second_writer_is_refused_while_the_first_is_open(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 3)
    async with open_sharded_writer(namespace, "s") as writer:
        for name in await shard_names(namespace, "s"):
            with pytest.raises(dlog.LogLockedError):
                async with namespace.open_writer(name, lock_timeout_s=0):
                    pass
        with pytest.raises(dlog.LogLockedError):
            async with open_sharded_writer(namespace, "s", lock_timeout_s=0):
                pass
        await writer.append(b"k", b"still writes")


async def test_an_opening_that_fails_half_way_holds_no_lock(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 3)
    async with namespace.open_writer("s/shard-00002"):
        with pytest.raises(dlog.LogLockedError, match="s/shard-00002"):
            async with open_sharded_writer(namespace, "s", lock_timeout_s=0):
                pass
        for shard in (0, 1):
            async with namespace.open_writer(f"s/shard-{shard:05d}", lock_timeout_s=0):
                pass
    async with open_sharded_writer(namespace, "s", lock_timeout_s=0) as writer:
        await writer.append(b"k", b"x")


async def test_leaving_the_block_by_an_error_writes_all_and_releases_all_locks(
    namespace: dlog.Namespace,
) -> None:
    await create_sharded_log(namespace, "s", 2)

    async def fail() -> None:
        async with open_sharded_writer(namespace, "s") as writer:
            for key in KEYS:
                writer.submit(key, key)
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert sorted(await payloads(namespace, 0) + await payloads(namespace, 1)) == sorted(KEYS)
    async with open_sharded_writer(namespace, "s", lock_timeout_s=0):
        pass


async def test_a_failed_shard_raises_for_its_keys_and_the_others_go_on(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 2)
    bad = next(key for key in KEYS if shard_of(key, 2) == 0)
    good = next(key for key in KEYS if shard_of(key, 2) == 1)
    async with open_sharded_writer(namespace, "s") as writer:
        await writer.writers[0].seal()
        with pytest.raises(dlog.WriterClosedError):
            await writer.append(bad, b"x")
        await writer.append(good, b"1")
        with pytest.raises(dlog.WriterClosedError):
            await writer.append_many([(bad, b"x"), (good, b"2")])
        await writer.append(good, b"3")
    assert await payloads(namespace, 0) == []
    assert await payloads(namespace, 1) == [b"1", b"2", b"3"]


@pytest.mark.slow
async def test_each_shard_reopens_by_itself_and_the_writer_says_how_it_is(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, _):
        await create_sharded_log(one.namespace, "s", 2)
        async with open_sharded_writer(one.namespace, "s", reopen=True) as writer:
            for key in KEYS:
                await writer.append(key, b"before")
            assert {each.state for each in writer.health()} == {dlog.WriterState.OPEN}
            one.sessions.failures = 20  # of attempts to get the next session
            one.sessions.expire()
            await trio.testing.wait_all_tasks_blocked()
            assert writer.state is dlog.WriterState.REOPENING
            failure = writer.failure
            assert isinstance(failure, dlog.LogLockLostError)
            assert {each.state for each in writer.health()} == {writer.state}
            for key in KEYS:
                await writer.append(key, b"after")
            assert writer.failure is None
            assert {each.state for each in writer.health()} == {dlog.WriterState.OPEN}
        records = [each for shard in (0, 1) for each in await payloads(one.namespace, shard)]
        assert sorted(records) == sorted([b"before", b"after"] * len(KEYS))


async def test_the_state_is_that_of_the_worst_shard(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 2)
    async with open_sharded_writer(namespace, "s") as writer:
        assert (writer.state, writer.failure) == (dlog.WriterState.OPEN, None)
        assert writer.oldest_pending_s == 0.0
        await writer.writers[1].seal()
        assert writer.state is dlog.WriterState.CLOSED
    assert sorted(WORST_LAST, key=lambda state: state.value) == sorted(
        dlog.WriterState, key=lambda state: state.value
    )


Attributes = dict[bytes, tuple[bytes | None, dict[str, bytes]]]


async def attributes(namespace: dlog.Namespace) -> Attributes:
    """The key and the headers by payload, as the merged reader returns them one by one and in batches."""
    async with open_sharded_reader(namespace, "s", follow=False) as reader:
        found = {each.payload: (each.key, dict(each.headers)) async for _, each in reader}
    async with open_sharded_reader(namespace, "s", follow=False) as reader:
        records = [each async for _, batch in reader.batches() for each in batch]
    assert {each.payload: (each.key, dict(each.headers)) for each in records} == found
    return found


async def test_the_key_that_chooses_the_shard_is_stored_with_the_headers(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 3)
    expected: Attributes = {}
    async with open_sharded_writer(namespace, "s") as writer:
        assert writer.stores_keys
        for key in (*KEYS, b""):
            headers = {"of": key}
            await writer.append(key, b"1" + key, headers=headers)
            await writer.submit(memoryview(key), b"2" + key)
            expected |= {b"1" + key: (key, headers), b"2" + key: (key, {})}
        reused = bytearray(KEYS[0])
        pairs: list[tuple[bytes | bytearray, bytes]] = [(reused, b"3"), *((key, b"4" + key) for key in KEYS)]
        await writer.append_many(pairs, headers=[{"n": b"3"}, *({"n": key} for key in KEYS)])
        await writer.append_many((key, b"5" + key) for key in KEYS)
        expected[b"3"] = (KEYS[0], {"n": b"3"})
        for key in KEYS:
            expected |= {b"4" + key: (key, {"n": key}), b"5" + key: (key, {})}
    assert await attributes(namespace) == expected


async def test_keys_are_left_out_if_the_caller_says_so(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 2)
    async with open_sharded_writer(namespace, "s", store_keys=False) as writer:
        assert not writer.stores_keys
        long = bytes(100_000)  # more than a stored key may have
        await writer.append(long, b"1")
        await writer.submit(long, b"2", headers={"a": b"1"})
        await writer.append_many([(long, b"3")])
    expected: Attributes = {b"1": (None, {}), b"2": (None, {"a": b"1"}), b"3": (None, {})}
    assert await attributes(namespace) == expected


async def test_a_sharded_writer_shared_with_java_stores_no_key_unless_chosen(tmp_path: Path) -> None:
    shared = dlog.NamespaceConfig(shared_with_java=True)
    async with dlog.open_namespace(tmp_path.as_uri(), config=shared) as namespace:
        await create_sharded_log(namespace, "s", 2)
        async with open_sharded_writer(namespace, "s") as writer:
            assert not writer.stores_keys
            await writer.append(b"k", b"1")
            await writer.submit(b"k", b"2")
            await writer.append_many([(b"k", b"3")])
            with pytest.raises(dlog.ConfigError, match="keys_and_headers=True"):
                await writer.append(b"k", b"x", headers={"a": b""})
            with pytest.raises(dlog.ConfigError):
                writer.submit(b"k", b"x", headers={"a": b""})
            with pytest.raises(dlog.ConfigError):
                await writer.append_many([(b"k", b"x")], headers=[{"a": b""}])
        chosen = dlog.WriterConfig(keys_and_headers=True)
        async with open_sharded_writer(namespace, "s", config=chosen) as writer:
            await writer.append(b"k", b"4")
        assert await attributes(namespace) == {
            b"1": (None, {}),
            b"2": (None, {}),
            b"3": (None, {}),
            b"4": (b"k", {}),
        }


async def test_keys_and_headers_beyond_their_limits_are_found_before_the_first_record_is_written(
    namespace: dlog.Namespace,
) -> None:
    await create_sharded_log(namespace, "s", 2)
    last = next(key for key in KEYS if shard_of(key, 2) != shard_of(KEYS[0], 2))
    async with open_sharded_writer(namespace, "s") as writer:
        with pytest.raises(dlog.RecordTooLongError):  # with its key it is longer than a payload may be
            await writer.append_many([(KEYS[0], b"x"), (last, bytes(dlog.PAYLOAD_BYTES_MAX))])
        with pytest.raises(ValueError, match="32768"):
            await writer.append_many([(KEYS[0], b"x"), (bytes(40_000), b"x"), (bytes(40_000) + b"1", b"x")])
        with pytest.raises(ValueError, match="one mapping of headers"):
            await writer.append_many([(KEYS[0], b"x"), (last, b"x")], headers=[None])
    assert await attributes(namespace) == {}
