"""Which index a ledger directory has, and opening it.

Inside: the choice, its settings, the refusal to open one kind as the other. Not inside: the indexes.
Always: an index that was made complete by one kind is never opened by the other, which would find it empty
and deny entries that are stored.

Source: LedgerStorageFactory.java and ``ledgerStorageClass`` for the choice.
"""

from __future__ import annotations

import enum
from pathlib import Path

import attrs

from bookie import chunk_index, page_index
from bookie.chunk_index import ChunkIndex
from bookie.disk import Disk
from bookie.errors import IndexKindError
from bookie.index import EntryIndex
from bookie.ledgers import LedgerData
from bookie.page_index import PageIndex, PageIndexConfig

INDEX_DIRECTORY = "index"  # of the map, below ``current``


class IndexKind(enum.Enum):
    """How locations are stored; the value is the name for people."""

    CHUNKS = "chunks"  # as DbLedgerStorage: one ordered map
    PAGES = "pages"  # as Sorted- and InterleavedLedgerStorage: a file for each ledger


_MARKERS = {IndexKind.CHUNKS: chunk_index.COMPLETE, IndexKind.PAGES: page_index.COMPLETE}
_CLASSES = {IndexKind.CHUNKS: "DbLedgerStorage", IndexKind.PAGES: "SortedLedgerStorage"}


@attrs.frozen(kw_only=True)
class IndexConfig:
    """Which index, and how much memory it may take in one directory."""

    kind: IndexKind = IndexKind.CHUNKS
    pages: PageIndexConfig = attrs.field(factory=PageIndexConfig)


def open_index(
    disk: Disk, directory: Path, config: IndexConfig, *, map_name: str = INDEX_DIRECTORY
) -> EntryIndex:
    """Open or create the index of a directory; blocks.

    Raises:
        IndexKindError: It is of the other kind. Nothing was changed.
        StartError: It cannot be opened.
    """
    key_values = disk.open_key_values(directory / map_name)
    try:
        for kind, marker in _MARKERS.items():
            if kind is not config.kind and key_values.get(marker) is not None:
                raise IndexKindError(
                    f"the index in {directory} is of the kind {kind.value!r}, and the configuration asks for"
                    f" {config.kind.value!r}. Set ledgerStorageClass to {_CLASSES[kind]}, or let `dlog bookie"
                    " rebuild-index` make the other from the entry logs"
                )
        if config.kind is IndexKind.CHUNKS:
            return ChunkIndex(key_values)
        return PageIndex(disk, directory, key_values, config.pages)
    except BaseException:
        key_values.close()
        raise


def stored_index(disk: Disk, directory: Path) -> EntryIndex | None:
    """The complete index of whichever kind and page size; None if there is none. Raises as ``open_index``."""
    key_values = disk.open_key_values(directory / INDEX_DIRECTORY)
    try:
        if key_values.get(chunk_index.COMPLETE) is not None:
            return ChunkIndex(key_values)
        page_size = key_values.get(page_index.COMPLETE)
        if page_size is not None:
            config = PageIndexConfig(page_bytes=int(page_size))
            return PageIndex(disk, directory, key_values, config)
    except BaseException:
        key_values.close()
        raise
    key_values.close()
    return None


def stored_ledger_data(disk: Disk, directory: Path) -> dict[int, LedgerData] | None:
    """The data of all ledgers, from a complete index of whichever kind; None if it is not complete.

    Raises as ``open_index``, and ``FormatError`` for data that cannot be read.
    """
    key_values = disk.open_key_values(directory / INDEX_DIRECTORY)
    try:
        if all(key_values.get(marker) is None for marker in _MARKERS.values()):
            return None
        return dict(ChunkIndex(key_values).ledgers())  # both kinds keep them alike
    finally:
        key_values.close()
