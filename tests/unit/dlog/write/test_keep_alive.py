"""Keep-alive control records: a reader tells an idle writer from one that is gone."""

# covers: dlog/write/writer_timers.py

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

import dlog
from dlog.format.envelope import open_envelope
from dlog.format.record import FLAG_CONTROL, KEEP_ALIVE_PAYLOAD, decode_records
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.dict_namespace import CONFIG, Opened, open_on


def config_with(**writer: Any) -> dlog.NamespaceConfig:
    return attrs.evolve(
        CONFIG,
        writer=attrs.evolve(CONFIG.writer, **writer),
        reader=attrs.evolve(CONFIG.reader, idle_timeout_s=30.0),
    )


@asynccontextmanager
async def opened(**writer: Any) -> AsyncIterator[Opened]:
    async with open_cluster() as cluster, open_on(cluster, config=config_with(**writer)) as found:
        yield found


async def entries_of(found: Opened, segment: int = 0) -> list[bytes]:
    described = await found.namespace.segments("log")
    async with await found.client.open(described[segment].ledger_id, recover=False) as handle:
        last = await handle.read_last_confirmed()
        return [(await handle.read_payloads(each, each))[0] for each in range(last + 1)]


async def test_a_silent_writer_sends_a_control_record_per_interval(autojump_clock: object) -> None:
    async with opened(keep_alive_s=10.0) as found:
        async with found.namespace.open_writer("log", create=True) as writer:
            await trio.sleep(100)
            assert await found.namespace.segments("log") == [], "it begins with the first record"
            await writer.append(b"first", txid=7)
            await trio.sleep(103)
            sent = [entry for entry in await entries_of(found) if KEEP_ALIVE_PAYLOAD in entry]
        assert 8 <= len(sent) <= 10
        for entry in sent:
            ((flags, position, txid, payload),) = decode_records(*open_envelope(entry))
            assert (flags, position, txid, payload) == (FLAG_CONTROL, 1, 7, KEEP_ALIVE_PAYLOAD)
        async with found.namespace.open_reader("log", follow=False) as reader:
            assert [record.payload async for record in reader] == [b"first"]


async def test_a_writer_sends_none_by_default_and_none_while_it_writes(autojump_clock: object) -> None:
    for keep_alive_s, pauses in [(None, [500.0]), (10.0, [4.0] * 50)]:
        async with (
            opened(keep_alive_s=keep_alive_s) as found,
            found.namespace.open_writer("log", create=True) as writer,
        ):
            for pause in pauses:
                await writer.append(b"record")
                await trio.sleep(pause)
            bodies = [open_envelope(entry)[0] for entry in await entries_of(found)]
        assert not any(KEEP_ALIVE_PAYLOAD in body for body in bodies)


@pytest.mark.slow
async def test_a_reader_waits_for_an_idle_writer_and_fails_for_one_that_is_gone(
    autojump_clock: object,
) -> None:
    async with opened(keep_alive_s=10.0) as found:
        async with found.namespace.open_writer("log", create=True) as writer:
            await writer.append(b"first")
            async with found.namespace.open_reader("log") as reader:
                assert (await anext(reader)).payload == b"first"
                assert await reader.read_batch(1, wait_s=300) == []
                assert reader.idle_s < 20
        async with found.namespace.open_reader("log", start=dlog.LATEST) as reader:
            began_s = trio.current_time()
            for errors in (1, 2):
                with pytest.raises(dlog.LogReaderIdleError, match="not even a control record"):
                    await reader.read_batch(1)
                assert trio.current_time() - began_s == pytest.approx(30 * errors, abs=2)
                assert reader.idle_s >= 30 * errors - 2
            async with found.namespace.open_writer("log") as writer:
                await writer.append(b"second")
            assert (await anext(reader)).payload == b"second"
            with pytest.raises(dlog.LogReaderIdleError):
                await anext(reader)


@pytest.mark.slow
async def test_a_reader_whose_caller_pauses_does_not_take_the_log_for_dead(autojump_clock: object) -> None:
    """Fetching stands still while the caller takes nothing."""
    async with opened(keep_alive_s=10.0, entry_bytes_target=100) as found:
        reader_config = attrs.evolve(found.namespace.config.reader, read_ahead_bytes_max=1, read_bytes_max=1)
        context = found.namespace.context
        namespace = dlog.Namespace(
            attrs.evolve(context, config=attrs.evolve(context.config, reader=reader_config))
        )
        async with namespace.open_writer("log", create=True) as writer:
            await writer.append_many([b"%d" % n for n in range(20)])
            await writer.flush()
            async with namespace.open_reader("log") as reader:
                for number in range(20):
                    assert (await anext(reader)).payload == b"%d" % number
                    await trio.sleep(100)
                assert await reader.read_batch(1, wait_s=100) == []


@pytest.mark.slow
async def test_an_idle_log_stays_alive_after_a_roll_by_age_and_its_recovery(autojump_clock: object) -> None:
    config = config_with(keep_alive_s=10.0, segment_age_s_max=100.0)
    async with open_cluster() as cluster, open_on(cluster, config=config) as found:
        async with found.namespace.open_writer("log", create=True) as writer:
            await writer.append(b"first")
            async with found.namespace.open_reader("log") as reader:
                assert (await anext(reader)).payload == b"first"
                assert await reader.read_batch(1, wait_s=500) == []
            segments = await found.namespace.segments("log")
            assert [each.is_completed for each in segments] == [True, False]
            assert len(await entries_of(found, 1)) > 10
            # Another writer takes over and recovers the segment that holds control records only.
            await writer._shell.lock.release()
            async with found.namespace.open_writer("log") as second:
                await second.append(b"second")
            with pytest.raises(dlog.LogFencedError):
                await writer.append(b"third")
        async with found.namespace.open_reader("log", follow=False) as reader:
            assert [(r.payload, r.sequence_id) async for r in reader] == [(b"first", 0), (b"second", 1)]
