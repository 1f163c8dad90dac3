"""`dlog compact`: all space of deleted logs comes back at once; the others stay, also after a kill."""

# covers: ledger/deploy/compaction.py
# covers: dlog/cli/operators/compact.py

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import dlog.blocking
from bookie.embedded.repair import trim_journal
from dlog.cli.main import main
from ledger.deploy.compaction import disk_bytes

pytestmark = pytest.mark.slow

LOGS = ("a", "b", "c", "d")
COUNT = 100
SIZE = 50_000
Run = pytest.CaptureFixture[str]
# It ends at the N-th file that a bookie writes, renames or deletes while it compacts.
KILLED = """
import os, sys, threading
import click
from bookie.disk.real_disk import RealDisk
from dlog.cli.main import main

left = [int(sys.argv[2])]

def dying(call):
    def made(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
        return call(*args, **kwargs)
    return made

for name in ("open", "rename", "link", "unlink", "sync_directory", "sync_all"):
    setattr(RealDisk, name, dying(getattr(RealDisk, name)))
sys.exit(main(["compact", sys.argv[1]]))
"""


def payload(log: str, number: int) -> bytes:
    return f"{log} {number} ".encode() * (SIZE // 6)


LIVE_BYTES = 3 * COUNT * len(payload("a", 0))
RESERVES_BYTES = 6 << 20  # of bookie, journal and metadata, and the metadata


def write(path: Path, logs: tuple[str, ...]) -> None:
    """Records of the logs by turns, so that each entry log has some of each."""
    with dlog.blocking.open_namespace(path.as_uri()) as namespace:
        writers = {log: namespace.open_writer(log, create=True) for log in logs}
        for number in range(COUNT):
            for log, writer in writers.items():
                writer.submit(payload(log, number))
        for writer in writers.values():
            writer.close()


def delete_one(path: Path) -> None:
    """A quarter: the entry logs are too full for the rounds of an open namespace."""
    with dlog.blocking.open_namespace(path.as_uri()) as namespace:
        namespace.delete_log(LOGS[-1])


def check_others(path: Path) -> None:
    with dlog.blocking.open_namespace(path.as_uri()) as namespace:
        assert namespace.list_logs() == list(LOGS[:-1])
        for log in LOGS[:-1]:
            with namespace.open_reader(log, follow=False) as reader:
                assert [record.payload for record in reader] == [payload(log, at) for at in range(COUNT)]


def test_all_space_of_deleted_logs_comes_back_at_once(tmp_path: Path, capsys: Run) -> None:
    path, fresh = tmp_path / "ns", tmp_path / "fresh"
    write(path, LOGS)
    delete_one(path)
    before = disk_bytes(path)
    assert main(["compact", str(path), "--json"]) in (0, None)
    document = json.loads(capsys.readouterr().out)
    assert document["entry_logs"] >= 1
    assert document["dead_bytes"] == 0
    assert (document["before_bytes"], document["after_bytes"]) == (before, disk_bytes(path))
    assert disk_bytes(path) <= 1.15 * LIVE_BYTES + RESERVES_BYTES
    assert main(["check", str(path)]) in (0, None)
    check_others(path)
    capsys.readouterr()
    assert main(["compact", str(path), "--json"]) in (0, None)
    assert json.loads(capsys.readouterr().out)["entry_logs"] == 0, "there is nothing more to give back"

    write(fresh, LOGS[:-1])
    assert main(["compact", str(fresh)]) in (0, None)
    assert document["after_bytes"] <= 1.15 * disk_bytes(fresh)


def test_a_compaction_that_is_killed_loses_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "ns"
    write(path, LOGS)
    delete_one(path)
    killed = 0
    for steps in range(2, 200, 6):
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(steps)], check=False)
        if done.returncode == 0:
            break
        assert done.returncode == 9
        killed += 1
        check_others(path)
    assert killed >= 5
    assert disk_bytes(path) <= 1.15 * LIVE_BYTES + RESERVES_BYTES
    check_others(path)


def test_a_directory_that_another_process_has_open_is_left_alone(tmp_path: Path, capsys: Run) -> None:
    path = tmp_path / "ns"
    write(path, LOGS[:1])
    program = f"""
import dlog.blocking as blocking
with blocking.open_namespace({path.as_uri()!r}):
    print("open", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        assert main(["compact", str(path)]) not in (0, None)
        assert f"process {holder.pid}" in capsys.readouterr().err
        holder.communicate("\n")
    assert main(["compact", str(path)]) in (0, None)


def test_what_is_no_namespace_is_refused_and_stays(tmp_path: Path, capsys: Run) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["compact", str(tmp_path)]) not in (0, None)
    assert "no namespace is there" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["file"]


def test_a_journal_that_was_not_closed_in_order_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "ns"
    program = f"""
import os
import dlog.blocking as blocking
namespace = blocking.open_namespace({path.as_uri()!r})
writer = namespace.open_writer("a", create=True)
writer.append(b"acknowledged")
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    trio.run(trim_journal, path)
    assert main(["compact", str(path)]) in (0, None)
    with dlog.blocking.open_namespace(path.as_uri()) as namespace:
        namespace.open_writer("a").close()  # which recovers the log's end
        with namespace.open_reader("a", follow=False) as reader:
            assert [record.payload for record in reader] == [b"acknowledged"]
