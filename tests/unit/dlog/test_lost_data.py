"""Reading a log with lost data, in a directory: gaps from real ledgers, entry logs and nodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import trio

import dlog
import dlog.aio
import dlog.blocking
from dlog.cli.main import main
from tests.fakes.log_paths import paths_of

pytestmark = pytest.mark.slow


def uri_of(path: Path) -> str:
    return f"file://{path}"


async def write_segments(uri: str, segments: int, records: int) -> list[list[dlog.DLSN]]:
    """Write a log of records ``SEGMENT-RECORD``, each in an entry of its own."""
    found = []
    async with dlog.open_namespace(uri) as namespace:
        await namespace.create_log("log")
        for segment in range(1, segments + 1):
            async with namespace.open_writer("log") as writer:
                found.append([await writer.append(b"%d-%d" % (segment, at)) for at in range(records)])
    return found


def flip_byte(root: Path, payload: bytes) -> None:
    """Damage each stored copy of a payload."""
    damaged = 0
    for file in root.rglob("*"):
        if file.is_file() and payload in (data := file.read_bytes()):
            file.write_bytes(data.replace(payload, payload[:-1] + b"?"))
            damaged += 1
    assert damaged


async def lose(uri: str, first_kept: dlog.DLSN) -> None:
    """Truncate the log; lose the ledger of its second segment, and the node of the third."""
    async with dlog.open_namespace(uri) as namespace:
        await namespace.truncate_log("log", first_kept)
        segments = await namespace.segments("log")
        await namespace.context.client.delete(segments[1].ledger_id)
        nodes = paths_of(namespace.context.path, "log").segments_path
        await namespace.context.store.delete(f"{nodes}/logrecs_{3:018}")
        with pytest.raises(dlog.LogMetadataError, match="a segment is missing"):
            async with namespace.open_reader("log"):
                pass


async def found_by_asyncio(uri: str) -> list[object]:
    found: list[object] = []
    async with (
        dlog.aio.open_namespace(uri) as namespace,
        namespace.open_reader("log", start=dlog.DLSN(1, 0, 0), end=dlog.LATEST, gaps=True) as reader,
    ):
        async for each in reader.batches(gaps=True):
            if isinstance(each, dlog.Gap):
                found.append(each.cause.value)
            else:
                found += [record.payload.decode() for record in each]
    return found


def test_lost_ledgers_entries_and_segments_are_gaps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = uri_of(tmp_path)
    dlsns = trio.run(write_segments, uri, 6, 3)
    flip_byte(tmp_path, b"5-1")
    trio.run(lose, uri, dlsns[0][1])
    with dlog.blocking.open_namespace(uri) as plain:
        found: list[object] = []
        with plain.open_reader(
            "log", start=dlog.DLSN(1, 0, 0), end=dlog.LATEST, gaps=True, cursor="audit"
        ) as reader:
            for each in reader.batches(gaps=True):
                if isinstance(each, dlog.Gap):
                    found.append(each.cause.value)
                    reader.commit(each.last)
                else:
                    found += [record.payload.decode() for record in each]
        with plain.open_reader("log", cursor="audit", gaps=True, follow=False) as reader:
            assert [record.payload for record in reader] == [b"5-2", b"6-0", b"6-1", b"6-2"]
    assert asyncio.run(found_by_asyncio(uri)) == found
    assert found == [
        *("truncated", "1-1", "1-2", "ledger missing", "segment missing", "4-0", "4-1", "4-2"),
        *("5-0", "entry missing", "5-2", "6-0", "6-1", "6-2"),
    ]
    capfd.readouterr()
    assert main(["read", "log", "--uri", uri, "--gaps", "--json"]) == 7
    documents = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [each.get("payload") or each["gap"]["cause"] for each in documents] == found[1:]
    assert main(["read", "log", "--uri", uri, "--gaps", "--from", "1:0:0", "--to", "1:9:0"]) == 0
    printed = capfd.readouterr()
    assert printed.out.splitlines() == ["1-1", "1-2"]
    assert "gap from 1:0:0 to before 1:" in printed.err
    assert ": truncated: " in printed.err
