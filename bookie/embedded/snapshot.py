"""The bookie of a directory that is only read: it serves what the files held at one moment.

Inside: starting it above the files, its end when they change. Not inside: whether a process hosts the
directory (``read_only``), the changes in memory (``bookie.disk.overlay``).
Always: nothing is written below the directory. A reader that needs a file which another process has changed
meanwhile gets an error that says so; it never gets other bytes.

Source: our own.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import trio

from bookie.bookie import Bookie, open_bookie
from bookie.damage.scrubber import ScrubConfig
from bookie.disk.overlay import OverlayDisk, StoredFile, stored_files
from bookie.embedded.bound_metadata import check_metadata
from bookie.embedded.garbage import ENTRY_LOG_BYTES_MAX
from bookie.embedded.unusable import unusable
from bookie.errors import BookieServerError
from bookie.journal.files import JournalConfig
from bookie.storage.config import CURRENT, StorageConfig
from ledger.catalog.paths import Layout
from ledger.deploy.directory import BOOKIE
from ledger.errors import DirectoryUnusableError
from ledger.metadata_store.store import MetadataStore
from ledger.transport.dial import Address
from ledger.transport.pipe import stream_pair

_JOURNAL_BYTES = 64 << 10  # of the new journal file, which is in memory and gets no entry


class Snapshot:
    """The files of a directory at one moment, and the bookie above them. Made by ``take_snapshot``."""

    def __init__(
        self, path: Path, files: dict[Path, StoredFile], disk: OverlayDisk, changed: trio.Event
    ) -> None:
        self._path, self._files, self._disk, self._changed = path, files, disk, changed
        self._bookie: Bookie | None = None
        self._streams: trio.Nursery | None = None

    async def is_current(self) -> bool:
        """True if no file below the directory was changed, created or deleted since the snapshot."""
        try:
            found, _ = await trio.to_thread.run_sync(stored_files, self._path)
        except OSError:
            return False
        return found == self._files

    async def dial(self, _address: Address) -> trio.abc.Stream:
        """A stream to the bookie, which must run."""
        assert self._bookie is not None  # ``run`` sets both before it has started
        assert self._streams is not None  # likewise
        ours, theirs = stream_pair()
        self._streams.start_soon(self._bookie.serve_stream, theirs)
        return ours

    async def run(
        self, store: MetadataStore, root: str, layout: Layout, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Run the bookie until cancelled; ``started`` when it serves.

        Args:
            store: The metadata of the same moment.

        Raises:
            DirectoryUnusableError: The files cannot be served, or a file that was needed has changed.
        """
        directories: Any = (self._path / BOOKIE,)  # mypy takes the converter's type variable literally
        config = StorageConfig(
            journal_directories=directories,
            ledger_directories=directories,
            entry_log_bytes_max=ENTRY_LOG_BYTES_MAX,
            journal=JournalConfig(preallocate_bytes=_JOURNAL_BYTES, direct=False),
            scrub=ScrubConfig(interval_s=0),
            skip_damaged_journal=True,  # readers get an error, or a gap, where entries are damaged
        )
        try:
            async with open_bookie(config, disk=self._disk) as bookie:
                current = self._path / BOOKIE / CURRENT
                await check_metadata(store, root, layout, self._disk, current, bookie.storage.ledger_ids())
                self._bookie = bookie
                async with trio.open_nursery() as self._streams:
                    task_status.started()
                    await self._changed.wait()
                    self._streams.cancel_scope.cancel()
        except (BookieServerError, OSError) as exc:
            if not self._changed.is_set():
                raise unusable(self._path, "its files cannot be read", exc) from None
        raise DirectoryUnusableError(
            f"directory {self._path}: another process has changed its files since it was opened with"
            " read_only=True; open it again"
        )


async def take_snapshot(path: Path) -> Snapshot:
    """Note the files of a directory as they are.

    Raises:
        OSError: They cannot be listed, or change at this moment.
    """
    changed, token = trio.Event(), trio.lowlevel.current_trio_token()

    def note_change() -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(changed.set)

    def take() -> Snapshot:
        disk = OverlayDisk(path / BOOKIE, note_change)
        # The list of the disk is older: a difference between the two makes the snapshot outdated at once.
        files, _ = stored_files(path)
        below = {one: file for one, file in files.items() if path / BOOKIE in one.parents}
        return Snapshot(path, {**files, **disk.stored} if below == disk.stored else {}, disk, changed)

    return await trio.to_thread.run_sync(take)
