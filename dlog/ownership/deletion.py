"""Deleting a ledger on behalf of a log. Besides the commands on ledgers, only this calls the client's delete.

A caller gives a claim: why the ledger is its own to delete. The claim is checked against the metadata store,
and then the ledger is deleted at the version of its metadata that was checked.

Inside: the check, the deletion, the claims of a log. Not inside: the claims of a batch (``dlog.bulk``) and of
the search for orphans (``dlog.repair``); which ledger a log can spare (the callers).
Always: a ledger that says that it belongs to another log is kept, whatever names it; one that says nothing is
deleted only if a node of the log itself names it; a ledger whose metadata changed after the check is checked
again. A ledger that is kept is logged, and the caller continues: its space is lost, and no record is.

The check and the deletion are not one transaction. What makes that safe: a ledger gets into a log only by a
write to the log's ``allocation`` node at the version that the ledger's stamp names (docs/metadata.md 16.13).
So one of three holds: the ledger is in the log that deletes it; its creator has never given its id away; the
caller has written that node before.

Source: our own; docs/metadata.md 16.18.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from dlog.errors import LogMetadataError, LogUnavailableError
from dlog.ownership.mark import LedgerMark
from ledger.catalog.catalog import StoredLedger
from ledger.client import LedgerClient
from ledger.errors import MetadataFormatError, NoSuchLedgerError
from ledger.metadata_store.store import Node
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from namespace.log_identity import log_id_in
from namespace.log_metadata import LogMetadata, ledger_in_allocation
from namespace.log_nodes import LogNodes
from namespace.node_reads import read_nodes
from namespace.segments.segment import decode_segment

ATTEMPTS_MAX = 20  # each is lost to another client that changed the ledger's metadata after the check

logger = get_logger(__name__)


class Claim(Protocol):
    """Why a ledger may be deleted."""

    async def refusal(self, ledger: StoredLedger) -> str | None:
        """Why the ledger must be kept, by the metadata store; None if it may be deleted."""


async def delete_ledger(client: LedgerClient, ledger_id: int, claim: Claim) -> str | None:
    """Delete a ledger if the claim holds. If it does not exist, nothing happens.

    If cancelled, it may or may not be deleted.

    Returns:
        Why the ledger was kept, which is also logged; None if it is gone.

    Raises:
        LogUnavailableError: Other clients changed the ledger at every attempt.
        ledger.errors.LedgerError, ledger.metadata_store.errors.MetadataError
    """
    for _ in range(ATTEMPTS_MAX):
        try:
            ledger = await client.stored(ledger_id)
            reason = await claim.refusal(ledger)
        except NoSuchLedgerError:
            return None
        except MetadataFormatError as exc:
            reason = f"its metadata do not parse, so it is not known to whom it belongs: {exc}"
        if reason is not None:
            logger.warning(
                "ledger %d was kept: %s. `dlog ledger show %d` shows its metadata; if nothing needs it, an"
                " administrator deletes it with `dlog ledger delete %d`",
                ledger_id,
                reason,
                ledger_id,
                ledger_id,
                extra=event("ledger.kept", ledger_id=ledger_id, reason=reason),
            )
            return reason
        if await client.delete_unchanged(ledger):
            return None
    raise LogUnavailableError(
        f"ledger {ledger_id} was not deleted: other clients changed its metadata {ATTEMPTS_MAX} times in that"
        " moment; try again"
    )


@attrs.frozen
class NamedByLog:
    """A node of the log names the ledger: that of a segment, or ``allocation``."""

    log: LogNodes
    node: str  # the path

    @classmethod
    def as_segment(cls, log: LogNodes, name: str) -> NamedByLog:
        """The claim for the ledger of a segment, by the name of the segment's node."""
        return cls(log, log.segment_path(name))

    @classmethod
    def as_allocated(cls, log: LogNodes) -> NamedByLog:
        """The claim for the ledger in the log's ``allocation`` node."""
        return cls(log, log.allocation_path)

    async def refusal(self, ledger: StoredLedger) -> str | None:
        """See ``Claim``."""
        root = self.log.root_path
        await self.log.store.sync(root)
        nodes = await read_nodes(self.log.store, [root, self.node])
        if self._named(nodes[self.node]) != ledger.ledger_id:
            return f"the node {self.node} does not name it"
        return foreign(ledger, self.log.name, nodes[root])

    def _named(self, node: Node | None) -> int | None:
        if node is None:
            return None
        if self.node == self.log.allocation_path:
            return ledger_in_allocation(node.value)
        try:
            return decode_segment(node.value).ledger_id
        except LogMetadataError:
            return None


@attrs.frozen
class ReplacedAllocation:
    """The log's ``allocation`` node named the ledger until the caller wrote the node."""

    before: LogMetadata  # as it was before that write

    async def refusal(self, ledger: StoredLedger) -> str | None:
        """See ``Claim``."""
        before, log = self.before, self.before.log
        root, path = log.root_path, log.allocation_path
        await log.store.sync(root)
        nodes = await read_nodes(log.store, [root, path])
        now = nodes[path]
        is_replaced = (
            now is not None
            and now.stat.created_ms == before.allocation_created_ms
            and now.stat.version > before.allocation_version
            and ledger_in_allocation(now.value) != ledger.ledger_id
        )
        if not is_replaced or before.allocated_ledger_id != ledger.ledger_id:
            return f"the node {path} was not written since it named this ledger"
        return foreign(ledger, log.name, nodes[root])


@attrs.frozen
class MadeHere:
    """The caller created the ledger with this mark, and has given its id to nobody."""

    custom: Mapping[str, bytes]

    async def refusal(self, ledger: StoredLedger) -> str | None:
        """See ``Claim``."""
        return None if ledger.metadata.custom == self.custom else "its mark is not that of its creator"


def foreign(ledger: StoredLedger, log: str, root: Node | None) -> str | None:
    """Why a ledger is not that of a log whose own node names it; None if nothing speaks against it.

    A ledger without a log's identity (Apache's, or made by an older release) is that of the log. So is any
    ledger of a log without one: Apache's library renamed it, and dropped the identity.

    Args:
        root: The root node of the log, which holds its identity.
    """
    try:
        mark = LedgerMark.of(ledger.metadata.custom)
    except MetadataFormatError as exc:
        return f"its mark does not parse: {exc}"
    own = None if root is None else log_id_in(root.value)
    if mark is None or mark.log_id is None or own is None or mark.log_id == own:
        return None
    made_for = f"log {mark.log!r} of namespace {mark.namespace} ({mark.log_id})"
    return f"it was made for {made_for}, not for {log!r} ({own})"
