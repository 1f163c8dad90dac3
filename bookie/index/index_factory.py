"""The choice of a ledger directory's index, and opening it.

Inside: the two kinds, their settings, the refusal to open one kind as the other. Not inside: the indexes.
Always: an index that was completed by one kind is never opened as the other. The other kind would find no
entries, and reply "no such entry" for stored entries.

Source: LedgerStorageFactory.java and ``ledgerStorageClass`` for the choice.
"""

from __future__ import annotations

import enum
from pathlib import Path

import attrs

from bookie.disk.disk import Disk
from bookie.errors import IndexKindError
from bookie.index import chunk_index, page_index
from bookie.index.chunk_index import ChunkIndex
from bookie.index.entry_index import EntryIndex
from bookie.index.page_cache import PageIndexConfig
from bookie.index.page_repair import RepairablePageIndex
from bookie.ledger_record import LedgerData

INDEX_DIRECTORY = "index"  # the directory of the key-value map, below ``current``


class IndexKind(enum.Enum):
    """How locations are stored. The value is the name in messages."""

    CHUNKS = "chunks"  # as DbLedgerStorage: one ordered map
    PAGES = "pages"  # as Sorted- and InterleavedLedgerStorage: a file for each ledger


_MARKERS = {IndexKind.CHUNKS: chunk_index.COMPLETE, IndexKind.PAGES: page_index.COMPLETE}
STORAGE_CLASSES = {IndexKind.CHUNKS: "DbLedgerStorage", IndexKind.PAGES: "SortedLedgerStorage"}


@attrs.frozen(kw_only=True)
class IndexConfig:
    """The kind of index, and the memory limits for one directory."""

    kind: IndexKind = IndexKind.CHUNKS
    pages: PageIndexConfig = attrs.field(factory=PageIndexConfig)


def open_index(
    disk: Disk, directory: Path, config: IndexConfig, *, map_name: str = INDEX_DIRECTORY
) -> EntryIndex:
    """Open or create the index of a directory; blocks.

    Raises:
        IndexKindError: The index is of the other kind. Nothing was changed.
        StartError: The index cannot be opened.
    """
    key_values = disk.open_key_values(directory / map_name)
    try:
        for kind, marker in _MARKERS.items():
            if kind is not config.kind and key_values.get(marker) is not None:
                raise IndexKindError(
                    f"the index in {directory} is of the kind {kind.value!r}, and the configuration asks for"
                    f" {config.kind.value!r}. Set ledgerStorageClass to {STORAGE_CLASSES[kind]}, or let"
                    f" `dlog bookie convert-index --to {config.kind.value}` build the other kind from the"
                    " entry logs"
                )
        if config.kind is IndexKind.CHUNKS:
            return ChunkIndex(key_values)
        return RepairablePageIndex(disk, directory, key_values, config.pages)
    except BaseException:
        key_values.close()
        raise


def open_existing_index(disk: Disk, directory: Path) -> EntryIndex | None:
    """The complete index, of either kind and any page size; None if absent. Raises as ``open_index``."""
    key_values = disk.open_key_values(directory / INDEX_DIRECTORY)
    try:
        if key_values.get(chunk_index.COMPLETE) is not None:
            return ChunkIndex(key_values)
        page_size = key_values.get(page_index.COMPLETE)
        if page_size is not None:
            config = PageIndexConfig(page_bytes=int(page_size))
            return RepairablePageIndex(disk, directory, key_values, config)
    except BaseException:
        key_values.close()
        raise
    key_values.close()
    return None


def read_ledger_data(disk: Disk, directory: Path) -> dict[int, LedgerData] | None:
    """The data of all ledgers, from a complete index of either kind; None if it is not complete.

    Raises as ``open_index``, and ``FormatError`` for damaged data.
    """
    key_values = disk.open_key_values(directory / INDEX_DIRECTORY)
    try:
        if all(key_values.get(marker) is None for marker in _MARKERS.values()):
            return None
        return dict(ChunkIndex(key_values).ledgers())  # both kinds store ledger data in the same way
    finally:
        key_values.close()
