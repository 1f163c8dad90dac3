"""The directories of a bookie's data, and the memory that its storage may use.

Source: ServerConfiguration.java for the meaning; the sizes are measured for this program.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from bookie.damage.scrubber import ScrubConfig
from bookie.entrylog.writer import PerLedgerConfig
from bookie.gc.compaction_rules import CompactionConfig
from bookie.index.index_factory import IndexConfig
from bookie.journal.files import JournalConfig
from bookie.storage.entry_reads import ReadConfig

CURRENT = "current"  # the child of each configured directory that has all files
LOCK = "LOCK"  # below it: the process that has locked this file may write there


def _some(_: object, attribute: attrs.Attribute[tuple[Path, ...]], value: tuple[Path, ...]) -> None:
    if not value:
        raise ValueError(f"{attribute.name}: at least one directory is needed")
    _distinct(_, attribute, value)


def _distinct(_: object, attribute: attrs.Attribute[tuple[Path, ...]], value: tuple[Path, ...]) -> None:
    if len(set(value)) != len(value):
        raise ValueError(f"{attribute.name}: a directory is listed twice: {', '.join(map(str, value))}")


@attrs.frozen(kw_only=True)
class StorageConfig:
    """The directories of a bookie's data, and the memory that its storage may use.

    The journal of a ledger has the number ``ledger id % number of journals``. A new ledger gets the ledger
    directory with the number ``ledger id % number of ledger directories``.
    """

    journal_directories: tuple[Path, ...] = attrs.field(converter=tuple[Path, ...], validator=_some)
    ledger_directories: tuple[Path, ...] = attrs.field(converter=tuple[Path, ...], validator=_some)
    # One for each ledger directory, in the same order. None: each index is in its ledger directory.
    index_directories: tuple[Path, ...] = attrs.field(
        converter=tuple[Path, ...], default=(), validator=_distinct
    )
    journal: JournalConfig = attrs.field(factory=JournalConfig)
    # For all directories together:
    write_cache_bytes_max: int = attrs.field(default=48 << 20, validator=attrs.validators.ge(1 << 16))
    journal_queue_bytes_max: int = attrs.field(default=16 << 20, validator=attrs.validators.ge(1 << 16))
    entry_log_bytes_max: int = attrs.field(
        default=1 << 30,
        validator=attrs.validators.and_(attrs.validators.gt(4096), attrs.validators.le(1 << 30)),
    )
    index: IndexConfig = attrs.field(factory=IndexConfig)  # of each ledger directory
    reads: ReadConfig = attrs.field(factory=ReadConfig)  # of each ledger directory
    per_ledger_logs: PerLedgerConfig | None = None  # None: all ledgers of a directory share one log
    compaction: CompactionConfig = attrs.field(factory=CompactionConfig)  # of each ledger directory
    scrub: ScrubConfig = attrs.field(factory=ScrubConfig)  # of each ledger directory
    # How often a journal with unsynced adds is synced; None: when the next synced batch comes.
    sync_interval_s: float | None = None
    flush_interval_s: float = attrs.field(default=10, validator=attrs.validators.gt(0))
    # On a full disk a running flush takes nothing of the reserve. It fails, and the next start has all of it,
    # which gives space back with each piece that it flushes.
    reserve_is_for_starts: bool = False
    # Accept empty directories in place of lost ones. The caller that sets it puts every ledger in limbo.
    accepts_losses: bool = False
    skip_damaged_journal: bool = False  # leave out what is damaged in the journal
    rebuild_index: bool = False  # rebuild a missing index from the entry logs; fences all ledgers

    def __attrs_post_init__(self) -> None:
        if self.index_directories and len(self.index_directories) != len(self.ledger_directories):
            raise ValueError(
                f"index_directories: {len(self.index_directories)} of them for"
                f" {len(self.ledger_directories)} ledger directories; there must be one for each, or none"
            )
