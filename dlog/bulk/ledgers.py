"""Whether a ledger is that of a batch: what its mark must say to be attached, and to be deleted.

Inside: the comparison of a ledger's mark, as the metadata store has it, with the plan and with the log as it
is now; the ledgers that an administrator may adopt; the claims of a batch to delete.
Not inside: the transaction (``attaching``), the mark itself (``dlog.ownership``).
Always: nothing of a plan or of a segment is believed about a ledger: its log, series, number and the state of
the log that it was made for come from the ledger's metadata. A batch never deletes a ledger without a mark.

Source: our own; docs/bulk.md, docs/metadata.md 16.18.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from dlog.bulk.errors import ForeignLedgerError
from dlog.bulk.plan import BatchPlan, DetachedSegment
from dlog.ownership.mark import BatchMark, LedgerMark
from dlog.repair.ledger_references import binding_scope, stable_references
from ledger.catalog.catalog import StoredLedger
from ledger.client import LedgerClient
from ledger.errors import MetadataFormatError, NoSuchLedgerError
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.tasks.task_errors import for_each
from namespace.log_identity import log_id_in
from namespace.log_metadata import allocation_stamp_of
from namespace.log_nodes import LogNodes
from namespace.node_reads import read_nodes


async def read_ledgers(
    client: LedgerClient, plan: BatchPlan, segments: Iterable[DetachedSegment]
) -> dict[int, StoredLedger]:
    """The ledgers of segments in the metadata store, by id, without those that do not exist.

    Raises:
        ForeignLedgerError: The metadata of one do not parse.
    """
    found: dict[int, StoredLedger] = {}

    async def read(segment: DetachedSegment) -> None:
        try:
            found[segment.ledger_id] = await client.stored(segment.ledger_id)
        except NoSuchLedgerError:
            pass
        except MetadataFormatError as exc:
            raise ForeignLedgerError(
                plan.name, segment.log, segment.ledger_id, f"its metadata do not parse: {exc}"
            ) from None

    await for_each(read, segments)
    return found


@attrs.frozen
class BatchLedgers:
    """The rule for the ledgers of a batch in one namespace."""

    namespace_path: str
    plan: BatchPlan
    log_ids: Mapping[str, str | None]  # of each log of the batch, as the metadata store has them
    adopts: bool = False  # an administrator also wants ledgers that no batch made, and that no log owns

    def refusal(self, segment: DetachedSegment, ledger: StoredLedger) -> str | None:
        """Why a ledger is not one of the batch, for the log of this segment; None if it is."""
        try:
            mark = LedgerMark.of(ledger.metadata.custom)
        except MetadataFormatError as exc:
            return f"its mark does not parse: {exc}"
        if mark is None:
            return (
                None if self.adopts else "its metadata name no batch, so it is not known to whom it belongs"
            )
        if mark.batch is None:
            if self.adopts and self._is_of_log(mark, segment.log):
                return None
            return f"it was made for log {mark.log!r} of namespace {mark.namespace}, and not for a batch"
        return self._foreign(mark, mark.batch, segment.log)

    def attach_refusal(self, segment: DetachedSegment, ledger: StoredLedger) -> str | None:
        """Why a ledger must not be attached as this segment; None if it may be."""
        if (reason := self.refusal(segment, ledger)) is not None or is_adopted(ledger):
            return reason
        # An orphan's deletion goes by this stamp. Attached over a newer state, the ledger could be swept.
        planned = self.plan.logs[segment.log]
        if allocation_stamp_of(ledger.metadata.custom) != (
            planned.allocation_created_ms,
            planned.versions[2],
        ):
            return "it was written for another state of the log; begin the batch again and write it again"
        return None

    def _foreign(self, mark: LedgerMark, batch: BatchMark, log: str) -> str | None:
        """Why a ledger that a batch made is not of this batch and this log."""
        plan, own = self.plan, self.log_ids.get(log)
        if mark.namespace != self.namespace_path:
            return f"it was made for namespace {mark.namespace}, not for {self.namespace_path}"
        if mark.log_id is None or mark.log_id != own:
            return f"it was made for log {mark.log!r} ({mark.log_id}), and {log!r} is another one ({own})"
        is_of_batch = (batch.series, batch.number) == (plan.series, plan.number)
        if not is_of_batch or (plan.series is None and batch.token not in plan.tokens):
            name = "one without a series" if batch.series is None else f"{batch.series}/{batch.number}"
            return f"it was made for another batch: {name}"
        return None

    def _is_of_log(self, mark: LedgerMark, log: str) -> bool:
        if mark.log_id is not None:
            return mark.log_id == self.log_ids.get(log)
        return (mark.namespace, mark.log) == (self.namespace_path, log)


def is_adopted(ledger: StoredLedger) -> bool:
    """True for a ledger that no batch made. Its mark parses."""
    mark = LedgerMark.of(ledger.metadata.custom)
    return mark is None or mark.batch is None


async def check_unnamed(
    store: MetadataStore,
    client: LedgerClient,
    rule: BatchLedgers,
    segments: Iterable[DetachedSegment],
) -> None:
    """Raise unless no node of any log names the ledgers: then an administrator may adopt them.

    Raises:
        ForeignLedgerError
        LogMetadataError: A node does not parse, so the ledgers that it names are not known.
        LogUnavailableError: Logs came or went during every attempt.
    """
    scope, _ = await binding_scope(store, rule.namespace_path)
    named = (await stable_references(store, scope, without=client.root)).ledger_ids
    for segment in segments:
        if segment.ledger_id in named:
            raise ForeignLedgerError(
                rule.plan.name, segment.log, segment.ledger_id, "a node of a log names it already"
            )


@attrs.frozen
class OfBatch:
    """The claim of a batch that is abandoned: it made the ledger, and its log can never take it any more."""

    log: LogNodes
    rule: BatchLedgers
    segment: DetachedSegment

    async def refusal(self, ledger: StoredLedger) -> str | None:
        """See ``dlog.ownership.Claim``."""
        root, path = self.log.root_path, self.log.allocation_path
        nodes = await read_nodes(self.log.store, [root, path])
        now, allocation = nodes[root], nodes[path]
        own = None if now is None else log_id_in(now.value)
        rule = attrs.evolve(self.rule, log_ids={self.segment.log: own})
        if (reason := rule.refusal(self.segment, ledger)) is not None:
            return reason
        # The caller has written ``allocation``, with the data that it had.
        stamp = allocation_stamp_of(ledger.metadata.custom)
        if stamp is None or allocation is None:
            return "it has no stamp, so it is not known whether its log can still take it"
        if stamp[0] == allocation.stat.created_ms and stamp[1] >= allocation.stat.version:
            return "its log can still take it"
        return None
