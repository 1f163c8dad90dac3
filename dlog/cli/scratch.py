"""A directory for the length of a demo or a benchmark, on a real disk.

Always: removed when the block is left, unless it is to be kept or something failed: then it is the evidence.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dlog.cli.output import tell
from dlog.cli.running import TerminatedError
from dlog.cli.target import scratch_directory


@contextlib.contextmanager
def open_scratch(name: str, *, keep: bool = False, keep_evidence: bool = True) -> Iterator[Path]:
    """A fresh directory; its name begins with ``name``. ``keep_evidence``: it stays if something fails."""
    parent = scratch_directory(os.environ, Path.home())
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
    remove = not keep_evidence
    try:
        yield directory
        remove = not keep
    except TerminatedError:
        remove = True
        raise
    finally:
        if remove:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            tell(f"files kept in {directory}")
