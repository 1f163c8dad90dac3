"""A namespace in a directory, end to end: writing, reading, rolling, locks, errors, reopening."""

# covers: bookie/embedded/host.py
# covers: dlog/connect.py
# covers: dlog/operations/queries.py

from __future__ import annotations

import datetime
import os
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

import dlog
from ledger.deploy.directory import Directory, HostLock, LocalListener, not_for_children

SMALL_SEGMENTS = dlog.WriterConfig(segment_bytes_max=2_000, entry_bytes_target=300)


def uri_of(path: Path) -> str:
    return f"file://{path}"


async def everything(namespace: dlog.Namespace, log: str, **options: object) -> list[dlog.Record]:
    async with namespace.open_reader(log, follow=False, **options) as reader:  # type: ignore[arg-type]
        return [record async for record in reader]


@pytest.mark.slow
async def test_records_are_read_also_after_reopening(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        await namespace.create_log("orders")
        async with namespace.open_writer("orders") as writer:
            first = await writer.append(b"first", txid=7)
            many = await writer.append_many([b"a", b"", b"c"], txids=[7, 8, 8])
            pending = writer.submit(bytearray(b"pipelined"))
            assert await pending == pending.dlsn
            assert await pending == pending.dlsn, "a record can be awaited again"
        assert first == dlog.DLSN(1, 0, 0)
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        records = await everything(namespace, "orders")
    assert [record.payload for record in records] == [b"first", b"a", b"", b"c", b"pipelined"]
    assert [record.dlsn for record in records] == [first, *many, pending.dlsn]
    assert [record.txid for record in records][:4] == [7, 7, 8, 8]
    assert [record.sequence_id for record in records] == list(range(5))


async def test_a_log_keeps_its_identity_and_no_other_log_gets_it(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        await namespace.create_log("orders")
        first = await namespace.log_identity("orders")
        assert first is not None
        await namespace.rename_log("orders", "sold")
        assert await namespace.log_identity("sold") == first
        with pytest.raises(dlog.LogNotFoundError):
            await namespace.log_identity("orders")
        await namespace.delete_log("sold")
        await namespace.create_log("sold")
        assert await namespace.log_identity("sold") not in (None, first)


@pytest.mark.slow
async def test_logs_are_created_listed_described_and_deleted(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        await namespace.create_log("shop/orders")
        await namespace.create_log("shop/orders", exist_ok=True)
        with pytest.raises(dlog.LogExistsError, match="exist_ok=True"):
            await namespace.create_log("shop/orders")
        assert await namespace.list_logs() == ["shop/orders"]
        assert await namespace.log_exists("shop/orders")
        empty = await namespace.describe_log("shop/orders")
        assert (empty.record_count, empty.first_dlsn, empty.last_dlsn, empty.writer) == (0, None, None, None)
        async with namespace.open_writer("shop/orders") as writer:
            await writer.append_many([b"1", b"2", b"3"])
            await writer.flush()
            live = await namespace.describe_log("shop/orders")
            assert (live.record_count, live.last_dlsn) == (3, dlog.DLSN(1, 0, 2))
            assert live.writer is not None
            assert not live.segments[0].is_completed
            with pytest.raises(dlog.LogLockedError):
                await namespace.delete_log("shop/orders")
        done = await namespace.describe_log("shop/orders")
        assert (done.record_count, done.last_dlsn, done.writer) == (3, dlog.DLSN(1, 0, 2), None)
        assert done.segments[0].is_completed
        assert await namespace.last_dlsn("shop/orders") == dlog.DLSN(1, 0, 2)
        await namespace.delete_log("shop/orders")
        assert await namespace.list_logs() == []
        with pytest.raises(dlog.LogNotFoundError, match="create_log"):
            await namespace.describe_log("shop/orders")


@pytest.mark.slow
async def test_a_log_rolls_by_size_and_reads_as_one(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        async with namespace.open_writer("log", create=True, config=SMALL_SEGMENTS) as writer:
            for start in range(0, 400, 20):
                await writer.append_many([b"%d" % i for i in range(start, start + 20)])
        segments = await namespace.segments("log")
        assert len(segments) > 1
        assert all(segment.is_completed for segment in segments)
        records = await everything(namespace, "log")
        assert [int(record.payload) for record in records] == list(range(400))
        assert [record.sequence_id for record in records] == list(range(400))
        middle = records[217]
        from_there = await everything(namespace, "log", start=middle.dlsn)
        assert from_there == records[217:]
        assert (
            await everything(namespace, "log", start=middle.dlsn, end=records[230].dlsn) == records[217:231]
        )


@pytest.mark.slow
async def test_reading_starts_at_a_transaction_id_or_a_datetime(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    base = int(moment.timestamp() * 1000)
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        async with namespace.open_writer("log", create=True, config=SMALL_SEGMENTS) as writer:
            for i in range(200):
                await writer.append(b"%d" % i, txid=base + 10 * (i // 2))
        assert len(await namespace.segments("log")) > 1
        for txid, first in [
            (0, 0),
            (base, 0),
            (base + 1, 2),
            (base + 10, 2),
            (base + 501, 102),
            (base + 990, 198),
        ]:
            records = await everything(namespace, "log", start=txid)
            assert int(records[0].payload) == first, txid
        assert await everything(namespace, "log", start=base + 991) == []
        later = moment + datetime.timedelta(milliseconds=500)
        assert int((await everything(namespace, "log", start=later))[0].payload) == 100
        between = await everything(namespace, "log", start=moment, end=later)
        assert [int(record.payload) for record in between] == list(range(102))
        with pytest.raises(ValueError, match="EARLIEST"):
            namespace.open_reader("log", end=dlog.EARLIEST)
        with pytest.raises(ValueError, match="time zone"):
            namespace.open_reader("log", start=datetime.datetime(2026, 1, 1))


@pytest.mark.slow
async def test_a_following_reader_sees_records_soon_across_rolls_and_writers(tmp_path: Path) -> None:
    seen: list[int] = []
    followed = trio.Event()
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace, trio.open_nursery() as nursery:
        await namespace.create_log("log")

        async def follow() -> None:
            async with namespace.open_reader("log", end=dlog.DLSN(99, 0, 0)) as reader:
                async for record in reader:
                    seen.append(int(record.payload))
                    if record.payload == b"119":
                        followed.set()

        nursery.start_soon(follow)
        for start in range(0, 120, 40):
            async with namespace.open_writer("log", config=SMALL_SEGMENTS) as writer:
                for i in range(start, start + 40):
                    await writer.append(b"%d" % i)
        with trio.fail_after(60):
            await followed.wait()
        nursery.cancel_scope.cancel()
    assert seen == list(range(120))


@pytest.mark.slow
async def test_the_last_record_becomes_visible_without_a_later_one(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:  # noqa: SIM117
        async with (
            namespace.open_writer("log", create=True) as writer,
            namespace.open_reader("log") as reader,
        ):
            for number in range(3):
                dlsn = await writer.append(b"%d" % number)
                with trio.fail_after(60):
                    assert (await anext(reader)).dlsn == dlsn
            assert await reader.read_batch(10, wait_s=0.01) == []
            assert reader.position == dlsn.next_slot()


@pytest.mark.slow
async def test_flush_makes_all_submitted_records_visible(tmp_path: Path) -> None:
    slow = dlog.WriterConfig(visibility_delay_ms=1_000_000)
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:  # noqa: SIM117
        async with namespace.open_writer("log", create=True, config=slow) as writer:
            await writer.flush()
            await writer.append(b"0")
            for number in range(1, 5):
                writer.submit(b"%d" % number)
            await writer.flush()
            assert [r.payload for r in await everything(namespace, "log")] == [b"0", b"1", b"2", b"3", b"4"]
            await writer.flush()


@pytest.mark.slow
async def test_latest_starts_after_the_visible_records(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        await namespace.create_log("log")
        for number in range(2):
            async with namespace.open_writer("log") as writer:
                await writer.append(b"old %d" % number)
                await writer.flush()
                async with namespace.open_reader("log", start=dlog.LATEST) as reader:
                    await writer.append(b"new %d" % number)
                    with trio.fail_after(60):
                        assert (await anext(reader)).payload == b"new %d" % number
        async with namespace.open_reader("log", start=dlog.LATEST, follow=False) as reader:
            assert await reader.read_batch(10) is None


@pytest.mark.slow
async def test_a_second_writer_is_refused_with_the_name_of_the_owner(tmp_path: Path) -> None:
    config = dlog.NamespaceConfig(client_id="the first")
    async with dlog.open_namespace(uri_of(tmp_path), config=config) as namespace:
        async with namespace.open_writer("log", create=True) as writer:
            with pytest.raises(
                dlog.LogLockedError, match="'log' has a writer already: the first holds its lock"
            ) as caught:
                async with namespace.open_writer("log", lock_timeout_s=0):
                    pass
            assert (caught.value.owner, caught.value.is_own) == ("the first", True)
            assert "that is this process itself: use the writer that it has open" in str(caught.value)
            assert caught.value.session_timeout_s is None, "a directory notices a killed owner at once"
            await writer.append(b"undisturbed")
        async with namespace.open_writer("log", lock_timeout_s=0) as writer:
            await writer.append(b"next")


@pytest.mark.slow
async def test_a_waiting_writer_continues_when_the_first_closes(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace, trio.open_nursery() as nursery:
        await namespace.create_log("log")
        started = trio.Event()

        async def second() -> None:
            started.set()
            async with namespace.open_writer("log", lock_timeout_s=20) as writer:
                await writer.append(b"second")

        async with namespace.open_writer("log") as writer:
            nursery.start_soon(second)
            await started.wait()
            await writer.append(b"first")
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        assert [r.payload for r in await everything(namespace, "log")] == [b"first", b"second"]


@pytest.mark.slow
async def test_bad_input_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        for name in ("", "a b", ".hidden", "a//b", "a/", "<x>"):
            with pytest.raises(dlog.InvalidLogNameError):
                await namespace.create_log(name)
        with pytest.raises(dlog.LogNotFoundError):
            async with namespace.open_writer("missing"):
                pass
        with pytest.raises(dlog.LogNotFoundError):
            async with namespace.open_reader("missing"):
                pass
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append(b"good", txid=100)
            with pytest.raises(
                dlog.RecordTooLongError, match="1040365 bytes; a record holds at most 1040364"
            ):
                await writer.append(bytes(dlog.PAYLOAD_BYTES_MAX + 1))
            with pytest.raises(dlog.TxidOutOfOrderError, match="txid 99 after txid 100"):
                await writer.append(b"late", txid=99)
            with pytest.raises(dlog.TxidOutOfOrderError):
                await writer.append(b"reserved", txid=2**63 - 1)
            with pytest.raises(dlog.TxidOutOfOrderError):
                await writer.append_many([b"a", b"b", b"c"], txids=[100, 101, 100])
            with pytest.raises(ValueError, match="3 payloads and 2 txids"):
                await writer.append_many([b"a", b"b", b"c"], txids=[100, 101])
            with pytest.raises(TypeError, match="a payload is bytes or another buffer, not str"):
                await writer.append("text")  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                await writer.append_many([b"fine", 5])  # type: ignore[list-item]
            await writer.append(bytes(dlog.PAYLOAD_BYTES_MAX), txid=100)
        records = await everything(namespace, "log")
        assert [len(record.payload) for record in records] == [4, dlog.PAYLOAD_BYTES_MAX]


@pytest.mark.slow
async def test_transaction_ids_continue_from_the_end_of_the_log(tmp_path: Path) -> None:
    future = 2**50
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        async with namespace.open_writer("log", create=True) as writer:
            assert writer.last_txid == -1
            await writer.append(b"a", txid=future)
        async with namespace.open_writer("log") as writer:
            assert writer.last_txid == future
            with pytest.raises(dlog.TxidOutOfOrderError):
                await writer.append(b"b", txid=future - 1)
            await writer.append(b"b")
        assert [r.txid for r in await everything(namespace, "log")] == [future, future]


@pytest.mark.slow
async def test_transaction_ids_never_fall_when_the_clock_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 5_000
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        monkeypatch.setattr(namespace, "context", attrs.evolve(namespace.context, wall_ms=lambda: now_ms))
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append(b"a")
            now_ms = 1_000
            await writer.append(b"b")
        async with namespace.open_writer("log") as writer:
            await writer.append_many([b"c", b"d"])
            now_ms = 6_000
            await writer.append(b"e")
        assert [r.txid for r in await everything(namespace, "log")] == [5_000, 5_000, 5_000, 5_000, 6_000]


@pytest.mark.slow
async def test_too_many_submitted_bytes_are_refused_until_the_writer_waits(tmp_path: Path) -> None:
    config = dlog.WriterConfig(bytes_in_flight_max=3190)
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        async with namespace.open_writer("log", create=True, config=config) as writer:
            for _ in range(34):
                writer.submit(b"x" * 100)
            with pytest.raises(dlog.WriterOverloadedError, match=r"await wait_capacity\(\)"):
                writer.submit(b"x" * 100)
            await writer.wait_capacity()
            assert writer.bytes_in_flight < 3190
            for _ in range(100):
                await writer.wait_capacity()
                writer.submit(b"y" * 100)
        records = await everything(namespace, "log")
        assert sum(record.payload[:1] == b"y" for record in records) == 100


@pytest.mark.slow
async def test_an_error_of_the_block_is_raised_and_submitted_records_are_written(
    tmp_path: Path,
) -> None:
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012
        async with dlog.open_namespace(uri_of(tmp_path)) as namespace:  # noqa: SIM117
            async with namespace.open_writer("log", create=True) as writer:
                writer.submit(b"submitted")
                raise KeyError("mine")
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012
        async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
            assert [r.payload for r in await everything(namespace, "log")] == [b"submitted"]
            async with namespace.open_reader("log") as reader:
                async for _ in reader:
                    raise KeyError("mine")


@pytest.mark.slow
async def test_a_cancelled_wait_does_not_undo_the_record(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append(b"0")
            pending = writer.submit(b"1")
            with trio.CancelScope() as scope:
                scope.cancel()
                await pending
            assert scope.cancelled_caught
            assert await pending == dlog.DLSN(1, 1, 0)
            assert pending.outcome is dlog.RecordOutcome.DURABLE
        assert [r.payload for r in await everything(namespace, "log")] == [b"0", b"1"]


@pytest.mark.slow
async def test_a_cancelled_block_writes_the_submitted_records(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        with trio.CancelScope() as scope:
            async with namespace.open_writer("log", create=True) as writer:
                writer.submit(b"submitted")
                scope.cancel()
                await trio.sleep_forever()
        assert [r.payload for r in await everything(namespace, "log")] == [b"submitted"]


@pytest.mark.slow
async def test_closed_objects_refuse_calls(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append(b"x")
            await writer.aclose()
            await writer.aclose()
            with pytest.raises(dlog.WriterClosedError, match="open a new writer"):
                writer.submit(b"y")
        async with namespace.open_reader("log", follow=False) as reader:
            await reader.aclose()
            with pytest.raises(dlog.NamespaceClosedError, match="reader of log 'log'"):
                await anext(reader)
    with pytest.raises(dlog.NamespaceClosedError, match="open it again"):
        await namespace.list_logs()
    assert "closed" in repr(namespace)


async def test_invalid_uris_and_directories_are_refused(tmp_path: Path) -> None:
    for uri in ("", "shop", "http://x/y", "file://elsewhere/x", "distributedlog://", "distributedlog:///ns"):
        with pytest.raises(dlog.InvalidUriError):
            async with dlog.open_namespace(uri):
                pass
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(dlog.EmbeddedStoreError, match="directory"):
        async with dlog.open_namespace(uri_of(tmp_path / "file")):
            pass


@pytest.mark.slow
async def test_a_path_too_long_for_a_socket_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    async with dlog.open_namespace(uri_of(deep)) as first, dlog.open_namespace(uri_of(deep)) as second:
        async with first.open_writer("log", create=True) as writer:
            await writer.append(b"x")
        assert [r.payload for r in await everything(second, "log")] == [b"x"]


@pytest.mark.slow
@pytest.mark.parametrize("compression", list(dlog.Compression))
async def test_records_of_every_codec_are_read(tmp_path: Path, compression: dlog.Compression) -> None:
    config = dlog.NamespaceConfig(compression=compression)
    payloads = [b"the same words again and again %d" % i for i in range(300)]
    async with dlog.open_namespace(uri_of(tmp_path), config=config) as namespace:
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append_many(payloads)
        assert [r.payload for r in await everything(namespace, "log")] == payloads


@pytest.mark.slow
async def test_two_namespaces_of_one_process_share_a_directory(tmp_path: Path) -> None:
    async with (
        dlog.open_namespace(uri_of(tmp_path)) as first,
        dlog.open_namespace(uri_of(tmp_path)) as second,
    ):
        await first.create_log("log")
        async with second.open_writer("log") as writer, first.open_reader("log") as reader:
            dlsn = await writer.append(b"x")
            with trio.fail_after(60):
                assert (await anext(reader)).dlsn == dlsn
            with pytest.raises(dlog.LogLockedError):
                async with first.open_writer("log", lock_timeout_s=0):
                    pass


@pytest.mark.slow
async def test_another_namespace_continues_when_the_host_closes(tmp_path: Path) -> None:
    """The bookie moves to another namespace while a writer is open; no record is lost or repeated."""
    leave, gone = trio.Event(), trio.Event()

    async def host(task_status: trio.TaskStatus[None]) -> None:
        async with dlog.open_namespace(uri_of(tmp_path)):
            task_status.started()
            await leave.wait()
        gone.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(host)
        await write_across_the_move(tmp_path, leave, gone)


async def write_across_the_move(tmp_path: Path, leave: trio.Event, gone: trio.Event) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as other:
        async with other.open_writer("log", create=True) as writer:
            dlsns = [await writer.append(b"%d" % i) for i in range(5)]
            pendings = [writer.submit(b"%d" % i) for i in range(5, 50)]
            leave.set()
            await gone.wait()
            pendings += [writer.submit(b"%d" % i) for i in range(50, 60)]
            with trio.fail_after(30):
                dlsns += [await pending for pending in pendings]
            dlsns.append(await writer.append(b"60"))
        records = await everything(other, "log")
        assert [record.dlsn for record in records] == dlsns
        assert [int(record.payload) for record in records] == list(range(61))


@pytest.mark.slow
async def test_a_payload_is_copied_before_the_writer_waits_for_capacity(tmp_path: Path) -> None:
    async with dlog.open_namespace(uri_of(tmp_path)) as namespace:
        config = dlog.WriterConfig(bytes_in_flight_max=1000)
        async with namespace.open_writer("log", create=True, config=config) as writer:
            await writer.append(b"first")
            writer.submit(bytes(2000))
            buffer = bytearray(b"mine")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append, buffer)
                nursery.start_soon(writer.append_many, [buffer])
                await trio.testing.wait_all_tasks_blocked()
                buffer[:] = b"next"
        payloads = [record.payload for record in await everything(namespace, "log")]
    assert payloads[2:] == [b"mine", b"mine"]


async def test_a_closing_host_keeps_the_lock_of_another_one_with_its_old_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may have a namespace of its own, and the system reuses the number of a closed descriptor."""
    other = Directory(tmp_path / "other")
    locks: list[HostLock | None] = []
    close = LocalListener.aclose

    async def close_and_reuse_the_number(self: LocalListener) -> None:
        number = self.socket.fileno()
        try:
            await close(self)
        finally:
            if number >= 0 and not locks:
                lower = []
                while (descriptor := os.open(os.devnull, os.O_RDONLY)) < number:
                    lower.append(descriptor)
                os.close(descriptor)
                locks.append(other.try_lock())
                for descriptor in lower:
                    os.close(descriptor)

    monkeypatch.setattr(LocalListener, "aclose", close_and_reuse_the_number)
    async with dlog.open_namespace(uri_of(tmp_path / "log")) as namespace:
        await namespace.create_log("log")
    (lock,) = locks
    assert lock is not None
    assert lock in not_for_children, "a forked child must close it"
    other.unlock(lock)
    again = other.try_lock()
    assert again is not None, "the lock was released"
    other.unlock(again)
    other.close()
