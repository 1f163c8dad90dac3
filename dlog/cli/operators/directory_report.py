"""What `dlog check` and `dlog repair` say about a directory: the records and the blobs that are lost.

Inside: reading all logs and blobs, the lines, the JSON. Not inside: the commands (``check``, ``repair``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs

import dlog
from dlog.cli.terminal.output import counted, print_note, progress_bar
from dlog.cli.terminal.signals import run
from dlog.read.positioning import ID_MAX


@attrs.frozen
class LogLoss:
    """The records of one log: how many are left, and which are lost."""

    log: str
    records: int  # that could be read
    gaps: tuple[dlog.Gap, ...]
    error: dlog.DLogError | None  # why reading ended before the end; None: it did not

    @property
    def is_sound(self) -> bool:
        """True if all was read."""
        return not self.gaps and self.error is None


@attrs.frozen
class Losses:
    """The records and blobs that are lost in a directory."""

    logs: tuple[LogLoss, ...]
    blobs: int  # that were read; each digest is checked
    lost_blobs: tuple[tuple[str | None, dlog.DLogError], ...]  # names, None for all; and the cause

    @property
    def is_sound(self) -> bool:
        """True if all was read."""
        return not self.lost_blobs and all(each.is_sound for each in self.logs)


def find_losses(directory: Path, *, quiet: bool = False) -> Losses:
    """Read all logs and blobs of a directory, which no damage keeps from being opened for reading.

    Raises:
        DLogError: The logs cannot be listed.
    """
    return run(partial(_read, directory.absolute().as_uri(), quiet))


async def _read(uri: str, quiet: bool) -> Losses:
    async with dlog.open_namespace(uri, read_only=True) as namespace:
        with progress_bar("reading all logs", None, unit="records", quiet=quiet) as show:
            found: list[LogLoss] = []
            for log in sorted(await namespace.list_logs()):
                before = sum(each.records for each in found)
                found.append(await _read_log(namespace, log, before, show))
        lost: list[tuple[str | None, dlog.DLogError]] = []
        try:
            blobs = await namespace.blobs.list()
        except dlog.DLogError as exc:  # one damaged node must not hide the logs
            return Losses(tuple(found), 0, ((None, exc),))
        with progress_bar("reading all blobs", len(blobs), unit="blobs", quiet=quiet) as show:
            for number, blob in enumerate(blobs, 1):
                try:
                    async with namespace.blobs.open_reader(blob.name) as reader:
                        async for _ in reader:
                            pass
                except dlog.DLogError as exc:
                    lost.append((blob.name, exc))
                show(number)
        return Losses(tuple(found), len(blobs) - len(lost), tuple(lost))


async def _read_log(namespace: dlog.Namespace, log: str, before: int, show: Callable[[int], None]) -> LogLoss:
    """Read a log to its present end. Each digest is checked."""
    records, gaps, error = 0, [], None
    try:
        async with namespace.open_reader(log, follow=False, gaps=True) as reader:
            async for each in reader.batches(gaps=True):
                if isinstance(each, dlog.Gap):
                    gaps.append(each)
                else:
                    records += len(each)
                    show(before + records)
    except dlog.DLogError as exc:
        error = exc
    return LogLoss(log, records, tuple(gaps), error)


def print_losses(losses: Losses) -> None:
    """Print a line for each gap and each lost blob on stderr, and one with the sums."""
    for loss in losses.logs:
        for gap in loss.gaps:
            print_note(f"{loss.log}: lost: {gap.first} to {gap.last}, {_size(gap)}: {gap.evidence}")
        if loss.error is not None:
            print_note(f"{loss.log}: cannot be read to its end: {loss.error}")
    for name, error in losses.lost_blobs:
        print_note(f"the blobs cannot be listed: {error}" if name is None else f"blob {name}: lost: {error}")
    records = sum(each.records for each in losses.logs)
    blobs = f" and {counted(losses.blobs, 'blob')}" if losses.blobs or losses.lost_blobs else ""
    print_note(
        f"{counted(len(losses.logs), 'log')} with {counted(records, 'record')}{blobs} that can be read"
    )


def losses_document(losses: Losses | None) -> dict[str, Any]:
    """Logs and blobs as JSON; None: none was read."""
    if losses is None:
        return {"logs": [], "blobs": 0, "lost_blobs": []}
    return {
        "logs": [_loss_document(each) for each in losses.logs],
        "blobs": losses.blobs,
        "lost_blobs": [{"blob": name, "error": str(error)} for name, error in losses.lost_blobs],
    }


def _loss_document(loss: LogLoss) -> dict[str, Any]:
    return {
        "log": loss.log,
        "records": loss.records,
        "gaps": [
            {
                "first": str(gap.first),
                "last": str(gap.last),
                "cause": gap.cause.value,
                "evidence": gap.evidence,
            }
            for gap in loss.gaps
        ],
        "error": None if loss.error is None else str(loss.error),
    }


def _size(gap: dlog.Gap) -> str:
    if gap.last.entry_id == ID_MAX or gap.first.segment_seqno != gap.last.segment_seqno:
        return gap.cause.value
    return f"{counted(gap.last.entry_id - gap.first.entry_id + 1, 'entry', 'entries')}, {gap.cause.value}"
