"""Garbage collection of the bookie that a process hosts for a directory.

Inside: when there is a round, and which entry logs are worth compacting there. Not inside: rounds
(``bookie.gc``), whose metadata is believed (``bookie.bound_metadata``), hosting (``embedded``).
Always: a directory whose metadata and bookie do not fit is used without garbage collection; a failed round
is logged and stops nothing; two rounds never run at once.

Processes may be short: a round is done when a process has hosted for a minute, soon after it has deleted
something, and, if it has not come to that, when it closes; regularly for what other processes delete.

Source: our own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import trio

from bookie.bound_metadata import bind_metadata
from bookie.compaction_rules import CompactionConfig
from bookie.disk import Disk
from bookie.errors import BookieServerError, StorageFailedError
from bookie.gc import Collected, GarbageCollector, GcConfig
from bookie.live_ledgers import ServedLedgers, remember_tombs
from bookie.run import Bookie
from bookie.storage_config import CURRENT
from ledger.paths import Layout
from namespace.errors import NamespaceError
from namespace.store import MetadataStore

FIRST_ROUND_S = 60.0  # opening, and the import that follows, come first
INTERVAL_S = 600.0
AFTER_DELETION_S = 30.0  # for the deletions that come with it, and at most so often
CLOSE_ROUND_S = 3.0  # what closing waits for a round

# A log is given back when it is complete and all in it is dead, or is rewritten: small ones.
ENTRY_LOG_BYTES_MAX = 64 << 20
# Minor compaction follows deletions; it never writes more than it frees. No reserve for full disks: 64 MiB
# are more than many such directories hold.
COMPACTION = CompactionConfig(
    minor_threshold=0.5, minor_interval_s=900, major_threshold=0.8, major_interval_s=6 * 3600, reserve_bytes=0
)

logger = logging.getLogger(__name__)


class EmbeddedGarbage:
    """Rounds for one hosted bookie. Made by ``open_garbage``."""

    def __init__(self, collector: GarbageCollector, path: Path) -> None:
        self.collector = collector
        self._path = path
        self._turn = trio.Lock()
        self._is_owed = False  # something was deleted since the last whole round began
        self._deleted = trio.Event()

    def ledger_deleted(self) -> None:
        """This process has deleted a ledger; a round follows."""
        self._is_owed = True
        self._deleted.set()

    async def collect(self) -> Collected:
        """Do a round now, with compaction of logs that are half empty. Raises as ``run_round``."""
        async with self._turn:
            was_owed, self._is_owed = self._is_owed, False
            self._deleted = trio.Event()
            try:
                self.collector.force(minor=True)
                return await self.collector.run_round()
            except BaseException:
                self._is_owed |= was_owed
                raise

    async def run(self) -> None:
        """Do rounds until cancelled, or until the storage has failed."""
        pause_s = FIRST_ROUND_S
        while True:
            with trio.move_on_after(pause_s):
                await self._deleted.wait()
                await trio.sleep(AFTER_DELETION_S)
            pause_s = INTERVAL_S
            if not await self._try_collect():
                return

    async def finish(self) -> None:
        """Before the bookie closes: a round, within ``CLOSE_ROUND_S``, if one is owed."""
        if self._is_owed:
            with trio.move_on_after(CLOSE_ROUND_S):
                await self._try_collect()

    async def _try_collect(self) -> bool:
        """False once there is no sense in another."""
        try:
            await self.collect()
        except StorageFailedError:
            return False  # told by the bookie
        except (BookieServerError, NamespaceError, OSError) as exc:
            logger.warning("%s: garbage collection failed, and is tried again: %s", self._path, exc)
        except Exception:  # reported here, and here it stops: the namespace works without
            logger.exception("%s: garbage collection failed, and is tried again", self._path)
        return True


async def open_garbage(
    bookie: Bookie,
    store: MetadataStore,
    root: str,
    layout: Layout,
    disk: Disk,
    directory: Path,
    is_in_place: Callable[[], bool],
) -> EmbeddedGarbage | None:
    """Bind bookie and metadata; None, with the reason logged, if there can be no garbage collection.

    Before the bookie is served.
    """
    try:
        tombs = await remember_tombs(bookie.service, directory, disk)
        bound = await bind_metadata(
            store,
            root,
            layout,
            disk,
            directory / CURRENT,
            bookie.storage.ledger_ids(),
            is_in_place=is_in_place,
        )
    except (BookieServerError, NamespaceError, OSError) as exc:
        logger.warning("%s: space of deleted logs is not given back until it is reopened: %s", directory, exc)
        return None
    if bound is None:
        return None
    served = ServedLedgers(bookie.service, tombs)
    config = GcConfig(interval_s=INTERVAL_S)
    return EmbeddedGarbage(GarbageCollector(served, bound, config=config, compaction=COMPACTION), directory)


def identity_of(path: Path) -> tuple[int, int] | None:
    """Which file it is; None if there is none."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino
