"""Starting and stopping a bookie's storage.

Inside: locks, opening the ledger directories, replaying the journals, the regular tasks, the last checkpoint.
Not inside: the storage's work in between (``storage``).
Always: nothing stored changes before the directories, the marks and the indexes were checked; a mark moves
only when everything that was replayed below it is durable in the ledger directories.

Source: BookieImpl.java (start, readJournal, shutdown); docs/storage-format.md 12.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial

import trio

from bookie.damage.scrubber import scrub_before_serving
from bookie.digest_checker import DigestTypeOf
from bookie.disk.disk import Disk
from bookie.errors import BookieServerError, StartError, StorageFailedError, StorageFileError
from bookie.journal.checkpoint import Marks
from bookie.journal.journals import Journals
from bookie.journal.last_mark import LastMarks, greatest_marks
from bookie.storage.config import CURRENT, LOCK, StorageConfig
from bookie.storage.directory_files import is_space_scarce
from bookie.storage.directory_set import DirectorySet
from bookie.storage.directory_store import DirectoryPlace, DirectoryStore, StorageParts, open_directory_store
from bookie.storage.failure import Failure
from bookie.storage.storage import Storage
from ledger.runtime.clock import wall_ms
from ledger.runtime.held_directories import DirectoryLostError
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)


@asynccontextmanager
async def open_storage(
    disk: Disk,
    config: StorageConfig,
    *,
    digest_type_of: DigestTypeOf | None = None,
    wall_ms: Callable[[], int] = wall_ms,
) -> AsyncIterator[Storage]:
    """Lock the directories, replay the journals, serve; on leaving, checkpoint and unlock the directories.

    Leaving waits for the checkpoint, cancelled or not, unless the storage has failed.

    Args:
        digest_type_of: See ``Scrubber``.

    Raises:
        DirectoryInUseError: Another process serves one of the directories.
        StartError: The stored data cannot be served as they are. Nothing was changed.
        StorageFileError: A file or a directory cannot be read or written. On a full disk it opens all the
            same, for reads and deletions (``Storage.full``), if the index can be opened.
        ledger.runtime.held_directories.DirectoryLostError: Another directory has the place of one.
    """
    raised: BaseException | None = None
    async with AsyncExitStack() as stack:
        try:
            storage = await _start(stack, disk, config, digest_type_of, wall_ms)
        except (BookieServerError, DirectoryLostError):
            raise
        except OSError as exc:
            if exc.errno is None:  # none of the system's, which name a file
                raise
            raise StorageFileError(exc) from exc
        try:
            async with trio.open_nursery() as nursery:
                watch = storage.failure.watch
                nursery.start_soon(watch, storage.flush_regularly, "a checkpoint")
                for store in storage.stores:
                    nursery.start_soon(store.scrubber.run)
                sync = partial(storage.journals.sync_regularly, config.sync_interval_s)
                nursery.start_soon(watch, sync, "a sync of the journals")
                try:
                    yield storage
                except BaseException as exc:  # raised below, not wrapped into the nursery's group
                    raised = exc
                nursery.cancel_scope.cancel()
        except BaseException:
            if raised is None:
                raise
    if raised is not None:
        raise raised


async def _start(
    stack: AsyncExitStack,
    disk: Disk,
    config: StorageConfig,
    digest_type_of: DigestTypeOf | None,
    wall_ms: Callable[[], int],
) -> Storage:
    """Open everything and replay the journals. ``stack`` closes everything in reverse order."""
    directories = [path / CURRENT for path in config.ledger_directories]
    index_directories = [path / CURRENT for path in config.index_directories] or directories
    threads = [disk.start_thread(f"bookie-storage-{number}") for number in range(len(directories))]
    locks = stack.enter_context(ExitStack())
    for thread in threads:
        _close_later(stack, thread.aclose)
    await threads[0].call(partial(_lock, locks, disk, config))
    directory_set = DirectorySet(disk, directories, accepts_losses=config.accepts_losses)
    await threads[0].call(directory_set.check)
    journals = Journals(disk, [path / CURRENT for path in config.journal_directories], config.journal)
    last_marks = LastMarks(disk, directories, len(journals))
    found = await threads[0].call(last_marks.read)
    journal_ids = await threads[0].call(journals.scan)
    marks = greatest_marks(found)

    failure = Failure()
    shared = StorageParts(disk, config, failure, digest_type_of)
    stores: list[DirectoryStore] = []
    for number, parts in enumerate(zip(directories, index_directories, threads, strict=True)):
        store = await open_directory_store(shared, DirectoryPlace(number, *parts), max(found[number]))
        _close_later(stack, store.aclose)
        stores.append(store)
    _check_homes(stores)
    await threads[0].call(directory_set.stamp)

    storage = Storage(disk, config, stores, journals, last_marks, marks, failure)
    await _give_back_if_full(storage, disk, marks)
    nexts = await journals.replay(
        journal_ids,
        marks,
        storage.replay,
        closed=last_marks.closed(marks),
        wall_ms=wall_ms,
        skip_damaged=log.error if config.skip_damaged_journal else None,
        accepts_losses=config.accepts_losses,
    )
    # If a flush fails on a full disk, what it had to write stays in memory and in the journal.
    # Otherwise all replayed entries become durable now. The checkpoint removes journal files below the marks,
    # and on a full disk the next file needs their space.
    if failure.full is None:
        storage.checkpointer.begin(tuple([one.end for one in nexts]))
        await storage.checkpointer.wait_marked()
    else:
        # The journal may get records before a checkpoint moves the mark.
        await threads[0].call(partial(last_marks.reopen, storage.checkpointer.marks))
    _close_later(stack, partial(_close_marks, storage, last_marks))
    _close_later(stack, journals.aclose)
    try:
        await journals.start(nexts, storage.on_acknowledged, is_lazy=failure.full is not None)
    except OSError as exc:
        if not failure.hold(exc):
            raise
        await journals.start(nexts, storage.on_acknowledged, is_lazy=True)
    if failure.full is None:
        storage.checkpointer.begin(journals.marks)
        await storage.checkpointer.wait_marked()
        storage.checkpointer.gives_back = False
    failure.is_starting = False
    if config.scrub.on_start:
        await scrub_before_serving([store.scrubber for store in stores])
    _close_later(stack, partial(_checkpoint, storage))
    return storage


async def _give_back_if_full(storage: Storage, disk: Disk, marks: Marks) -> None:
    """Free what journals hold and no longer need, so that what they still need can be flushed."""
    checkpointer, thread, journals = storage.checkpointer, storage.stores[0].thread, storage.journals.files
    if not any([await thread.call(partial(is_space_scarce, disk, one.directory)) for one in storage.stores]):
        return
    for files in journals:
        await thread.call(files.drop_spares)
    checkpointer.gives_back = all([await thread.call(files.can_give_back) for files in journals])
    if checkpointer.gives_back:
        checkpointer.begin(marks)
        await checkpointer.wait_marked()


def _lock(locks: ExitStack, disk: Disk, config: StorageConfig) -> None:
    """Create, hold and lock all directories. Blocks."""
    for path in dict.fromkeys(
        (*config.journal_directories, *config.ledger_directories, *config.index_directories)
    ):
        disk.make_directory(path / CURRENT)
        for held in (path, path / CURRENT):
            locks.callback(disk.hold(held))
        locks.callback(disk.lock(path / CURRENT / LOCK))
    disk.check_in_place()  # from here on every path leads to what is locked


def _check_homes(stores: Sequence[DirectoryStore]) -> None:
    """``StartError`` if two directories have the same ledger."""
    homes: dict[int, DirectoryStore] = {}
    for store in stores:
        for ledger_id in store.ledgers:
            home = homes.setdefault(ledger_id, store)
            if home is not store:
                raise StartError(
                    f"ledger {ledger_id} is in {home.directory} and in {store.directory}: one of them is an"
                    " old copy, or another bookie's. Configure the directories this bookie was last run with"
                )


async def _close_marks(storage: Storage, last_marks: LastMarks) -> None:
    """Note that nothing is after the marks, if that is so. The journals are closed."""
    marks = storage.journals.marks
    if storage.failure.error is None and storage.full is None and storage.checkpointer.is_marked(marks):
        try:
            await storage.stores[0].thread.call(partial(last_marks.write, marks, are_closed=True))
        except OSError as exc:
            log.warning("the journals need a replay at the next start: %s", exc)


async def _checkpoint(storage: Storage) -> None:
    if storage.failure.error is None and storage.full is None:
        await storage.journals.sync()
        with contextlib.suppress(StorageFailedError):  # logged; the next start replays the journals
            await storage.flush()


def _close_later(stack: AsyncExitStack, close: Callable[[], Awaitable[None]]) -> None:
    async def shielded() -> None:
        with trio.CancelScope(shield=True):
            await close()

    stack.push_async_callback(shielded)
