"""Garbage collection of the bookie that a process hosts for a directory.

Inside: when a round runs, and which entry logs are compacted. Not inside: the rounds
(``bookie.gc.collector``), the check that the metadata belongs to the bookie
(``bookie.embedded.bound_metadata``), hosting (``host``).
Always: a directory whose metadata does not belong to its bookie works without garbage collection; a failed
round is logged and repeated later; two rounds never run at once.

A process may be short-lived. So a round runs when a process has hosted for a minute, soon after it deleted a
ledger, and, if there was no time for that, when it closes. Regular rounds find what other processes deleted.
On a full disk a round follows a deletion at once, and regular ones are frequent: the program that deletes
waits for space.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import trio

from bookie.bookie import Bookie
from bookie.disk.disk import Disk
from bookie.embedded.bound_metadata import BoundMetadata, bind_metadata
from bookie.embedded.space import RESERVE_BYTES
from bookie.errors import BookieServerError, MetadataLostError, StorageFailedError
from bookie.gc.collector import GarbageCollector, GcConfig, GcRoundResult
from bookie.gc.compaction_rules import CompactionConfig
from bookie.gc.log_collector import LogCollector
from bookie.ledger_metadata.live_ledgers import ServedLedgers, load_tombstones
from bookie.storage.config import CURRENT
from ledger.catalog.paths import Layout
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

FIRST_ROUND_S = 60.0  # a program's start, with its imports, comes first
INTERVAL_S = 600.0
AFTER_DELETION_S = 30.0  # the round waits for more deletions, and follows them at most so often
CLOSE_ROUND_S = 3.0  # closing waits this long for a round
FULL_INTERVAL_S = 5.0  # on a full disk; a round that finds nothing takes milliseconds

# Small entry logs: the space of a log is freed when the log is complete and all of it is dead, or rewritten.
# On a full disk the live part of one log must fit into the reserve. So a small disk has smaller ones.
ENTRY_LOG_BYTES_MAX = 64 << 20
_ENTRY_LOG_BYTES_MIN = 1 << 20
_LOGS_PER_DISK = 32
_RESERVE_BELOW_BYTES = 2 << 30  # a directory takes no space for a day that is far away
_PRESSED_BYTES = 16 << 20

logger = get_logger(__name__)


def entry_log_bytes_for(total_bytes: int) -> int:
    """How large an entry log gets on a disk of this size."""
    return min(ENTRY_LOG_BYTES_MAX, max(_ENTRY_LOG_BYTES_MIN, total_bytes // _LOGS_PER_DISK))


def compaction_for(log_bytes_max: int) -> CompactionConfig:
    """Minor compaction follows deletions; it never writes more than it frees.

    The reserve holds the live part of a log, and what the index takes to follow its entries.
    """
    return CompactionConfig(
        minor_threshold=0.5,
        minor_interval_s=900,
        major_threshold=0.8,
        major_interval_s=6 * 3600,
        reserve_bytes=log_bytes_max + log_bytes_max // 2,
        reserve_below_bytes=_RESERVE_BELOW_BYTES,
        flush_reserve_bytes=RESERVE_BYTES,
        pressed_bytes=_PRESSED_BYTES,
    )


def thorough(config: CompactionConfig) -> CompactionConfig:
    """Every log with a dead byte is rewritten, as fast as the disk allows."""
    return attrs.evolve(config, major_threshold=1.0, rate_bytes_per_s=float(1 << 40))


def _compacted(collectors: Sequence[LogCollector]) -> int:
    return sum(each.stats.compacted_logs for each in collectors)


class EmbeddedGarbage:
    """Rounds for one hosted bookie. Made by ``open_garbage``."""

    def __init__(
        self,
        collector: GarbageCollector,
        path: Path,
        bound: BoundMetadata,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_full``: whether the disk has no space for appends."""
        self.collector, self._bound, self._is_full = collector, bound, is_full
        self._path = path
        self._turn = trio.Lock()
        self._is_owed = False  # a ledger was deleted after the last complete round began
        self._deleted = trio.Event()

    def ledger_deleted(self) -> None:
        """Note that this process deleted a ledger; a round follows."""
        self._is_owed = True
        self._deleted.set()

    async def collect(self) -> GcRoundResult:
        """Run a round now, and compact logs that are half empty. Raises what ``run_round`` raises."""
        async with self._turn:
            was_owed, self._is_owed = self._is_owed, False
            self._deleted = trio.Event()
            try:
                self.collector.force(minor=True)
                return await self.collector.run_round()
            except BaseException:
                self._is_owed |= was_owed
                raise

    async def compact(self, on_round: Callable[[int], None]) -> int:
        """Give back all space of deleted ledgers: run rounds as long as each leaves fewer dead bytes.

        A cancelled call has given back a part.

        Args:
            on_round: Called after each round with the number of entry logs that it rewrote or deleted.

        Returns:
            The bytes of dead entries that are left: of a log that is damaged, or for whose copy there is no
            space. A log line says which.

        Raises: what ``run_round`` raises.
        """
        collectors = self.collector.collectors
        async with self._turn:
            configs = [each.config for each in collectors]
            for each in collectors:
                each.use(thorough(each.config))
            try:
                before_bytes, dead_bytes = 1 << 62, (1 << 62) - 1
                while 0 < dead_bytes < before_bytes:  # a log that must be kept is not rewritten for ever
                    before_bytes, compacted = dead_bytes, _compacted(collectors)
                    self.collector.force(major=True)
                    done = await self.collector.run_round()
                    dead_bytes = sum(each.stats.total_bytes - each.stats.live_bytes for each in collectors)
                    on_round(len(done.log_ids) + _compacted(collectors) - compacted)
                return dead_bytes
            finally:
                for each, config in zip(collectors, configs, strict=True):
                    each.use(config)

    async def run(self) -> None:
        """Run rounds until cancelled, or until the storage has failed."""
        pause_s = FIRST_ROUND_S
        while True:
            with trio.move_on_after(FULL_INTERVAL_S if self._is_full() else pause_s):
                await self._deleted.wait()
                if not self._is_full():
                    await trio.sleep(AFTER_DELETION_S)
            pause_s = INTERVAL_S
            if not await self._try_collect():
                return

    async def finish(self) -> None:
        """Run a round if one is owed, and note the last change; call it before the bookie closes.

        It takes at most ``CLOSE_ROUND_S``.
        """
        with trio.move_on_after(CLOSE_ROUND_S):
            if self._is_owed:
                await self._try_collect()
            # Without the note an older store would look like the present one.
            with suppress(BookieServerError, MetadataError, OSError):
                await self._bound.note()

    async def _try_collect(self) -> bool:
        """Run a round; False if the storage has failed, so that no other round can succeed."""
        try:
            await self.collect()
        except StorageFailedError:
            return False  # the bookie reports it
        except (BookieServerError, MetadataError, OSError) as exc:
            logger.warning(
                "%s: garbage collection failed and will be repeated: %s",
                self._path,
                exc,
                extra=event("garbage.failed", directory=str(self._path), error=exc),
            )
        except Exception as exc:  # the directory works without garbage collection
            report_contained("garbage collection", exc, directory=self._path)
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
    """Bind bookie and metadata; None if there can be no garbage collection, with the reason in the log.

    Call it before the bookie serves requests.

    Raises:
        MetadataLostError: The metadata lacks ledgers of the bookie, so that it must not serve.
    """
    try:
        tombstones = await load_tombstones(bookie.service, directory, disk)
        bound = await bind_metadata(
            store,
            root,
            layout,
            disk,
            directory / CURRENT,
            bookie.storage.ledger_ids(),
            is_in_place=is_in_place,
        )
    except MetadataLostError:
        raise
    except (BookieServerError, MetadataError, OSError) as exc:
        logger.warning(
            "%s: the space of deleted logs is not freed until it is reopened: %s",
            directory,
            exc,
            extra=event("garbage.off", directory=str(directory), error=exc),
        )
        return None
    if bound is None:
        return None
    served = ServedLedgers(bookie.service, tombstones)
    collectors = bookie.storage.collectors
    collector = GarbageCollector(
        served, bound, config=GcConfig(interval_s=INTERVAL_S), compaction=collectors[0].config
    )
    rights = bookie.service.rights
    return EmbeddedGarbage(collector, directory, bound, lambda: not rights.writable)
