"""`dlog backup` and `dlog restore`, and the same calls without ``async`` and for asyncio."""

# covers: dlog/cli/operators/backup.py
# covers: dlog/cli/operators/restore.py

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dlog
import dlog.aio
import dlog.blocking
from dlog.cli.main import main

pytestmark = pytest.mark.slow


def write(path: Path, *payloads: bytes) -> None:
    with (
        dlog.blocking.open_namespace(path.as_uri()) as namespace,
        namespace.open_writer("orders", create=True) as writer,
    ):
        writer.append_many(list(payloads))


def read(path: Path) -> list[bytes]:
    with (
        dlog.blocking.open_namespace(path.as_uri()) as namespace,
        namespace.open_reader("orders", follow=False) as reader,
    ):
        return [record.payload for record in reader]


def test_a_directory_is_backed_up_listed_verified_pruned_and_restored(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, destination, restored = (str(tmp_path / name) for name in ("source", "destination", "restored"))
    write(tmp_path / "source", b"one", b"two")
    assert main(["backup", source, destination, "--json"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert (made["logs"], made["missing_entries"]) == (1, 0)
    assert made["bytes_sent"] == made["size_bytes"] > 0
    assert main(["backup", "--keep", "7d", (tmp_path / "source").as_uri(), destination]) == 0
    assert "bytes sent    0" in capfd.readouterr().out
    assert main(["backup", "list", destination, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["cut_ms"] == made["cut_ms"]
    assert main(["backup", "list", destination, "--logs"]) == 0
    assert capfd.readouterr().out == "orders\n"
    assert main(["backup", "verify", destination, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["problems"] == []
    assert main(["backup", "prune", destination, "--keep", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"manifests": 1, "chunks": 0}
    assert main(["restore", destination, restored, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["logs"] == ["orders"]
    assert read(tmp_path / "restored") == [b"one", b"two"]


def test_some_logs_are_backed_up_and_a_backup_without_them_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, destination = str(tmp_path / "source"), str(tmp_path / "destination")
    write(tmp_path / "source", b"one")
    with dlog.blocking.open_namespace((tmp_path / "source").as_uri()) as namespace:
        namespace.create_log("other")
    assert main(["backup", source, destination, "--log", "orders"]) == 0
    assert main(["backup", source, destination, "--log", "orders", "--log", "lost"]) == 3
    capfd.readouterr()
    assert main(["backup", source, destination, "--log", "other"]) == 1
    assert "has backups of orders" in capfd.readouterr().err
    assert main(["replicate", source, "--to", destination, "--log", "other"]) == 1
    assert main(["backup", "list", destination, "--logs"]) == 0
    assert capfd.readouterr().out == "orders\n"


def test_what_is_wrong_is_a_line_and_an_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, destination = str(tmp_path / "source"), str(tmp_path / "destination")
    write(tmp_path / "source", b"one")
    assert main(["backup", "verify", destination]) == 3
    assert main(["backup", source, destination]) == 0
    assert main(["restore", destination, source]) == 4
    assert main(["restore", destination, str(tmp_path / "new"), "--at", "1:0:0"]) == 2
    assert main(["restore", destination, str(tmp_path / "new"), "--at", "noon"]) == 2
    assert main(["restore", destination, str(tmp_path / "new"), "--at", "2000-01-01T00:00"]) == 3
    assert main(["restore", destination, "distributedlog://zk1/shop"]) == 2
    assert main(["backup", source, destination, "--keep", "0"]) == 2
    next((tmp_path / "destination" / "ledgers").rglob("*-*")).unlink()
    capfd.readouterr()
    assert main(["backup", "verify", destination]) == 1
    assert "it is missing" in capfd.readouterr().out
    assert main(["restore", destination, str(tmp_path / "new")]) == 7
    assert not (tmp_path / "new").exists()


def test_the_faces_make_and_restore_backups(tmp_path: Path) -> None:
    write(tmp_path / "source", b"one")
    with dlog.blocking.open_namespace((tmp_path / "source").as_uri()) as namespace:
        assert namespace.backup.make(tmp_path / "destination").logs == 1
    with dlog.blocking.open_backups(tmp_path / "destination") as backups:
        assert backups.verify().is_sound
        assert backups.restore(tmp_path / "one", logs=iter(["orders"])).logs == ("orders",)

    async def of_asyncio() -> None:
        async with dlog.aio.open_namespace((tmp_path / "source").as_uri()) as namespace:
            await namespace.backup.make(tmp_path / "destination")
        async with dlog.aio.open_backups(tmp_path / "destination") as backups:
            assert len(await backups.list_all()) == 2
            await backups.restore(tmp_path / "two")

    asyncio.run(of_asyncio())
    assert read(tmp_path / "one") == read(tmp_path / "two") == [b"one"]


def test_a_backup_is_read_listed_and_scanned_as_of_a_moment_and_never_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, destination = str(tmp_path / "source"), str(tmp_path / "destination")
    write(tmp_path / "source", b"one")
    assert main(["backup", source, destination, "--json"]) == 0
    moment = json.loads(capfd.readouterr().out)["moment"]
    write(tmp_path / "source", b"two")
    assert main(["backup", source, destination, "--json"]) == 0
    capfd.readouterr()
    uri = f"backup:{destination}"
    assert main(["read", "orders", "--uri", uri]) == 0
    assert capfd.readouterr().out == "one\ntwo\n"
    assert main(["read", "orders", "--uri", uri, "--at", moment]) == 0
    assert capfd.readouterr().out == "one\n"
    assert main(["read", "orders", "--uri", uri, "--at", "2001-01-01T00:00"]) != 0
    assert "the first backup is of" in capfd.readouterr().err
    assert main(["read", "orders", "--uri", (tmp_path / "source").as_uri(), "--at", moment]) == 2
    assert "--at is for a backup" in capfd.readouterr().err
    assert main(["log", "list", "--uri", uri, "--at", moment]) == 0
    assert capfd.readouterr().out == "orders\n"
    table = tmp_path / "orders.csv"
    assert main(["scan", "orders", "--uri", uri, "--at", moment, "--csv", str(table)]) == 0
    assert len(table.read_text().splitlines()) == 2  # the names and a record
    capfd.readouterr()
    assert main(["log", "create", "new", "--uri", uri]) == 2
    assert "it is a backup" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_replication_that_a_signal_ends_has_its_exit_code_and_leaves_a_whole_backup(
    tmp_path: Path, number: signal.Signals
) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    write(source, b"one")
    with subprocess.Popen(
        [sys.executable, "-m", "dlog", "replicate", str(source), "--to", str(destination), "--json"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())  # a round is done
        assert first["failure"] is None
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
    with dlog.blocking.open_namespace(f"backup:{destination}") as namespace:
        assert namespace.list_logs() == ["orders"]


def test_a_replication_that_cannot_begin_or_gives_up_says_why_and_has_an_exit_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, other, destination = tmp_path / "source", tmp_path / "other", tmp_path / "destination"
    write(source, b"one")
    write(other, b"two")
    (tmp_path / "file").write_bytes(b"")
    below = tmp_path / "file" / "destination"
    assert main(["replicate", str(source), "--to", str(below), "--give-up-after", "0.01"]) == 6
    assert str(below) in capfd.readouterr().err
    assert main(["backup", str(other), str(destination)]) == 0
    assert main(["replicate", str(source), "--to", str(destination)]) == 1
    assert "has backups of another namespace" in capfd.readouterr().err
    assert main(["replicate", str(source), "--to", str(destination), "--keep", "never"]) == 2
