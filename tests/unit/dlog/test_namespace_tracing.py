"""The spans of real work in a directory, by the real library with an exporter in memory."""

# covers: dlog/write/trace_headers.py
# covers: ledger/runtime/statistics/tracing.py

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import dlog
import dlog.aio
import dlog.blocking
from dlog.read.log_reader import LogReader
from dlog.shards import create_sharded_log, open_sharded_writer
from dlog.write.log_writer import LogWriter
from tests.fakes.spans import attributes, exporter, finished

TRACED = {"tracing": True}


@pytest.fixture(autouse=True)
def spans() -> Iterator[None]:
    exporter().clear()
    yield
    exporter().clear()


@pytest.fixture
async def bounded() -> AsyncIterator[None]:
    with trio.fail_after(30):
        yield


@pytest.mark.slow
async def test_each_append_and_each_batch_has_one_span_of_messaging(tmp_path: Path, bounded: None) -> None:
    async with dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            with trace.get_tracer("test").start_as_current_span("request") as request:
                dlsn = await writer.append(b"0")
                await writer.append_many([b"1"] * 1000)
        async with namespace.open_reader("orders", follow=False) as reader:
            batches = [batch async for batch in reader.batches(500)]
    (append,), (many,) = finished()["append orders"], finished()["append_many orders"]
    assert attributes(append) == {
        "messaging.system": "dlog",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "append",
        "messaging.operation.type": "send",
        "messaging.message.id": str(dlsn),
    }
    assert attributes(many)["messaging.batch.message_count"] == 1000
    for span in (append, many):
        assert span.kind is SpanKind.PRODUCER
        assert span.parent is not None
        assert span.parent.span_id == request.get_span_context().span_id
    received = finished()["receive orders"]
    assert {span.kind for span in received} == {SpanKind.CLIENT}
    counts = [attributes(span)["messaging.batch.message_count"] for span in received]
    assert counts == [*map(len, batches), 0]  # the last call found the end


@pytest.mark.slow
async def test_an_iteration_has_a_span_for_each_wait_not_for_each_record(
    tmp_path: Path, bounded: None
) -> None:
    async with dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append_many([b"1"] * 1000)
        async with namespace.open_reader("orders", follow=False) as reader:
            assert len([record async for record in reader]) == 1000
    received = finished()["receive orders"]
    assert len(received) < 10
    counts = [attributes(span)["messaging.batch.message_count"] for span in received]
    assert sum(map(int, map(str, counts))) == 1000


@pytest.mark.slow
async def test_lock_recovery_and_roll_have_spans(tmp_path: Path, bounded: None) -> None:
    async with dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace:
        config = dlog.WriterConfig(segment_bytes_max=50)
        async with namespace.open_writer("orders", create=True, config=config) as writer:
            rolls = 0
            while not rolls:  # another task rolls, after an append of this one
                await writer.append(b"0" * 100)
                rolls = namespace.statistics().counters["dlog_segments_rolled"]
        names = {name: len(spans) for name, spans in finished().items()}
    assert names["lock orders"] == names["recover orders"] == 1
    assert names["roll orders"] >= rolls >= 1
    assert {span.kind for span in finished()["roll orders"]} == {SpanKind.INTERNAL}


@pytest.mark.slow
async def test_a_failed_append_is_an_error_with_its_type(tmp_path: Path, bounded: None) -> None:
    async with (
        dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace,
        namespace.open_writer("orders", create=True) as writer,
    ):
        with pytest.raises(dlog.RecordTooLongError):
            await writer.append(b"0" * (dlog.PAYLOAD_BYTES_MAX + 1))
    (span,) = finished()["append orders"]
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "RecordTooLongError"


@pytest.mark.slow
async def test_without_the_setting_no_span_is_made(tmp_path: Path, bounded: None) -> None:
    async with dlog.open_namespace(tmp_path.as_uri(), settings={"statistics": True}) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"0")
        async with namespace.open_reader("orders", follow=False) as reader:
            assert len([record async for record in reader]) == 1
    async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
        async with namespace.open_writer("orders") as writer:
            assert type(writer) is LogWriter
        async with namespace.open_reader("orders") as reader:
            assert type(reader) is LogReader
    assert finished() == {}


@pytest.mark.slow
def test_a_blocking_append_is_a_child_of_the_span_of_its_thread(tmp_path: Path) -> None:
    with dlog.blocking.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace:
        with (
            namespace.open_writer("orders", create=True) as writer,
            trace.get_tracer("test").start_as_current_span("request") as request,
        ):
            writer.append(b"0")
        with namespace.open_reader("orders", follow=False) as reader:
            assert len(list(reader)) == 1
    (span,) = finished()["append orders"]
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    assert "receive orders" in finished()


@pytest.mark.slow
def test_an_append_of_asyncio_is_a_child_of_the_span_of_its_task(tmp_path: Path) -> None:
    async def main() -> int:
        async with (
            dlog.aio.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace,
            namespace.open_writer("orders", create=True) as writer,
        ):
            with trace.get_tracer("test").start_as_current_span("request") as request:
                await writer.append(b"0")
                await writer.append_many([b"1", b"2"])
            return request.get_span_context().span_id

    request = asyncio.run(main())
    for name in ("append orders", "append_many orders"):
        (span,) = finished()[name]
        assert span.parent is not None
        assert span.parent.span_id == request


async def test_tracing_without_the_library_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounded: None
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(dlog.ConfigError, match=r"pip install '\.\[tracing\]'"):
        async with dlog.open_namespace(tmp_path.as_uri(), settings=TRACED):
            pass


@pytest.mark.slow
def test_the_library_is_imported_only_when_tracing_is_on(tmp_path: Path) -> None:
    script = (
        "import sys, dlog.blocking;"
        f"dlog.blocking.open_namespace({tmp_path.as_uri()!r}).close();"
        "print('opentelemetry' in sys.modules);"
        f"dlog.blocking.open_namespace({tmp_path.as_uri()!r}, settings={TRACED}).close();"
        "print('opentelemetry.trace' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


async def test_the_spans_of_writers_and_readers_are_linked(tmp_path: Path, bounded: None) -> None:
    async with dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            first = await writer.append(b"1", headers={"source": b"web"})
            await writer.append_many([b"2", b"3"])
            await writer.append_after(b"4", (await writer.append_many([b"5"], atomic=True))[0])
            with trace.get_tracer("program").start_as_current_span("program"):
                writer.submit(b"6", key=b"k")
            writer.submit(b"7")  # in no span
        async with namespace.open_reader("orders", start=first, follow=False) as reader:
            records = [record async for record in reader]
        async with namespace.open_reader("orders", follow=False) as reader:
            columns = [batch async for batch in reader.batches()]
    assert [list(record.headers) for record in records] == [
        ["source", "traceparent"],
        *[["traceparent"]] * 5,
        [],
    ]
    assert sum(map(len, columns)) == 7
    sent = [span for name in ("append orders", "append_many orders", "append_after orders", "program")
            for span in finished().get(name, [])]  # fmt: skip
    linked = [
        {link.context.span_id for link in span.links} for span in finished()["receive orders"] if span.links
    ]
    assert linked == [{span.context.span_id for span in sent if span.context is not None}] * 2


async def test_a_trace_of_the_program_is_kept_and_one_without_room_is_left_out(
    tmp_path: Path, bounded: None
) -> None:
    own = {"traceparent": b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"}
    many = {str(number): b"" for number in range(64)}
    async with dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"1", headers=own)
            await writer.append(b"2", headers=many)
            await writer.append(bytes(dlog.PAYLOAD_BYTES_MAX))
            await writer.append_many([bytes(500_000), bytes(540_000)], atomic=True)
            await writer.append(b"3", headers={"traceparent": b"\xff nonsense"})
        async with namespace.open_reader("orders", follow=False) as reader:
            records = [record async for record in reader]
    assert [dict(record.headers) for record in records] == [
        own,
        many,
        {},
        {},
        {},
        {"traceparent": b"\xff nonsense"},
    ]
    links = [link for span in finished()["receive orders"] for link in span.links]
    assert [format(link.context.trace_id, "x") for link in links] == ["a" * 32]


async def test_a_repeat_is_found_although_it_belongs_to_another_span(tmp_path: Path, bounded: None) -> None:
    async with dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            for headers in (None, {"source": b"web"}):
                txid = 2 if headers else 1
                first = await writer.append_once(b"x", txid=txid, headers=headers)
                assert await writer.append_once(b"x", txid=txid, headers=headers) == first
                with pytest.raises(dlog.TxidReusedError):
                    await writer.append_once(b"x", txid=txid, headers={"source": b"other"})
        async with dlog.open_namespace(tmp_path.as_uri()) as plain, plain.open_writer("orders") as writer:
            assert await writer.append_once(b"x", txid=2, headers={"source": b"web"}) == first


async def test_a_writer_that_takes_no_headers_carries_no_trace(tmp_path: Path, bounded: None) -> None:
    config = dlog.WriterConfig(keys_and_headers=False)
    async with dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace:
        async with namespace.open_writer("orders", create=True, config=config) as writer:
            await writer.append(b"1")
            await writer.append_many([b"2"])
        async with namespace.open_reader("orders", follow=False) as reader:
            assert [dict(record.headers) async for record in reader] == [{}, {}]


async def test_a_shared_writer_carries_the_trace_to_readers_too(tmp_path: Path, bounded: None) -> None:
    async with (
        dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace,
        dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as other,
        namespace.open_writer("orders", create=True, shared=True),
        other.open_writer("orders", shared=True) as writer,
    ):
        await writer.append(b"1")
        await writer.append_many([b"2"])
        await writer.flush()
        async with namespace.open_reader("orders", follow=False) as reader:
            records = [record async for record in reader]
    assert [list(record.headers) for record in records] == [["traceparent"]] * 2


async def append_to_shards(namespace: dlog.Namespace) -> None:
    async with open_sharded_writer(namespace, "orders") as writer:
        await writer.append(b"a", b"1")
        with trace.get_tracer("program").start_as_current_span("program"):
            await writer.append_many([(b"a", b"2"), (b"b", b"3")], headers=[None, {"source": b"web"}])
            await writer.submit(b"c", b"4")


async def append_shared(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("orders", create=True, shared=True) as writer:
        last = await writer.append(b"1", key=b"k")
        last = await writer.append_after(b"2", last)
        await writer.append_many_after([b"3"], last, headers=[{"source": b"web"}])
        with trace.get_tracer("program").start_as_current_span("program"):
            await writer.submit(b"4")


async def append_alone(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("orders", create=True) as writer:
        last = await writer.append_many([b"1", b"2"], keys=[b"k", None], headers=[{"source": b"web"}, None])
        await writer.append_many_after([b"3"], last[-1], keys=[b"k"])
        await writer.append_once(b"4", txid=2**61)


@pytest.mark.parametrize("append", [append_to_shards, append_shared, append_alone])
async def test_each_way_to_append_carries_the_trace(
    append: Callable[[dlog.Namespace], Awaitable[None]], tmp_path: Path, bounded: None
) -> None:
    found = dict[bytes, dlog.Record]()
    async with dlog.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace:
        if append is append_to_shards:
            await create_sharded_log(namespace, "orders", 2)
        await append(namespace)
        for log in await namespace.list_logs():
            async with namespace.open_reader(log, follow=False) as reader:
                found |= {record.payload: record async for record in reader}
    assert sorted(found) == [b"1", b"2", b"3", b"4"]
    assert all("traceparent" in record.headers for record in found.values())


def test_a_record_that_a_thread_submits_carries_the_span_of_the_thread(tmp_path: Path) -> None:
    with dlog.blocking.open_namespace(tmp_path.as_uri(), settings=TRACED) as namespace:
        with namespace.open_writer("orders", create=True) as writer:
            with trace.get_tracer("program").start_as_current_span("program") as span:
                writer.submit(b"1").result(30)
            writer.submit(b"2").result(30)
        with namespace.open_reader("orders", follow=False) as reader:
            first, second = reader
    assert format(span.get_span_context().span_id, "016x") in first.headers["traceparent"].decode()
    assert dict(second.headers) == {}
