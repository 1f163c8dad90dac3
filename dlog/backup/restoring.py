"""Restoring a backup into a new directory.

    DIR.restoring/ with RESTORING ──▶ metadata ──▶ entries ──▶ open segments completed ──▶ renamed to DIR

Ledgers keep their ids and their entries, byte for byte, so records keep their positions. All metadata name
the bookie of the directory, and each ledger is closed: the first thing that is done with the logs is what
happens after a crash of their writers.

Inside: these steps. Not inside: what is restored (``plan``).
Always: nothing that exists is written over; DIR is there when it is complete, and not before; what an
interrupted restore left is removed by the next one.

Source: our own; rename(2) replaces an empty directory and no other; docs/backup.md.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from dlog.backup.errors import BackupError, BackupInUseError, RestoreTargetError
from dlog.backup.format import BackupManifest, LedgerCopy, entry_id_of
from dlog.backup.plan import RestorePlan, plan_restore
from dlog.backup.store import BackupStore
from dlog.config import NamespaceConfig
from dlog.context import EMBEDDED_NAMESPACE_PATH, NamespaceContext
from dlog.errors import translated
from ledger.catalog.catalog import open_catalog
from ledger.catalog.metadata_codec import decode_metadata, encode_metadata
from ledger.catalog.paths import IDGEN, INSTANCE_ID, SHORT_ID_LIMIT, Layout, ledger_path
from ledger.client import LedgerClient
from ledger.codes import Code
from ledger.deploy.directory import METADATA, Directory
from ledger.deploy.embedded import BOOKIE_ID, LEDGERS_ROOT, open_embedded_stack
from ledger.digest import EntryCodec
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.metadata_store.sqlite_store.store import SqliteStore, open_sqlite_store
from ledger.metadata_store.store import Create, ancestors_of
from ledger.runtime.private_files import (
    describe_holders,
    make_private_directories,
    open_private,
    sync_directory,
)
from ledger.runtime.tasks.task_errors import for_each
from ledger.transport.bookie_requests import refusal_of
from ledger.wire.messages import AddRequest
from namespace.dlsn import DLSN

MARK = "RESTORING"  # a file in a directory that is not complete
ENTRIES_AT_ONCE = 2_000  # that are written and not yet acknowledged
NODES_AT_ONCE = 200
RECOVERY_TIMEOUT_S = 60.0


@attrs.frozen(kw_only=True)
class RestoreProgress:
    """How far a restore is."""

    bytes_done: int
    bytes_total: int


@attrs.frozen(kw_only=True)
class Restored:
    """The result of a restore."""

    cut_ms: int  # the moment of the backup, epoch milliseconds
    logs: tuple[str, ...]
    entries: int
    size_bytes: int  # of the stored entries
    missing_entries: int  # that the backup does not have; readers find a gap there


async def restore_manifest(
    store: BackupStore,
    manifest: BackupManifest,
    directory: Path,
    *,
    logs: Collection[str] | None,
    position: DLSN | None,
    on_progress: Callable[[RestoreProgress], None],
) -> Restored:
    """Make a directory with the logs of a manifest.

    If cancelled or killed, the directory is not there, and the next call begins again.

    Raises:
        RestoreTargetError, BackupDamagedError, BackupNotFoundError, BackupUnreachableError
        BackupError: A ledger id is too large for a directory.
        EmbeddedStoreError, DiskFullError
    """
    plan = plan_restore(manifest, logs, position)
    greatest = max(plan.ledgers, default=-1)
    if greatest >= SHORT_ID_LIMIT - 1:
        raise BackupError(
            f"ledger {greatest}: a directory has ids below {SHORT_ID_LIMIT - 1}, and entries keep the id of"
            " their ledger. Such a backup is read where it is, and not restored into a directory"
        )
    # One of a cluster becomes another namespace; one of a directory stays what it was.
    is_own = manifest.path == EMBEDDED_NAMESPACE_PATH and all(
        decode_metadata(copy.metadata).last_ensemble.bookies == (BOOKIE_ID,)
        for copy in manifest.ledgers.values()
    )
    with translated(None, "restoring"):
        async with _staging(directory, store.where) as staging:
            await _write_metadata(staging, plan, manifest.instance_id if is_own else None)
            async with open_embedded_stack(staging) as stack:
                restored = await _Entries(store, stack.client, on_progress).write(plan.ledgers)
                context = NamespaceContext(
                    staging.as_uri(),
                    stack.store,
                    stack.client,
                    EMBEDDED_NAMESPACE_PATH,
                    NamespaceConfig(),
                    client_id="dlog restore",
                )
                await _complete(context, plan)
    return attrs.evolve(restored, cut_ms=manifest.cut_ms, logs=plan.logs)


@asynccontextmanager
async def _staging(directory: Path, source: str) -> AsyncIterator[Path]:
    """A new directory beside the wanted one, which is renamed to it at the end of the block."""
    target = Path(await trio.Path(directory).absolute())
    staging = target.with_name(f"{target.name}.restoring")
    lock = await trio.to_thread.run_sync(_make_staging, target, staging, source)
    try:
        yield staging
        await trio.to_thread.run_sync(_rename, staging, target)
    finally:
        os.close(lock)


def _make_staging(target: Path, staging: Path, source: str) -> int:
    """Make the directory; return the locked descriptor of its mark."""
    try:
        if target.exists() and (not target.is_dir() or os.listdir(target)):
            raise RestoreTargetError(
                f"{target} exists and is not empty. Nothing was changed; name a new directory"
            )
        make_private_directories(target.parent)
        if staging.exists() and os.listdir(staging):
            _remove_left(staging)
        make_private_directories(staging)
        lock = open_private(staging / MARK, create=True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = f"A restore from {source} into {target} was not finished. Run it again, or delete this.\n"
            os.pwrite(lock, text.encode(), 0)
            os.fsync(lock)
            sync_directory(staging)
        except BaseException:
            os.close(lock)
            raise
    except BlockingIOError:
        raise BackupInUseError(f"{staging}: another process restores into it") from None
    except OSError as exc:
        raise RestoreTargetError(f"{target} cannot be made: {exc.strerror} ({exc.filename})") from None
    return lock


def _remove_left(staging: Path) -> None:
    """Remove what an interrupted restore left."""
    try:
        lock = open_private(staging / MARK, create=False)
    except FileNotFoundError:
        raise RestoreTargetError(
            f"{staging} exists, and has no file {MARK}: it is not of an interrupted restore. Move it away"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupInUseError(f"{staging}: {describe_holders(lock)} restores into it") from None
        for name in os.listdir(staging):
            path = staging / name
            if name != MARK:  # last, so that a removal that is killed is repeated
                shutil.rmtree(path) if path.is_dir() else os.unlink(path)
        os.unlink(staging / MARK)
    finally:
        os.close(lock)


def _rename(staging: Path, target: Path) -> None:
    try:
        os.unlink(staging / MARK)
        sync_directory(staging)
        os.rename(staging, target)
        sync_directory(target.parent)
    except OSError as exc:
        raise RestoreTargetError(
            f"{target}: {exc.strerror}. The restored directory is complete at {staging}; move it yourself"
        ) from None


async def _write_metadata(staging: Path, plan: RestorePlan, instance_id: str | None) -> None:
    """Write all nodes of the directory, and let it give out no id of a restored ledger."""
    directory = Directory(staging)
    try:
        async with open_sqlite_store(staging / METADATA) as store:
            layout = (await open_catalog(store, LEDGERS_ROOT, Layout.HIERARCHICAL)).layout
            nodes = {f"{LEDGERS_ROOT}/{IDGEN}": b"", EMBEDDED_NAMESPACE_PATH: b""}
            if instance_id is not None:
                nodes[f"{LEDGERS_ROOT}/{INSTANCE_ID}"] = instance_id.encode()
            for ledger_id, copy in plan.ledgers.items():
                nodes[ledger_path(LEDGERS_ROOT, layout, ledger_id)] = encode_metadata(restored_metadata(copy))
            for path, value in plan.nodes.items():
                nodes[f"{EMBEDDED_NAMESPACE_PATH}/{path}"] = value
            await _create(store, nodes)
            await store.skip_numbers(f"{LEDGERS_ROOT}/{IDGEN}", max(plan.ledgers, default=-1) + 1)
    finally:
        directory.close()


def restored_metadata(copy: LedgerCopy) -> LedgerMetadata:
    """The metadata of a ledger that has one replica, in the directory, and is closed at its last entry."""
    metadata = decode_metadata(copy.metadata)
    return attrs.evolve(
        metadata,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        ensembles=(Ensemble(0, (BOOKIE_ID,)),),
        state=LedgerState.CLOSED,
        last_entry_id=copy.last,
        length_bytes=copy.length_bytes,
        creator_token=0,
    )


async def _create(store: SqliteStore, nodes: Mapping[str, bytes]) -> None:
    every = {path: b"" for each in nodes for path in ancestors_of(each)} | dict(nodes)
    there = {path for path, node in (await store.get_many(list(every))).items() if node is not None}
    todo = [Create(path, every[path]) for path in sorted(every) if path not in there]
    batch: list[Create] = []
    size_bytes = 0
    for each in todo:
        if batch and (len(batch) == NODES_AT_ONCE or size_bytes + len(each.value) > 256 * 1024):
            await store.commit(batch)
            batch, size_bytes = [], 0
        batch.append(each)
        size_bytes += len(each.value)
    await store.commit(batch)


class _Entries:
    """Adds stored entries to the bookie of a directory, as a re-replication does."""

    def __init__(
        self, store: BackupStore, client: LedgerClient, on_progress: Callable[[RestoreProgress], None]
    ) -> None:
        self._store, self._transport, self._on_progress = store, client.context.transport, on_progress
        self._done = self._total = self._entries = self._size = 0

    async def write(self, ledgers: Mapping[int, LedgerCopy]) -> Restored:
        """Write the entries of all ledgers, each up to its last. Durable on return."""
        self._total = sum(chunk.size_bytes for copy in ledgers.values() for chunk in copy.chunks)
        missing = 0
        for ledger_id, copy in sorted(ledgers.items()):
            metadata = decode_metadata(copy.metadata)
            key = EntryCodec(metadata.digest_type, metadata.password or b"").master_key
            missing += sum(each <= copy.last for each in copy.missing)
            for chunk in copy.chunks:
                if chunk.first <= copy.last:
                    bodies = await self._store.read_chunk(ledger_id, chunk)
                    await self._add(
                        ledger_id, key, [each for each in bodies if entry_id_of(each) <= copy.last]
                    )
                self._done += chunk.size_bytes
                self._on_progress(RestoreProgress(bytes_done=self._done, bytes_total=self._total))
        return Restored(
            cut_ms=0, logs=(), entries=self._entries, size_bytes=self._size, missing_entries=missing
        )

    async def _add(self, ledger_id: int, key: bytes, bodies: Sequence[bytes]) -> None:
        async def add(body: bytes) -> None:
            entry_id = entry_id_of(body)
            request = AddRequest(ledger_id, entry_id, key, body, recovery=True)
            reply = await self._transport.call(BOOKIE_ID, request)
            if reply.code is not Code.OK:
                raise refusal_of(reply, BOOKIE_ID, ledger_id, entry_id)

        for start in range(0, len(bodies), ENTRIES_AT_ONCE):
            await for_each(add, bodies[start : start + ENTRIES_AT_ONCE])
        self._entries += len(bodies)
        self._size += sum(map(len, bodies))


async def _complete(context: NamespaceContext, plan: RestorePlan) -> None:
    """Complete the segments that were in progress, as the next writer would."""
    for log in plan.unfinished:
        async with context.locked(log, RECOVERY_TIMEOUT_S) as lock:
            await context.lifecycle(log, lock.session).recover_left_over()
