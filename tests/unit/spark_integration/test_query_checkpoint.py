"""Positions in the files of a checkpoint."""

# covers: spark_integration/checkpoint.py

from __future__ import annotations

import json
from pathlib import Path

import pytest

from namespace.dlsn import DLSN
from spark_integration.checkpoint import committed_positions
from spark_integration.errors import OffsetFormatError


def checkpoint(directory: Path, *offsets: object, committed: int = 0) -> Path:
    for name in ("offsets", "commits"):
        (directory / name).mkdir()
    lines = ["v1", '{"batchWatermarkMs":0}', *(json.dumps(each) for each in offsets)]
    (directory / "offsets" / str(committed)).write_text("\n".join(lines))
    (directory / "offsets" / str(committed + 1)).write_text("v1\n{}\n" + json.dumps({"later": 1}))
    (directory / "commits" / str(committed)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (directory / "commits" / f".{committed}.crc").write_bytes(b"crc")
    return directory


def offset(**streams: list[int]) -> dict[str, object]:
    return {"v": 1, "streams": streams}


def test_the_next_record_after_the_last_committed_batch_is_named(tmp_path: Path) -> None:
    found = committed_positions(
        checkpoint(tmp_path, offset(a=[7, 41, 3], b=[7, 41, -1], c=[0, -1, -1], d=[7, -1, -1]), committed=10)
    )
    assert found == {"a": DLSN(7, 41, 4), "b": DLSN(7, 42, 0), "c": DLSN(0, 0, 0), "d": DLSN(7, 0, 0)}


def test_of_two_sources_the_one_that_is_behind_counts_and_others_are_skipped(tmp_path: Path) -> None:
    found = committed_positions(checkpoint(tmp_path, offset(a=[2, 5, 0]), {"x": 1}, offset(a=[2, 4, 0])))
    assert found == {"a": DLSN(2, 4, 1)}


def test_before_the_first_commit_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    assert committed_positions(tmp_path) == {}


def test_what_is_no_checkpoint_of_ours_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        committed_positions(tmp_path)
    with pytest.raises(OffsetFormatError, match="no offset of a dlog source"):
        committed_positions(checkpoint(tmp_path, {"x": 1}))
    (tmp_path / "offsets" / "0").write_text("PAR1")
    with pytest.raises(OffsetFormatError, match="offset log"):
        committed_positions(tmp_path)
