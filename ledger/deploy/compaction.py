"""Giving back at once the space of deleted entries in a directory.

Inside: opening the directory for that, and its size before and after. Not inside: the rewriting
(``bookie.gc``), the regular rounds (``bookie.embedded.garbage``).
Always: living entries are copied and durable before their old log is deleted, as in each round.

Source: our own; docs/directory.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
import trio

from ledger.deploy.bookie_lookup import bookie_repair
from ledger.deploy.directory import BOOKIE
from ledger.deploy.embedded import open_embedded_stack
from ledger.deploy.repair import locked_directory
from ledger.errors import DirectoryUnusableError


@attrs.frozen
class CompactedDirectory:
    """The bytes that the directory took on the disk, and those of deleted entries that are left."""

    before_bytes: int
    after_bytes: int
    dead_bytes: int  # of logs that are damaged, or for whose copy there is no space


async def compact_directory(path: Path, on_round: Callable[[int], None]) -> CompactedDirectory:
    """Rewrite each entry log of a directory that holds deleted entries, and delete the old ones.

    A cancelled or interrupted call is repeated; nothing that lives is lost.

    Args:
        on_round: Called after each round with the number of entry logs that it rewrote or deleted.

    Raises:
        DirectoryUnusableError: It is no directory of a namespace, another process has it open, its metadata
            do not belong to its bookie, or it cannot be opened.
    """
    if not (path / BOOKIE).is_dir():
        raise DirectoryUnusableError(f"directory {path}: no namespace is there ({BOOKIE} is missing)")
    before_bytes = await trio.to_thread.run_sync(disk_bytes, path)
    async with open_embedded_stack(path) as stack:
        garbage = stack.hosting.garbage
        if garbage is None and not stack.hosting.is_hosting:
            holder = stack.directory.holder()
            raise DirectoryUnusableError(f"directory {path}: {holder} has it open; end it first")
        if garbage is None:
            raise DirectoryUnusableError(
                f"directory {path}: its metadata do not belong to its bookie, so nothing may be deleted;"
                f" `dlog check {path}` says more"
            )
        dead_bytes = await garbage.compact(on_round)
    with locked_directory(path):
        await bookie_repair().trim_journal(path)
    return CompactedDirectory(before_bytes, await trio.to_thread.run_sync(disk_bytes, path), dead_bytes)


def disk_bytes(path: Path) -> int:
    """The bytes that the files below a directory take on the disk. Blocks."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total
