"""Promotions: what writers, readers, cursors and commands see, and what is refused."""

# covers: dlog/promotion/calls.py
# covers: dlog/promotion/location.py
# covers: dlog/promotion/progress.py
# covers: dlog/promotion/promoted_log.py
# covers: dlog/promotion/promoter.py
# covers: dlog/write/segment_copy.py

from __future__ import annotations

import logging
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import dlog
from dlog.ownership import LedgerMark
from dlog.promotion import promoter
from dlog.promotion.location import PromotableLocation
from dlog.promotion.promoter import Promoter
from dlog.promotion.record import TargetRecord
from dlog.write.segment_copy import SegmentCopy
from ledger.metadata_store.errors import ConnectionLostError
from ledger.replication_asked import AskedReplication
from namespace.logs import open_log
from namespace.policy import Policy, parse_policy
from namespace.segment_nodes import list_segments
from tests.fakes.promotion_world import (
    CONFIG,
    LOG,
    SMALL_SEGMENTS,
    SOURCE,
    TARGET,
    CrashError,
    Writes,
    open_world,
    records_of,
    target_of,
    with_config,
    without_promotions,
)


class OneKey:
    """A key provider."""

    def current(self) -> tuple[str, bytes]:
        return "k", bytes(range(32))

    def key(self, key_id: str) -> bytes:
        assert key_id == "k"
        return bytes(range(32))


async def test_a_promotion_copies_onto_the_two_bookies_that_are_there(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world() as world, world.target.client() as client:
        world.config_there = attrs.evolve(CONFIG, ensemble_size=3, write_quorum=3, ack_quorum=2)
        await world.target.start("b2:1")
        async with world.process("one") as namespace:
            with caplog.at_level(logging.WARNING, logger="dlog.write.full_ensemble"):
                await namespace.promotion.promote(LOG, TARGET)
            assert await records_of(namespace) == world.acknowledged
            copied = [await client.metadata(each.ledger_id) for each in await namespace.segments(LOG)]
            assert len(copied) == 2
            assert {each.ensemble_size for each in copied} == {2}
            assert {AskedReplication.of(each.custom) for each in copied} == {AskedReplication(3, 3, 2)}
            said = [each.getMessage() for each in caplog.records if "has only 2 of 3" in each.getMessage()]
            assert len(said) == len(copied)
            assert "log orders: segment 1 has only 2 of 3 bookies (" in said[0]
            await world.target.start("b3:1")
            assert len(await namespace.repair.heal(LOG)) == len(copied)
            assert (await namespace.repair.check(LOG)).findings == ()
            assert await records_of(namespace) == world.acknowledged


async def test_an_idle_writer_follows_before_another_writer_gets_the_lock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world, world.process("idle") as idle, world.process("other") as other:
        async with idle.open_writer(LOG) as writer:
            await other.promotion.promote(LOG, TARGET)
            with pytest.raises(dlog.LogLockedError, match="idle"):
                async with other.open_writer(LOG, lock_timeout_s=1):
                    pass
            await world.append(writer, 1)
            assert await writer.truncate(world.acknowledged[10][1]) is not None
        async with other.open_writer(LOG) as second:
            await world.append(second, 1)
        assert (await records_of(other))[-3:] == world.acknowledged[-3:]


async def test_a_writer_that_slept_through_the_hand_over_writes_nothing_here(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # As a process of a release without promotions: it knows the versions that it read, and its ledger.
    async with open_world() as world, world.process("old") as old, world.process("other") as other:
        old = without_promotions(old)
        async with old.open_writer(LOG) as writer:
            await world.append(writer, 6)
            await other.promotion.promote(LOG, TARGET)
            # One entry is in the ledger that the hand-over fenced; the next would be in a new segment.
            with pytest.raises(dlog.LogFencedError) as caught:
                await writer.append(b"late")
            assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
        with pytest.raises(dlog.LogMovedError, match="distributedlog://zk1/shop"):
            async with old.open_writer(LOG):
                pass
        with pytest.raises(dlog.LogMovedError):
            await old.truncate_log(LOG, world.acknowledged[10][1])
        with pytest.raises(dlog.LogMovedError):
            await old.cursors(LOG).set("late", world.acknowledged[10][1])
        with pytest.raises(dlog.LogMovedError):
            await old.delete_log(LOG)
        assert await records_of(other) == world.acknowledged
        assert await records_of(old) == world.acknowledged, "what is here can still be read"


async def test_a_writer_does_not_write_behind_another_one_at_the_target(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its process is stopped at the hand-over, and runs again when the other one has written.
    goes_on = trio.Event()

    follow = PromotableLocation.follow

    async def slow(location: PromotableLocation, timeout_s: float, config: dlog.WriterConfig) -> object:
        await goes_on.wait()
        return await follow(location, timeout_s, config)

    async with open_world() as world, world.process("first") as first, world.process("other") as other:
        monkeypatch.setattr(PromotableLocation, "follow", slow)
        async with first.open_writer(LOG) as writer:
            await world.append(writer, 1)
            await other.promotion.promote(LOG, TARGET)
            async with other.open_writer(LOG) as second:
                await world.append(second, 1)
            goes_on.set()
            with pytest.raises(dlog.LogMovedError, match="another writer has written"):
                await writer.append(b"late")
        assert await records_of(other) == world.acknowledged


async def test_the_writer_finishes_a_hand_over_whose_process_died(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Promoter._finish

    async def die(promoter: Promoter, target: TargetRecord) -> None:
        if promoter._source.client_id == "promoter":
            raise CrashError
        await finish(promoter, target)

    async with open_world() as world, world.process("writer") as writing:
        async with writing.open_writer(LOG) as writer:
            monkeypatch.setattr(Promoter, "_finish", die)
            async with world.process("promoter") as dying:
                with pytest.raises(CrashError):
                    await dying.promotion.promote(LOG, TARGET)
            await world.append(writer, 3)
        assert await world.sides_that_take_records() == [TARGET]
        assert await records_of(writing) == world.acknowledged


async def test_every_call_on_the_old_uri_goes_to_the_target(autojump_clock: trio.testing.MockClock) -> None:
    async with open_world() as world, world.process("p") as namespace:
        before = await namespace.describe_log(LOG)
        await namespace.properties.change(LOG, {"owner": "billing"})
        await namespace.promotion.promote(LOG, TARGET)
        assert (await namespace.properties.get(LOG)).values == {"owner": "billing"}
        await namespace.properties.change(LOG, {"owner": "shop"})
        assert (await namespace.properties.get(LOG)).values == {"owner": "shop"}
        after = await namespace.describe_log(LOG)
        assert attrs.evolve(after, segments=()) == attrs.evolve(before, segments=())
        assert await namespace.last_dlsn(LOG) == world.acknowledged[-1][1]
        assert await namespace.count_records(LOG) == 24
        await namespace.create_log(LOG, exist_ok=True)
        with pytest.raises(dlog.LogExistsError):
            await namespace.create_log(LOG)
        await namespace.retention.set(LOG, None)
        assert await namespace.retention.get(LOG) is None
        cursors = namespace.cursors(LOG)
        await cursors.set("new", world.acknowledged[7][1])
        assert [each.name for each in await cursors.list()] == ["billing", "new"]
        assert await cursors.delete("new")
        async with namespace.open_reader(LOG, cursor="billing", follow=False) as reader:
            assert (await anext(reader)).payload == b"5"
        await namespace.delete_log(LOG)
        with pytest.raises(dlog.LogNotFoundError):
            await namespace.describe_log(LOG)


async def test_the_copies_are_ledgers_of_the_log_at_the_target(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world, world.process("one") as namespace:
        target = await target_of(namespace)
        before = await open_log(namespace.context.nodes(LOG))
        await namespace.promotion.promote(LOG, TARGET)
        after = await open_log(target.context.nodes(LOG))
        assert after.log_id not in (None, before.log_id)
        for segment in (await list_segments(target.context.nodes(LOG))).segments:
            custom = (await target.context.client.metadata(segment.ledger_id)).custom
            assert LedgerMark.of(custom) == LedgerMark(target.context.path, LOG, after.log_id)
        assert await records_of(namespace) == world.acknowledged
        await target.delete_log(LOG)
        assert await target.context.client.ledger_ids() == []


async def test_truncated_records_stay_truncated(autojump_clock: trio.testing.MockClock) -> None:
    async with open_world() as world, world.process("p") as namespace:
        left = await namespace.truncate_log(LOG, world.acknowledged[8][1])
        assert left == world.acknowledged[8][1]
        await namespace.promotion.promote(LOG, TARGET)
        assert await records_of(namespace) == world.acknowledged[8:]


@pytest.mark.slow
@pytest.mark.parametrize("ledgers_there", [0, 7])
@pytest.mark.parametrize("read_before", [1, 2, 13, 24])
async def test_a_reader_whose_segments_are_purged_goes_on_in_the_copies(
    autojump_clock: trio.testing.MockClock, ledgers_there: int, read_before: int
) -> None:
    async with open_world(ledgers_there=ledgers_there) as world, world.process("p") as namespace:
        slow = dlog.ReaderConfig(
            read_bytes_max=1, read_ahead_bytes_max=1, retry_pause_s=0.01, relist_interval_s=1
        )
        namespace = with_config(namespace, reader=slow)
        async with namespace.open_reader(LOG) as reader:
            read = [(each.payload, each.dlsn) for _ in range(read_before) if (each := await anext(reader))]
            await namespace.promotion.promote(LOG, TARGET)
            assert await namespace.promotion.purge(LOG) > 0
            for bookie in world.source.bookies.values():
                bookie.ledgers.clear()
            async with namespace.open_writer(LOG) as writer:
                await world.append(writer, 12)
            while len(read) < len(world.acknowledged):
                record = await anext(reader)
                read.append((record.payload, record.dlsn))
        assert read == world.acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("ledgers_there", [0, 7])
async def test_a_reader_at_the_end_of_a_purged_segment_that_misses_its_close_goes_on_in_the_copy(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, ledgers_there: int
) -> None:
    """Its watch of the ledger is lost, so it still waits for more entries when the list has changed."""
    async with open_world(ledgers_there=ledgers_there) as world, world.process("p") as namespace:
        namespace = with_config(namespace, reader=dlog.ReaderConfig(relist_interval_s=1))
        async with namespace.open_writer(LOG) as writer:
            await world.append(writer, 3)
            async with namespace.open_reader(LOG) as reader:
                read = [await anext(reader) for _ in world.acknowledged]
                for handle in list(vars(reader._ahead._log)["_opened_here"]):
                    monkeypatch.setattr(handle, "_update", lambda found: None)
                await writer.aclose()
                await namespace.promotion.promote(LOG, TARGET)
                assert await namespace.promotion.purge(LOG) > 0
                async with namespace.open_writer(LOG) as follower:
                    await world.append(follower, 5)
                with trio.fail_after(600):
                    while len(read) < len(world.acknowledged):
                        read.append(await anext(reader))
        assert [(each.payload, each.dlsn) for each in read] == world.acknowledged


async def test_a_copy_that_differs_is_refused_and_the_log_stays(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_up_to = SegmentCopy.copy_up_to

    class Damaging:
        """Stands in for the copy's ledger; changes one byte of a payload."""

        def __init__(self, handle: object) -> None:
            self.handle = handle

        def __getattr__(self, name: str) -> object:
            return getattr(self.handle, name)

        def submit(self, payload: bytes) -> int:
            return self.handle.submit(payload[:-1] + bytes([payload[-1] ^ 1]))  # type: ignore[attr-defined, no-any-return]

    async def damaged(self: SegmentCopy, original: object, last: int) -> None:
        if not isinstance(self.handle, Damaging):
            self.handle = Damaging(self.handle)  # type: ignore[assignment]
        await copy_up_to(self, original, last)  # type: ignore[arg-type]

    async with open_world() as world, world.process("p") as namespace:
        with monkeypatch.context() as patched:
            patched.setattr(SegmentCopy, "copy_up_to", damaged)
            with pytest.raises(dlog.CorruptLogError, match="digests"):
                await namespace.promotion.promote(LOG, TARGET)
        assert await world.sides_that_take_records() == [SOURCE]
        async with namespace.open_writer(LOG) as writer:
            await world.append(writer, 1)
        await namespace.promotion.promote(LOG)
        assert await records_of(namespace) == world.acknowledged


async def test_the_segments_here_are_deleted_only_if_the_target_has_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world, world.process("p") as namespace:
        with pytest.raises(dlog.PromotionError, match="not promoted"):
            await namespace.promotion.purge(LOG)
        await namespace.promotion.promote(LOG, TARGET)
        there = (await namespace.segments(LOG))[0]
        async with world.target.client() as client:
            await client.delete(there.ledger_id)
        with pytest.raises((dlog.CorruptLogError, dlog.LogUnavailableError)):
            await namespace.promotion.purge(LOG)
        async with world.source.client() as client:
            assert len(await client.ledger_ids()) > 0, "nothing was deleted"


async def test_a_log_of_the_same_name_at_the_target_is_left_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world, world.process("p") as namespace:
        target = await target_of(namespace)
        await target.create_log(LOG)
        with pytest.raises(dlog.LogExistsError):
            await namespace.promotion.promote(LOG, TARGET)
        assert await namespace.promotion.status(LOG) is None
        async with namespace.open_writer(LOG) as writer:
            await world.append(writer, 1)


async def test_the_target_takes_no_change_before_the_hand_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world:
        try:
            async with world.process("promoter", Writes(crash_after=8)) as namespace:
                await namespace.promotion.promote(LOG, TARGET)
        except* CrashError:
            pass
        async with world.process("p") as namespace:
            target = await target_of(namespace)
            for refused in (
                target.create_log(LOG, exist_ok=True),
                target.truncate_log(LOG, world.acknowledged[3][1]),
                target.delete_log(LOG),
                target.repair.apply(LOG),
                target.cursors(LOG).set("c", world.acknowledged[3][1]),
                namespace.delete_log(LOG),
            ):
                with pytest.raises(dlog.PromotionError):
                    await refused
            with pytest.raises(dlog.PromotionError, match="--resume"):
                async with target.open_writer(LOG):
                    pass
            with pytest.raises(dlog.PromotionError, match="already"):
                await namespace.promotion.promote(LOG, "distributedlog://zk1/elsewhere")
            assert world.acknowledged[: len(await records_of(target))] == await records_of(target)


@pytest.mark.slow
async def test_policies_must_agree(autojump_clock: trio.testing.MockClock) -> None:
    rules = b'{"version":1,"rules":[{"principal":"p","logs":"*","rights":["read","write","admin"]}]}'

    async with open_world() as world, world.process("p") as namespace:
        await namespace.policy.set(parse_policy(rules))
        target = await target_of(namespace)
        await target.create_log("another")
        with pytest.raises(dlog.ConfigError, match="keep-target-policy"):
            await namespace.promotion.promote(LOG, TARGET)
        assert await namespace.promotion.status(LOG) is None
        await namespace.promotion.promote(LOG, TARGET, keep_target_policy=True)
        assert await target.policy.get() is None


@pytest.mark.slow
async def test_the_policy_is_taken_along_to_an_empty_target(autojump_clock: trio.testing.MockClock) -> None:
    rules = b'{"version":1,"rules":[{"principal":"p","logs":"*","rights":["read","write","admin"]}]}'

    async with open_world() as world, world.process("p") as namespace, world.process("other") as other:
        await namespace.policy.set(parse_policy(rules))
        with pytest.raises(dlog.AccessDeniedError):
            await other.promotion.promote(LOG, TARGET)
        await namespace.promotion.promote(LOG, TARGET)
        with pytest.raises(dlog.AccessDeniedError):
            await other.truncate_log(LOG, world.acknowledged[3][1])


@pytest.mark.slow
async def test_snappy_is_refused_where_java_reads(autojump_clock: trio.testing.MockClock) -> None:
    async with open_world() as world, world.process("p") as namespace:
        namespace = with_config(namespace, compression=dlog.Compression.SNAPPY)
        async with namespace.open_writer(LOG, config=SMALL_SEGMENTS) as writer:
            await writer.append(b"a" * 1000)
        with pytest.raises(dlog.ConfigError, match="Snappy"):
            await namespace.promotion.promote(LOG, TARGET)
        await namespace.promotion.undo(LOG)
        assert await world.sides_that_take_records() == [SOURCE]


@pytest.mark.slow
async def test_large_records_are_copied_in_their_parts_but_not_to_where_java_reads(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world, world.process("p") as namespace:
        large = attrs.evolve(SMALL_SEGMENTS, record_bytes_max=4_000_000)
        async with namespace.open_writer(LOG, config=large) as writer:
            payload = bytes(range(256)) * 10_000
            world.acknowledged.append((payload, await writer.append(payload)))
            await world.append(writer, 3)
        with pytest.raises(dlog.ConfigError, match="part of a large record"):
            await namespace.promotion.promote(LOG, TARGET)
        world.config_there = attrs.evolve(world.config_there, shared_with_java=False)
        async with world.process("other") as other:
            await other.promotion.promote(LOG)
            assert await records_of(other) == world.acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("hash_chain", [False, True])
async def test_encrypted_and_chained_records_are_copied_as_they_are(
    autojump_clock: trio.testing.MockClock, *, hash_chain: bool
) -> None:
    keys = OneKey()
    reader = attrs.evolve(CONFIG.reader, encryption=keys)
    there = attrs.evolve(CONFIG, reader=reader)
    async with open_world(there=there) as world, world.process("p") as namespace:
        log = "secret"
        config = attrs.evolve(SMALL_SEGMENTS, encryption=keys, hash_chain=hash_chain)
        namespace = with_config(namespace, reader=reader)
        async with namespace.open_writer(log, create=True, config=config) as writer:
            dlsns = [await writer.append(b"%d" % number) for number in range(20)]
            before = await namespace.repair.verify(log)
            await namespace.promotion.promote(log, TARGET)
            dlsns += [await writer.append(b"%d" % number) for number in range(20, 40)]
        expected = [(b"%d" % number, dlsn) for number, dlsn in enumerate(dlsns)]
        assert await records_of(namespace, log) == expected
        found = await namespace.repair.verify(log, expect_head=before.head if hash_chain else None)
        assert found.is_sound
        assert found.chained_records == (40 if hash_chain else 0)


async def test_a_promoted_log_keeps_its_hash_chain_and_its_identity(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world, world.process("p") as namespace:
        async with namespace.open_writer(
            LOG, create=True, config=attrs.evolve(SMALL_SEGMENTS, hash_chain=True)
        ) as writer:
            await writer.append(b"before")
        identity = await namespace.log_identity(LOG)
        await namespace.promotion.promote(LOG, TARGET)
        assert await namespace.log_identity(LOG) == identity
        async with namespace.open_writer(LOG, config=SMALL_SEGMENTS) as writer:
            await writer.append(b"after")
        found = await namespace.repair.verify(LOG)
        assert (found.is_sound, found.chained_records) == (True, 2)


async def test_only_logs_of_a_directory_are_promoted(autojump_clock: trio.testing.MockClock) -> None:
    async with open_world() as world, world.process("p") as namespace:
        target = await target_of(namespace)
        with pytest.raises(dlog.ConfigError, match="directory"):
            await target.promotion.promote(LOG, SOURCE)
        with pytest.raises(dlog.ConfigError, match="itself"):
            await namespace.promotion.promote(LOG, SOURCE)
        with pytest.raises(dlog.PromotionError, match="--to"):
            await namespace.promotion.promote(LOG)
        with pytest.raises(dlog.LogNotFoundError):
            await namespace.promotion.promote("absent", TARGET)
        with pytest.raises(dlog.PromotionError, match="nothing to undo"):
            await namespace.promotion.undo(LOG)


@pytest.mark.slow
async def test_two_processes_do_not_promote_one_log_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with open_world() as world, world.process("p") as one, world.process("q") as other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.promotion.promote, LOG, TARGET)
            nursery.start_soon(other.promotion.promote, LOG, TARGET)
        assert await records_of(one) == world.acknowledged


async def test_the_state_of_a_promotion_is_told_when_a_lost_store_comes_back(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [ConnectionLostError("/"), ConnectionLostError("/")]

    async def list_after_losses(*arguments: Any, **options: Any) -> Any:
        if lost:
            raise lost.pop()
        return await list_segments(*arguments, **options)

    async with open_world() as world, world.process("p") as namespace:
        await namespace.promotion.promote(LOG, TARGET)
        monkeypatch.setattr(promoter, "list_segments", list_after_losses)
        status = await namespace.promotion.status(LOG)
    assert status is not None
    assert (status.takes_records, lost) == (TARGET, [])


async def test_a_record_that_is_gone_at_the_end_is_an_error_of_the_promotion(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(_: object) -> None:
        return None

    async with open_world() as world, world.process("p") as namespace:
        monkeypatch.setattr(promoter.Promoter, "status", gone)  # another process has just deleted the log
        with pytest.raises(dlog.PromotionError, match=r"its record is gone"):
            await namespace.promotion.promote(LOG, TARGET)


async def test_promoting_needs_the_right_to_administer_the_log_on_both_sides(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def rules(right: str) -> Policy:
        text = '{"principal":"q","logs":"*","rights":["admin"]},{"principal":"p","logs":"*","rights":["%s"]}'
        return parse_policy('{"version":1,"rules":[' + text % right + "]}")

    async with open_world() as world, world.process("p") as namespace, world.process("q") as root:
        target = await target_of(root)
        await root.policy.set(rules("write"))
        for call in (namespace.promotion.promote(LOG, TARGET), namespace.promotion.undo(LOG, TARGET)):
            with pytest.raises(dlog.AccessDeniedError, match="no right to admin"):
                await call
        await root.policy.set(rules("admin"))
        await target.policy.set(rules("write"))
        for call in (
            namespace.promotion.promote(LOG, TARGET, keep_target_policy=True),
            namespace.promotion.undo(LOG, TARGET),
        ):
            with pytest.raises(dlog.AccessDeniedError, match="no right to admin"):
                await call
        assert await namespace.promotion.status(LOG) is None
        assert not await target.log_exists(LOG)
        await target.policy.set(rules("admin"))
        await namespace.promotion.promote(LOG, TARGET)
        await root.policy.set(rules("read"))
        await target.policy.set(rules("read"))
        status = await namespace.promotion.status(LOG)  # looking needs no more
        assert status is not None
        with pytest.raises(dlog.AccessDeniedError, match="no right to admin"):
            await namespace.promotion.purge(LOG)
