"""Each system returns what was appended, in order, to a reader that began early and to a late one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sqlite3
from pathlib import Path

import click
import pytest

from tests.bench.peers.seam import PeerReader
from tests.bench.peers.table import PEERS, SYSTEMS, chosen, print_missing

SIZE = 64


def read(reader: PeerReader, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += map(bytes, reader.read())
    return found


@pytest.mark.parametrize(("name", "replicas", "copies"), [("file", 1, 1), ("file", 3, 3), ("sqlite", 3, 1)])
async def test_a_reader_gets_what_was_appended(name: str, replicas: int, copies: int, tmp_path: Path) -> None:
    peer = SYSTEMS[name]
    payloads = [os.urandom(SIZE) for _ in range(300)]
    async with peer.serve(tmp_path, replicas) as service:
        assert service.replicas == copies
        with peer.open_writer(service.address, SIZE) as writer:
            writer.append(payloads[:1])
            with peer.open_reader(service.address, SIZE) as follower:
                assert read(follower, 1) == payloads[:1]
                writer.append(payloads[1:200])
                assert read(follower, 199) == payloads[1:200]
                writer.append_each(payloads[200:])
                assert read(follower, 100) == payloads[200:]
            with peer.open_reader(service.address, SIZE) as late:
                assert read(late, 300) == payloads


async def test_every_file_of_the_floor_has_every_record(tmp_path: Path) -> None:
    peer = SYSTEMS["file"]
    async with peer.serve(tmp_path, 3) as service:
        with peer.open_writer(service.address, 3) as writer:
            writer.append([b"one", b"two"])
    assert [(tmp_path / f"data-{number}").read_bytes() for number in range(3)] == [b"onetwo"] * 3


async def test_a_commit_of_sqlite_is_synced(tmp_path: Path) -> None:
    peer = SYSTEMS["sqlite"]
    seen: list[tuple[object, ...]] = []
    connect = sqlite3.connect

    def watched(*arguments: object, **settings: object) -> sqlite3.Connection:
        database = connect(*arguments, **settings)  # type: ignore[call-overload]
        database.set_trace_callback(lambda statement: seen.append((statement,)))
        return database  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", watched)
        async with peer.serve(tmp_path, 1) as service:
            with peer.open_writer(service.address, SIZE):
                pass
    assert ("PRAGMA journal_mode = WAL",) in seen
    assert ("PRAGMA synchronous = FULL",) in seen


def test_a_peer_that_is_not_installed_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    found, missing = chosen("redis, lmdb,sqlite,sqlite")
    assert [peer.name for peer in found] == ["sqlite"]
    print_missing(missing)
    told = capsys.readouterr().err
    assert "apt-get install redis-server" in told
    assert "pip install lmdb" in told


def test_a_peer_that_is_installed_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert chosen(",".join(PEERS)) == (list(PEERS.values()), {})
    assert chosen(None) == ([], {})


def test_an_unknown_peer_is_refused_with_the_names_of_the_known_ones() -> None:
    with pytest.raises(click.UsageError, match="kafka is not one of sqlite, lmdb, redis"):
        chosen("sqlite,kafka")
