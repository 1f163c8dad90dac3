"""A directory on a real disk for the duration of a demo or a benchmark.

Always: the directory is removed at the end. It stays if the user asks for it, or as evidence after a failure.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dlog.cli.terminal.options import own_home, scratch_directory
from dlog.cli.terminal.output import print_note
from dlog.cli.terminal.signals import TerminatedError


@contextlib.contextmanager
def open_scratch(name: str, *, keep: bool = False, keep_evidence: bool = True) -> Iterator[Path]:
    """Create a directory with a name that begins with ``name``; remove it at the end.

    Args:
        keep: Keep the directory if the block succeeds.
        keep_evidence: Keep the directory if the block raises an error. A signal removes it all the same.
    """
    parent = scratch_directory(os.environ, own_home())
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
            print_note(f"files kept in {directory}")
