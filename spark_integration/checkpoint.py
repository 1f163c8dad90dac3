"""How far a streaming query has consumed its streams, by the checkpoint that Spark writes for it.

Inside: the files of Spark's offset log and commit log. Not inside: the offsets themselves (``offsets``), what
is behind them (``dlog.page.exporter``).
Always: nothing is written. A batch counts once Spark has committed it; before the first commit no position is
known.

Source: Apache Spark, HDFSMetadataLog.scala, OffsetSeqLog.scala, CommitLog.scala.
"""

from __future__ import annotations

import json
from pathlib import Path

from namespace.dlsn import DLSN
from spark_integration.errors import OffsetFormatError
from spark_integration.offsets import BEFORE_EVERYTHING, FORMAT_VERSION, WHOLE_ENTRY, Position, from_offset

_VERSIONS = ("v1", "v2")


def committed_positions(directory: Path) -> dict[str, DLSN]:
    """The first record of each stream that no committed batch has; of several sources the earliest one.

    Empty if no batch is committed.

    Raises:
        OffsetFormatError: A file is not what Spark writes, or no source of the query is ours.
        OSError: A file cannot be read.
    """
    # A name of a file has at most 255 characters.
    batches = [int(path.name) for path in (directory / "commits").iterdir() if path.name.isdecimal()]
    if not batches:
        return {}
    path = directory / "offsets" / str(max(batches))
    version, *lines = path.read_text("utf-8").splitlines()
    if version not in _VERSIONS:
        raise OffsetFormatError(f"{path} begins with {version!r}, and not as the offset log of Spark 3 or 4")
    found: dict[str, DLSN] = {}
    for offset in map(_decoded, lines[1:]):  # the line before has Spark's own settings
        if isinstance(offset, dict) and offset.get("v") == FORMAT_VERSION and "streams" in offset:
            for stream, position in from_offset(offset).items():
                begin = _after(position)
                found[stream] = min(begin, found.get(stream, begin))
    if not found:
        raise OffsetFormatError(
            f"{path} has no offset of a dlog source; name the checkpoint of another query"
        )
    return found


def _decoded(line: str) -> object:
    """The offset of one source; another source's may be no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _after(position: Position) -> DLSN:
    if position == BEFORE_EVERYTHING:
        return DLSN(0, 0, 0)
    if position.slot == WHOLE_ENTRY:
        return DLSN(position.segment, position.entry + 1, 0)
    return DLSN(position.segment, position.entry, position.slot + 1)
