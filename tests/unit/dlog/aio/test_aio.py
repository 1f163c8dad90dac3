"""The API for asyncio: the same results and errors, cancellation, and the life of the guest run."""

# covers: dlog/aio/bridge.py
# covers: dlog/aio/face.py
# covers: dlog/aio/namespace.py
# covers: dlog/aio/reader.py
# covers: dlog/aio/writer.py

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio

import dlog
from dlog import aio
from dlog.aio.bridge import Bridge, Held

pytestmark = pytest.mark.slow
DEADLINE_S = 120


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a program on asyncio in a thread of its own, since trio may run the test."""

    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main()

    asyncio.run(limited())


def test_a_program_writes_and_reads(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:
                first = await writer.append(b"0")
                many = await writer.append_many([b"1", b"2"])
                pending = [writer.submit(b"%d" % number) for number in range(3, 2000)]
                await writer.flush()
                dlsns = [first, *many, *[await each for each in pending]]
                assert await pending[0] == pending[0].dlsn, "a record can be awaited again"
                assert pending[0].outcome is dlog.RecordOutcome.DURABLE
                assert writer.last_txid > 0
            async with namespace.open_reader("log", follow=False, cursor="me") as reader:
                records = [record async for record in reader]
                await reader.commit(records[9].dlsn)
            assert [int(record.payload) for record in records] == list(range(2000))
            assert [record.dlsn for record in records] == dlsns
            async with namespace.open_reader("log", cursor="me") as reader:
                assert await anext(reader) == records[10]
                assert reader.position == records[11].dlsn
                assert list(await reader.read_batch(2) or []) == records[11:13]
                assert reader.cursor is not None
            [cursor] = await namespace.cursors("log").list()
            assert cursor.position == records[10].dlsn
            assert await namespace.list_logs() == ["log"]
            assert (await namespace.describe_log("log")).record_count == 2000
            assert repr(namespace).startswith("<asyncio Namespace")
            await namespace.delete_log("log")

    run(main)


def test_many_tasks_append_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:

                async def append(task: int) -> list[dlog.DLSN]:
                    return [await writer.append(b"%d" % task) for _ in range(20)]

                found = await asyncio.gather(*(append(task) for task in range(30)))
            assert all(dlsns == sorted(dlsns) for dlsns in found)
            assert len({dlsn for dlsns in found for dlsn in dlsns}) == 600
            assert await namespace.count_records("log") == 600

    run(main)


def test_no_record_passes_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        hops = 0
        whole = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
            nonlocal hops
            hops += 1
            return whole(*args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        async with (
            aio.open_namespace(tmp_path.as_uri()) as namespace,
            namespace.open_writer("log", create=True) as writer,
        ):
            threads: set[int] = set()
            hops = 0
            pending = [writer.submit(b"x" * 100) for _ in range(20_000)]
            for each in pending:
                each._inner.on_settled(lambda: threads.add(threading.get_ident()))
            await pending[-1]
            assert threads == {threading.get_ident()}
            assert hops < 2_000, "waits for sockets are few, records are many"

    run(main)


def test_the_errors_are_those_of_the_trio_objects(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            with pytest.raises(dlog.LogNotFoundError):
                async with namespace.open_reader("none"):
                    pass
            with pytest.raises(dlog.InvalidLogNameError):
                await namespace.create_log("/bad//name")
            async with namespace.open_writer("log", create=True) as writer:
                with pytest.raises(dlog.RecordTooLongError):
                    writer.submit(bytes(dlog.PAYLOAD_BYTES_MAX + 1))
            with pytest.raises(dlog.WriterClosedError):
                await writer.append(b"x")
            with pytest.raises(ZeroDivisionError):
                async with namespace.open_writer("log"):
                    raise ZeroDivisionError
        with pytest.raises(dlog.NamespaceClosedError):
            await namespace.list_logs()
        with pytest.raises(dlog.InvalidUriError):
            async with aio.open_namespace("nonsense"):
                pass

    run(main)


def test_a_cancelled_read_loses_no_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:
                await writer.append_many([b"%d" % number for number in range(300)])
            seen: list[int] = []
            async with namespace.open_reader("log") as reader:
                cancelled = 0
                while len(seen) < 300:
                    task = asyncio.create_task(reader.read_batch(7))
                    for _ in range(cancelled % 5):
                        await asyncio.sleep(0)
                    if len(seen) % 2 or cancelled % 11:
                        task.cancel()
                    try:
                        seen += [int(record.payload) for record in await task or []]
                    except asyncio.CancelledError:
                        pass
                    cancelled += 1
                assert list(await reader.read_batch(1, wait_s=0.01) or [None]) == [None]
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await anext(reader)
            assert seen == list(range(300))

    run(main)


def test_two_tasks_share_a_reader_without_repeats(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:
                await writer.append_many([b"%d" % number for number in range(3000)])
            async with namespace.open_reader("log", follow=False) as reader:

                async def take() -> list[int]:
                    return [int(record.payload) async for record in reader]

                taken = await asyncio.gather(take(), take())
                assert await reader.read_batch(5) is None
            assert sorted(taken[0] + taken[1]) == list(range(3000))

    run(main)


def test_a_cancelled_append_has_an_outcome_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:
                pending = writer.submit(b"kept")

                async def wait() -> None:
                    await pending

                task = asyncio.create_task(wait())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await writer.flush()
                assert pending.outcome is dlog.RecordOutcome.DURABLE
            assert await namespace.count_records("log") == 1

    run(main)


def test_a_cancelled_call_has_ended_before_its_task_goes_on() -> None:
    async def main() -> None:
        bridge = await Bridge.acquire()
        steps: list[str] = []

        async def slow() -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.01)
                steps.append("ended")

        task = asyncio.create_task(bridge.run(slow))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        steps.append("raised")
        assert steps == ["ended", "raised"]
        await bridge.release()

    run(main)


def test_a_cancelled_opening_leaves_nothing_open() -> None:
    class Manager:
        def __init__(self) -> None:
            self.entering = asyncio.Event()

        async def __aenter__(self) -> None:
            self.entering.set()
            await trio.sleep_forever()

        async def __aexit__(self, *_: object) -> None:
            raise AssertionError("it was never entered")

    async def main() -> None:
        bridge = await Bridge.acquire()
        manager = Manager()
        held = Held(bridge, manager)
        task = asyncio.create_task(held.open())
        await manager.entering.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert held._ended.done()
        await bridge.release()

    run(main)


def test_namespaces_share_one_guest_run_and_the_last_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        first = aio.open_namespace((tmp_path / "a").as_uri())
        second = aio.open_namespace((tmp_path / "b").as_uri())
        a, b = await first.__aenter__(), await second.__aenter__()
        assert a._bridge is b._bridge
        await first.__aexit__(None, None, None)
        await b.create_log("log")
        await second.__aexit__(None, None, None)
        assert b._bridge._nursery is None
        async with aio.open_namespace((tmp_path / "b").as_uri()) as again:
            assert await again.list_logs() == ["log"]

    run(main)
    run(main_again := _opens((tmp_path / "b").as_uri()))
    run(main_again)


def _opens(uri: str) -> Callable[[], Coroutine[Any, Any, None]]:
    async def main() -> None:
        async with aio.open_namespace(uri) as namespace:
            assert await namespace.list_logs() == ["log"]

    return main


def test_another_loop_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            errors: list[Exception] = []

            def other() -> None:
                try:
                    asyncio.run(namespace.list_logs())
                except RuntimeError as exc:
                    errors.append(exc)

            await asyncio.to_thread(other)
            [error] = errors
            assert "another asyncio loop" in str(error)

    run(main)


def test_another_loop_gets_no_records_that_the_reader_has_fetched(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as log:
                await log.append_many([b"a", b"b", b"c"])
            async with namespace.open_reader("log", follow=False) as reader:
                assert (await anext(reader)).payload == b"a"
                for read in (reader.read_batch, reader.read_records):
                    with pytest.raises(RuntimeError, match="another asyncio loop"):
                        await asyncio.to_thread(asyncio.run, read(1))
                assert [record.payload async for record in reader] == [b"b", b"c"]

    run(main)


def test_a_program_that_is_cancelled_closes_its_namespace(tmp_path: Path) -> None:
    async def main() -> None:
        async def work(opened: asyncio.Event) -> None:
            async with (
                aio.open_namespace(tmp_path.as_uri()) as namespace,
                namespace.open_writer("log", create=True) as writer,
            ):
                writer.submit(b"submitted")
                opened.set()
                await asyncio.Event().wait()

        opened = asyncio.Event()
        task = asyncio.create_task(work(opened))
        await opened.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            assert await namespace.count_records("log") == 1

    run(main)


def test_each_loop_is_freed_after_its_namespaces_are_closed(tmp_path: Path) -> None:
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        async with dlog.aio.open_namespace(tmp_path.as_uri()) as namespace:
            await namespace.list_logs()

    for _ in range(3):
        asyncio.run(main())
    gc.collect()
    assert [each() for each in loops] == [None, None, None]


def test_after_an_opening_that_was_cancelled_at_once_the_next_one_succeeds(tmp_path: Path) -> None:
    async def use() -> list[str]:
        async with dlog.aio.open_namespace(tmp_path.as_uri()) as namespace:
            return await namespace.list_logs()

    async def main() -> list[str]:
        for steps in range(5):
            task = asyncio.create_task(use())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return await use()

    assert asyncio.run(main()) == []
    assert asyncio.run(use()) == []


def test_an_append_in_another_thread_is_refused_before_it_writes_anything(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        async with dlog.aio.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:
                for call in (writer.submit, lambda payload: asyncio.run(writer.append(payload))):
                    with pytest.raises(RuntimeError, match="another asyncio loop or thread"):
                        await asyncio.to_thread(call, b"from a thread")
                await writer.append(b"from the loop")
            async with namespace.open_reader("log", follow=False) as reader:
                return [record.payload async for record in reader]

    assert asyncio.run(main()) == [b"from the loop"]
