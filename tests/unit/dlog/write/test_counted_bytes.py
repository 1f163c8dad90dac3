"""What a writer counts against ``bytes_in_flight_max`` is what its records hold in memory."""

# covers: dlog/write/batcher.py

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

import dlog
import dlog.aio
from dlog.format.record import RECORD_HEADER_BYTES
from dlog.write.batcher import HELD_BYTES

FACES = [
    pytest.param(dlog, trio.run, id="trio"),
    pytest.param(dlog.aio, lambda main: asyncio.run(main()), id="asyncio"),
]
RECORDS = 20_000
RECORD_BYTES = RECORD_HEADER_BYTES + HELD_BYTES  # of an empty one


@pytest.mark.slow
@pytest.mark.parametrize(("face", "run"), FACES)
def test_short_records_hold_no_more_than_is_counted(
    face: ModuleType, run: Callable[..., Any], tmp_path: Path
) -> None:
    async def main() -> None:
        async with (
            face.open_namespace(tmp_path.as_uri()) as namespace,
            namespace.open_writer("log", create=True) as writer,
        ):
            await writer.append(b"first", txid=1)
            gc.collect()
            tracemalloc.start()
            try:
                # No other task runs in between, so none becomes durable.
                pending = [writer.submit(b"%d" % each, txid=1000 + each) for each in range(RECORDS)]
                held_bytes, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert held_bytes <= writer.bytes_in_flight < 3 * held_bytes
            await writer.flush()
            assert writer.bytes_in_flight == 0
            assert len({await each for each in pending}) == RECORDS

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize(("face", "run"), FACES)
def test_empty_records_meet_the_limits_of_a_writer(
    face: ModuleType, run: Callable[..., Any], tmp_path: Path
) -> None:
    limit = 100 * RECORD_BYTES
    config = dlog.NamespaceConfig(writer=dlog.WriterConfig(bytes_in_flight_max=limit))

    async def main() -> None:
        async with (
            face.open_namespace(tmp_path.as_uri(), config=config) as namespace,
            namespace.open_writer("log", create=True) as writer,
        ):
            await writer.append(b"first")
            taken = [writer.submit(b"") for _ in range(401)]
            with pytest.raises(dlog.WriterOverloadedError):
                writer.submit(b"")
            await writer.wait_capacity()
            assert writer.bytes_in_flight < limit
            await writer.append_many([b""] * 1000)  # beyond the limit at once: it waits for nothing else
            assert len({await each for each in taken}) == 401

    run(main)
