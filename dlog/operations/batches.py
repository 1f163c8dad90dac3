"""The calls of a namespace for batches of whole segments.

Inside: rights, locks, repeating a step while the metadata store is away. Not inside: the work (``bulk``).
Always: while a batch is begun, attached or abandoned, the locks of all of its logs are held. They are taken
in the order of names, so two batches never wait for each other for ever.

Source: our own; docs/bulk.md.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import attrs

from dlog.bulk.detached import DetachedSegmentWriter, open_detached
from dlog.bulk.plan import AttachedBatch, BatchPlan, DetachedSegment, LogPlan, check_types
from dlog.context import NamespaceContext
from dlog.errors import ConfigError, EndOfStreamError, translated
from dlog.format.hash_chain import chain_start
from dlog.ownership import with_identity
from dlog.read.chain_end import chain_at_end
from ledger.metadata_store.store import MetadataStore
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async
from namespace.access_control.entries import Denial
from namespace.federated_store import FederatedStore
from namespace.log_metadata import check_start_txid
from namespace.logs import open_log
from namespace.policy import Right

if TYPE_CHECKING:
    from dlog.bulk import (
        attaching,
    )  # a program that attaches nothing does without, and without ``dlog.repair``


@attrs.frozen
class BatchCalls(ProcessBound):
    """``Namespace.batches``: writing whole segments at once."""

    context: NamespaceContext = attrs.field(repr=False)

    async def begin(
        self,
        logs: Iterable[str],
        *,
        series: str | None = None,
        number: int = 0,
        record_log: str | None = None,
        lock_timeout_s: float = 0,
    ) -> BatchPlan | None:
        """Begin a batch: records for one or several logs, which will be there all at once or not at all.

        It takes the logs' locks for a moment and completes what a dead writer left in progress. Nothing else
        is changed; a batch that was begun need not be ended. Any process may then write segments for it
        (``open_segment``), at the same time and as often as it takes. ``attach`` puts them
        into the logs. A batch that another writer of one of its logs overtakes cannot be attached.

        Args:
            logs: Names of existing logs.
            series: Names the source of the batches, such as a query: up to 100 printable characters. With it,
                a batch that is repeated after a crash is there once; the number is stored for this.
            number: Of the batch in its series; greater than that of the batch before it.
            record_log: The log whose properties record the number. It must be the same for all batches of a
                series, and needs the right to write it, as each of ``logs``. None: the first one of ``logs``
                by name.
            lock_timeout_s: How long to wait for each lock of a writer.

        Returns:
            The plan, which can be pickled; None if this batch, or a later one of its series, is attached.

        Raises:
            LogNotFoundError, EndOfStreamError (sealed), LogFencedError, LogMetadataError, CorruptLogError
            LogLockedError: A log has a writer.
            AccessDeniedError: The right to write one of the logs, or ``record_log``, is missing.
            ConfigError: The namespace is federated, or a log has a hash chain, or the settings ask for one or
                for encryption.
        """
        from dlog.bulk import attaching

        if isinstance(logs, str):
            raise TypeError(f"the logs of a batch are several names, not {logs!r}; write [{logs!r}]")
        names = sorted({self.context.checked(name, Right.WRITE) for name in logs})
        if not names:
            raise ValueError("a batch needs at least one log")
        if series is not None and (not 0 < len(series) <= 100 or not series.isprintable() or "=" in series):
            raise ConfigError(f'series {series!r}: 1 to 100 printable characters, without "="')
        if type(number) is not int:
            raise TypeError(f"the number of a batch is an int, not {number!r}")
        if number < 0:
            raise ValueError(f"batch {number}: the number is negative")
        record_log = names[0] if record_log is None else self.context.checked(record_log, Right.WRITE)
        await self._check_batch([*names, record_log])
        tokens = (secrets.token_hex(16),) if series is None else ()
        plan = BatchPlan(series=series, number=number, record_log=record_log, logs={}, tokens=tokens)

        async def begin() -> BatchPlan | None:
            await self.context.store.sync(self.context.path)
            stored = await attaching.last_number(self.context.nodes(plan.record_log), plan)
            if stored is not None and stored >= number:
                return None
            async with self._all_locked(names, lock_timeout_s) as session:
                planned = {name: await self._plan(session, name) for name in names}
            return attrs.evolve(plan, logs=planned)

        return await self.context.change(record_log, "beginning a batch", begin)

    async def last(self, series: str, record_log: str) -> int | None:
        """The number of the last batch of a series that was attached; None if there is none.

        Args:
            record_log: As of ``begin``.

        Raises:
            LogNotFoundError
            LogMetadataError: The property with the number does not parse.
        """
        from dlog.bulk import attaching

        name = await self.context.permitted(record_log, Right.READ)
        plan = BatchPlan(series=series, number=0, record_log=name, logs={})

        async def look() -> int | None:
            await self.context.store.sync(self.context.path)
            return await attaching.last_number(self.context.nodes(plan.record_log), plan)

        return await self.context.change(name, "reading the number of a batch", look)

    def open_segment(self, plan: BatchPlan, log: str) -> AbstractAsyncContextManager[DetachedSegmentWriter]:
        """Write a segment of a batch, for the duration of an ``async with``; its ``result`` is for the batch.

        Any number of them may be open at the same time, in any processes; no lock is held. When the block is
        left, its records are durable on an ack quorum. If it is left by an exception, its ledger is deleted,
        or left to ``dlog log orphans`` if that does not work at once.

        Raises:
            LogUnavailableError: Bookies or the metadata store are out of reach. Write another segment.
        """
        check_types(plan, ())
        name = self.context.checked(log, Right.WRITE)
        if name not in plan.logs:
            raise ValueError(f"batch {plan.name} was not begun for log {log!r}")
        return self._open_segment(plan, name)

    @asynccontextmanager
    async def _open_segment(self, plan: BatchPlan, name: str) -> AsyncIterator[DetachedSegmentWriter]:
        await self._check_batch([name])
        async with open_detached(
            self.context.client, self.context.path, self.context.config, plan, name
        ) as writer:
            yield writer

    async def attach(
        self,
        plan: BatchPlan,
        segments: Sequence[DetachedSegment],
        *,
        properties: Mapping[str, str] | None = None,
        adopt_unmarked: bool = False,
        lock_timeout_s: float = 0,
    ) -> AttachedBatch:
        """Put the segments of a batch into its logs and record its number, all in one transaction.

        In each log the records follow in the order of ``segments``. (Segments with different transaction
        ids, such as those of several plans, are ordered by their ids first.) If
        the call is cancelled, or fails with ``LogUnavailableError``, all of it happened or nothing; call it
        again. If another attempt has attached the batch, this one changes nothing.

        Args:
            segments: What was written for the batch; up to 1,000. Those left out are orphans: give them to
                ``abandon``.
            properties: Properties of the log ``record_log`` to set in the same transaction. Notes of DLog's
                pipelines (``dlog.copy`` and such) need the right to write the log, others that to administer
                it, as ``Namespace.properties.change``.
            adopt_unmarked: Also attach ledgers that no batch made and that no node of a log names, such as
                those of Apache's programs. Make sure that no other application needs them: the log owns them
                from then on, and deletes them when it is truncated.

        Raises:
            ForeignLedgerError: A ledger was not made for this batch and this log, by its own metadata.
            AccessDeniedError: A right is missing; ``adopt_unmarked`` needs "admin" on the logs "*".
            ValueError: The transaction ids of two segments of a log overlap.
            TypeError: A value is not what ``begin`` or a writer of a segment gave.
            BatchOvertakenError: Another writer has changed one of the logs. Begin the batch again.
            LogNotFoundError, LogMetadataError, LogMovedError
            LogLockedError: A log has a writer.
        """
        from dlog.bulk import attaching

        check_types(plan, segments)
        await self._check_batch([*plan.logs, plan.record_log])  # its holder may have changed the plan
        if not all(map(_is_note, properties or ())):
            await self.context.permitted(plan.record_log, Right.ADMIN)
        with translated(plan.record_log, "attaching a batch"):
            async with audited_async(
                "attach batch", f"{self.context.uri} {plan.name} to {sorted(plan.logs)}"
            ):
                if adopt_unmarked:
                    await self.context.permissions.check_administrator()

                async def attach() -> AttachedBatch:
                    async with self._all_locked(plan.logs, lock_timeout_s) as session:
                        return await attaching.attach(
                            self._batch_place(session),
                            plan,
                            segments,
                            properties or {},
                            adopts=adopt_unmarked,
                        )

                return await self.context.change(plan.record_log, "attaching a batch", attach)

    async def abandon(
        self, plan: BatchPlan, segments: Sequence[DetachedSegment], *, lock_timeout_s: float = 0
    ) -> list[int]:
        """Delete segments of a batch that are not in its logs. The plan cannot be attached afterwards.

        Segments that were attached stay. If the call is cancelled or fails, some may be deleted; call it
        again, or leave the rest to ``dlog log orphans``.

        Returns:
            The ids of the deleted ledgers.

        Raises:
            ForeignLedgerError: A ledger was not made for this batch and this log, by its own metadata; one
                without a mark is never deleted. Nothing was deleted.
            LogNotFoundError: A log was deleted or renamed. Nothing of it was deleted.
            LogLockedError: A log has a writer.
        """
        from dlog.bulk import attaching

        check_types(plan, segments)
        await self._check_batch([*plan.logs, plan.record_log])  # its holder may have changed the plan
        with translated(plan.record_log, "abandoning a batch"):
            async with audited_async("abandon batch", f"{self.context.uri} {plan.name}"):

                async def abandon() -> list[int]:
                    async with self._all_locked(plan.logs, lock_timeout_s) as session:
                        return await attaching.abandon(self._batch_place(session), plan, segments)

                return await self.context.change(plan.record_log, "abandoning a batch", abandon)

    async def _check_batch(self, names: Iterable[str]) -> None:
        self.context.check_open(Right.WRITE)
        if self.context.config.writer.encryption is not None or self.context.config.writer.hash_chain:
            raise ConfigError(
                f"the writer settings of namespace {self.context.uri} ask for encryption or a hash chain,"
                " which batches do not support. Nothing was changed; use a writer, or settings without them"
            )
        if self.context.config.shared_with_java:
            self.context.config.writer.check_shared()
        if isinstance(self.context.store, FederatedStore):
            raise ConfigError(
                f"the namespace {self.context.uri} is federated: its logs have no common transaction, so it"
                " takes no batch. Nothing was changed; open the namespace that has the logs"
                " (`dlog log locate`)"
            )
        for name in sorted(set(names)):
            await self.context.permitted(name, Right.WRITE, Denial.ACQUIRE)

    @asynccontextmanager
    async def _all_locked(self, names: Iterable[str], timeout_s: float) -> AsyncIterator[MetadataStore]:
        """Hold the locks of the logs; yield a session that holds one of them, the last one taken."""
        async with AsyncExitStack() as stack:
            session: MetadataStore = self.context.store
            for name in sorted(names):
                session = (await stack.enter_async_context(self.context.locked(name, timeout_s))).session
            yield session

    async def _plan(self, session: MetadataStore, name: str) -> LogPlan:
        lifecycle = self.context.lifecycle(name, session)
        await lifecycle.recover_left_over()
        log = self.context.log(name)
        if await chain_at_end(log) != chain_start(await log.origin()):
            raise ConfigError(
                f"log {name!r} has a hash chain, which only its writer can continue, so it takes no batch."
                " Nothing was changed; use a writer with WriterConfig(hash_chain=True)"
            )
        metadata = await open_log(self.context.nodes(name, session))
        if metadata.sealed:
            raise EndOfStreamError(name)
        metadata = await with_identity(metadata, self.context.client, lifecycle.segments)
        txid = max(lifecycle.last_txid + 1, self.context.wall_ms())
        check_start_txid(metadata, txid)
        return LogPlan.of(metadata, txid, max(lifecycle.last_txid, metadata.max_txid, 0))

    def _batch_place(self, session: MetadataStore) -> attaching.BatchPlace:
        from dlog.bulk import attaching

        return attaching.BatchPlace(
            session,
            self.context.client,
            self.context.path,
            self.context.first_segment_seqno,
            self.context.wall_ms,
        )


def _is_note(key: str) -> bool:
    """True for a note of a pipeline on what it wrote, and not for the layout that clients of shards obey."""
    return str(key).startswith("dlog.") and not str(key).startswith("dlog.shards")
