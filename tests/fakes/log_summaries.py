"""The summary of an entry log in one call; the product takes it in steps."""

from __future__ import annotations

from pathlib import Path

from bookie.disk.disk import Disk
from bookie.entrylog.summary import LogSummary, SummaryScan


def summarise(disk: Disk, directory: Path, log_id: int) -> LogSummary:
    """The summary of a log; blocks until it is complete. Raises as ``SummaryScan.step``."""
    scan = SummaryScan(disk, directory, log_id)
    try:
        while (summary := scan.step()) is None:
            pass
        return summary
    finally:
        scan.close()
