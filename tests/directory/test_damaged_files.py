"""Damaged files of a directory: what is sound is read, what is lost is said, and one command mends it."""

# covers: bookie/embedded/repair.py
# covers: bookie/embedded/unusable.py
# covers: dlog/cli/operators/check.py
# covers: dlog/cli/operators/directory_report.py

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dlog
import dlog.blocking
from dlog.cli.main import main
from ledger.metadata_store.sqlite_store.tree import SqliteTree

pytestmark = pytest.mark.slow

COUNT = 60
LOGS = ("a", "b")
Run = pytest.CaptureFixture[str]

PROGRAM = f"""
import os, sys
import dlog.blocking
with dlog.blocking.open_namespace(sys.argv[1]) as namespace:
    writers = [namespace.open_writer(log, create=True) for log in {LOGS!r}]
    for number in range({COUNT}):
        for writer in writers:
            writer.append(b"%d" % number * 40)
    if sys.argv[2] == "killed":
        os._exit(9)
"""


def written(path: Path, ending: str) -> None:
    """Two logs, each record acknowledged before the next one, by a process that closes them or is killed."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, path.as_uri(), ending], check=False)
    assert done.returncode == (9 if ending == "killed" else 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ns"


def journal(path: Path) -> Path:
    (found,) = (path / "bookie/current").glob("*.txn")
    return found


def overwrite(file: Path, data: bytes, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def blocks_of(file: Path) -> list[int]:
    """Where the blocks of the journal with a payload begin."""
    data = file.read_bytes()
    return [at for at in range(4096, len(data), 4096) if re.search(rb"\d{40}", data[at : at + 4096])]


def numbers(path: Path, log: str, **options: object) -> tuple[list[int], list[dlog.Gap]]:
    """The numbers of the records that are left, and the gaps."""
    found: list[int] = []
    gaps: list[dlog.Gap] = []
    with (
        dlog.blocking.open_namespace(path.as_uri(), **options) as namespace,  # type: ignore[arg-type]
        namespace.open_reader(log, follow=False, gaps=True) as reader,
    ):
        while (batch := reader.read_batch_or_gap(1000)) is not None:
            if isinstance(batch, dlog.Gap):
                gaps.append(batch)
            else:
                for record in batch:
                    number = int(record.payload[:2]) if len(record.payload) == 80 else int(record.payload[:1])
                    assert record.payload == b"%d" % number * 40
                    found.append(number)
    return found, gaps


def read_strictly(path: Path) -> None:
    """Read all logs without gaps."""
    with dlog.blocking.open_namespace(path.as_uri()) as namespace:
        for log in LOGS:
            with namespace.open_reader(log, follow=False) as reader:
                assert len(list(reader)) == COUNT


def recover(path: Path) -> None:
    """As the next writer of each log does: the last records are not confirmed before."""
    with dlog.blocking.open_namespace(path.as_uri()) as namespace:
        for log in LOGS:
            namespace.repair.recover(log)


@pytest.mark.parametrize("damage", ["gone", "empty", "zeros", "garbage"])
def test_a_directory_that_was_closed_in_order_needs_no_journal(path: Path, damage: str) -> None:
    written(path, "closed")
    file = journal(path)
    match damage:
        case "gone":
            file.unlink()
        case "empty":
            file.write_bytes(b"")
        case "zeros":
            file.write_bytes(bytes(file.stat().st_size))
        case "garbage":
            file.write_bytes(os.urandom(file.stat().st_size))
    for options in ({"read_only": True}, {}):
        for log in LOGS:
            assert numbers(path, log, **options) == (list(range(COUNT)), [])
    with (
        dlog.blocking.open_namespace(path.as_uri()) as namespace,
        namespace.open_writer("a") as writer,
    ):
        writer.append(b"%d" % 7 * 40)
    assert numbers(path, "a")[0] == [*range(COUNT), 7]


def flip(file: Path, blocks: list[int]) -> None:
    at = blocks[len(blocks) // 2] + 100
    overwrite(file, bytes([file.read_bytes()[at] ^ 8]), at)


def zero(file: Path, blocks: list[int]) -> None:
    overwrite(file, bytes(4096), blocks[len(blocks) // 2])


def zero_many(file: Path, blocks: list[int]) -> None:
    half = len(blocks) // 2
    for at in blocks[half - 8 : half + 8]:
        overwrite(file, bytes(4096), at)


@pytest.mark.parametrize("damage", [flip, zero, zero_many])
def test_a_damaged_journal_costs_no_more_than_what_was_damaged(
    path: Path, capfd: Run, damage: Callable[[Path, list[int]], None]
) -> None:
    written(path, "killed")
    file = journal(path)
    blocks = blocks_of(file)
    assert len(blocks) > 2 * COUNT - 10
    damage(file, blocks)
    with pytest.raises(dlog.EmbeddedStoreError, match=f"`dlog repair {path}` says what is lost"):
        recover(path)
    before = file.read_bytes()
    found = {log: numbers(path, log, read_only=True) for log in LOGS}
    lost_max = 16 if damage is zero_many else 1
    for left, gaps in found.values():
        assert left == sorted(set(left))
        assert len(left) >= COUNT - lost_max - 1  # the last one may not be confirmed yet
        assert bool(gaps) == (len(set(range(left[-1])) - set(left)) > 0), (
            "a gap for what is missing, and else none"
        )
        assert all(gap.cause is dlog.GapCause.ENTRY_MISSING for gap in gaps)
    assert any(gaps for _, gaps in found.values())

    assert main(["check", str(path), "--json"]) == 7
    report = json.loads(capfd.readouterr().out)
    assert file.name in report["damage"][0]
    assert {each["log"]: len(each["gaps"]) for each in report["logs"]} == {
        log: len(gaps) for log, (_, gaps) in found.items()
    }
    assert file.read_bytes() == before, "a check changes nothing"

    assert main(["repair", str(path), "--yes", "--json"]) == 7
    assert json.loads(capfd.readouterr().out)["mended"] == report["damage"]
    assert (path / "damaged" / file.name).read_bytes() == before
    recover(path)
    for log, (left, gaps) in found.items():
        after = numbers(path, log)
        assert after[0][: len(left)] == left
        assert after[0][-1] == COUNT - 1
        assert [(gap.first, gap.last) for gap in after[1]] == [(gap.first, gap.last) for gap in gaps]
        with (
            dlog.blocking.open_namespace(path.as_uri()) as namespace,
            namespace.open_writer(log) as writer,
        ):
            writer.append(b"%d" % 5 * 40)
        assert numbers(path, log)[0][-1] == 5
    assert main(["repair", str(path)]) == 0
    assert "nothing to repair" in capfd.readouterr().err


def test_of_a_journal_that_is_gone_the_repair_says_so_and_the_directory_goes_on(
    path: Path, capfd: Run
) -> None:
    written(path, "killed")
    file = journal(path)
    file.unlink()
    assert main(["check", str(path)]) == 7
    assert f"{file.name} is missing" in capfd.readouterr().err
    main(["repair", str(path), "--yes"])
    recover(path)
    with (
        dlog.blocking.open_namespace(path.as_uri()) as namespace,
        namespace.open_writer("a") as writer,
    ):
        writer.append(b"%d" % 3 * 40)
    found, _ = numbers(path, "a")
    assert found == [*range(len(found) - 1), 3]


@pytest.mark.parametrize("ending", ["closed", "killed"])
@pytest.mark.parametrize("name", ["MANIFEST-*", "CURRENT", "*.sst"])
def test_a_damaged_index_is_made_again_with_all_records(
    path: Path, capfd: Run, ending: str, name: str
) -> None:
    written(path, ending)
    files = [each for each in (path / "bookie/current/index").glob(name) if each.stat().st_size]
    for file in files:
        overwrite(file, b"\xee" * (file.stat().st_size - 4), 4)
    code = main(["check", str(path)])
    if not files:
        assert (ending, name) == ("killed", "*.sst")
        assert code == 0
        return
    assert code == 7
    assert "the index" in capfd.readouterr().err
    with (
        pytest.raises(dlog.EmbeddedStoreError, match="dlog repair"),
        dlog.blocking.open_namespace(path.as_uri(), read_only=True),
    ):
        pass
    assert main(["repair", str(path), "--yes"]) == 0
    recover(path)
    for log in LOGS:
        assert numbers(path, log) == (list(range(COUNT)), [])
    assert main(["check", str(path)]) == 0


def test_a_flipped_byte_of_an_entry_log_is_an_error_at_once_and_found_by_a_check(
    path: Path, capfd: Run
) -> None:
    written(path, "closed")
    log = max((path / "bookie/current").glob("*.log"), key=lambda each: each.stat().st_size)
    at = log.read_bytes().index(b"%d" % 30 * 40)
    overwrite(log, b"\xff", at)
    with pytest.raises(dlog.CorruptLogError, match="digest"):
        read_strictly(path)
    assert main(["check", str(path)]) == 7
    assert "1 entry, entry missing" in capfd.readouterr().err
    assert main(["check", str(path), "--quick"]) == 0
    assert main(["repair", str(path)]) == 0, "nothing keeps it from being opened"


def test_a_blob_that_is_damaged_is_found_by_a_check_and_the_others_are_read(path: Path, capfd: Run) -> None:
    written(path, "closed")
    contents = {name: os.urandom(400_000) for name in ("lost.bin", "sound.bin")}
    with dlog.blocking.open_namespace(path.as_uri()) as namespace:
        for name, content in contents.items():
            namespace.blobs.put(name, content)
    assert main(["check", str(path), "--json"]) == 0
    sound = json.loads(capfd.readouterr().out)
    assert (sound["blobs"], sound["lost_blobs"]) == (2, [])
    part = contents["lost.bin"][1000:1100]
    (log,) = [each for each in (path / "bookie/current").glob("*.log") if part in each.read_bytes()]
    overwrite(log, b"damaged", log.read_bytes().index(part))
    assert main(["check", str(path), "--json"]) == 7
    found = capfd.readouterr()
    report = json.loads(found.out)
    assert report["blobs"] == 1
    assert [each["blob"] for each in report["lost_blobs"]] == ["lost.bin"]
    assert "blob lost.bin: lost: " in found.err
    assert all(each["gaps"] == [] for each in report["logs"])


def test_a_damaged_node_of_a_blob_hides_no_log_from_a_check(path: Path, capfd: Run) -> None:
    written(path, "closed")
    with dlog.blocking.open_namespace(path.as_uri()) as namespace:
        namespace.blobs.put("a.bin", b"content")
    tree = SqliteTree(path / "metadata.sqlite")
    (node,) = [each for each in tree.read_tree("/") if each.endswith("/a.bin")]
    tree.put(node, b"{", -1)
    tree.close()
    assert main(["check", str(path), "--json"]) == 7
    report = json.loads(capfd.readouterr().out)
    assert [each["log"] for each in report["logs"]] == list(LOGS)
    assert [each["blob"] for each in report["lost_blobs"]] == [None]


def test_a_directory_in_use_is_not_checked(path: Path, capfd: Run) -> None:
    with dlog.blocking.open_namespace(path.as_uri()) as namespace, namespace.open_writer("a", create=True):
        assert main(["check", str(path)]) != 0
        assert "has it open" in capfd.readouterr().err
    assert main(["check", str(path / "nothing")]) != 0
    assert "no namespace is there" in capfd.readouterr().err
