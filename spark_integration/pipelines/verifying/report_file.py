"""The file of a report: lines are appended, and synced before they count.

Always: a line that a crash cut is removed before the next one is written; one program at a time writes it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_integration.errors import PipelineError


class ReportFile:
    """Made by ``open_report_file``."""

    def __init__(self, descriptor: int, lines: list[str]) -> None:
        self._descriptor = descriptor
        self.lines = lines  # that were there when it was opened

    def append(self, lines: Iterable[str]) -> None:
        """Add lines, given without their ends. They are durable when this returns.

        Raises:
            OSError: The disk is full, or failed. A part of the lines may be there.
        """
        data = "".join(f"{line}\n" for line in lines).encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
        os.fsync(self._descriptor)


@contextmanager
def open_report_file(path: str | Path) -> Iterator[ReportFile]:
    """Open a report for the duration of the block; make it if it does not exist.

    Raises:
        PipelineError: Another program has it open.
        OSError: It cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(f"{path}: another verification writes this report") from None
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.ftruncate(descriptor, len(whole))
        yield ReportFile(descriptor, whole.decode(errors="replace").splitlines())
    finally:
        os.close(descriptor)
