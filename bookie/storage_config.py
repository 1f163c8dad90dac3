"""Where a bookie keeps its data and how much memory that may take.

Source: ServerConfiguration.java for the meaning; the sizes are measured for this program.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from bookie.entry_reads import ReadConfig
from bookie.journal import JournalConfig


def _one(_: object, attribute: attrs.Attribute[tuple[Path, ...]], value: tuple[Path, ...]) -> None:
    if len(value) != 1:
        raise ValueError(f"{attribute.name}: exactly one directory is served so far, not {len(value)}")


@attrs.frozen(kw_only=True)
class StorageConfig:
    """Where a bookie keeps its data and how much memory that may take."""

    journal_directories: tuple[Path, ...] = attrs.field(converter=tuple, validator=_one)
    ledger_directories: tuple[Path, ...] = attrs.field(converter=tuple, validator=_one)
    journal: JournalConfig = attrs.field(factory=JournalConfig)
    write_cache_bytes_max: int = attrs.field(default=48 << 20, validator=attrs.validators.ge(1 << 16))
    journal_queue_bytes_max: int = attrs.field(default=16 << 20, validator=attrs.validators.ge(1 << 16))
    entry_log_bytes_max: int = attrs.field(
        default=1 << 30,
        validator=attrs.validators.and_(attrs.validators.gt(4096), attrs.validators.le(1 << 30)),
    )
    reads: ReadConfig = attrs.field(factory=ReadConfig)  # of each ledger directory
    flush_interval_s: float = attrs.field(default=10, validator=attrs.validators.gt(0))
    skip_damaged_journal: bool = False  # give up the rest of a journal file that is damaged
    rebuild_index: bool = False  # derive a missing index from the entry logs; fences all ledgers
