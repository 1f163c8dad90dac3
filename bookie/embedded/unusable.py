"""The error of a directory whose bookie cannot start: the remedy is that for a directory.

Inside: the sentence. Not inside: which errors mean that it moved or is full (``host``).
"""

from __future__ import annotations

from pathlib import Path

from bookie.errors import BookieServerError, StartError
from ledger.errors import DirectoryUnusableError


def unusable(path: Path, what: str, error: BookieServerError | OSError) -> DirectoryUnusableError:
    """The error of a directory whose bookie cannot start, with the remedy for a directory."""
    evidence, remedy = str(error), ""
    if isinstance(error, StartError) and error.remedy:
        # That remedy is for a bookie with peers and a configuration file.
        evidence = error.evidence
        remedy = f". `dlog repair {path}` says what is lost, and makes the directory usable again"
    return DirectoryUnusableError(f"directory {path}: {what}: {evidence}{remedy}")
