"""Deleting the ledgers that heals of a log replaced, or began and did not finish.

Inside: the claim, and both deletions. Not inside: making the copies (``dlog.repair.healing``).
Always: a ledger that a segment of the log names is never deleted; an unfinished copy is given up in the
metadata first, and then no transaction can put it into the log.

Source: our own; docs/metadata.md 16.19.
"""

from __future__ import annotations

import attrs

from dlog.errors import LogUnavailableError
from dlog.ownership.deletion import delete_ledger, foreign
from ledger.catalog.catalog import StoredLedger
from ledger.client import LedgerClient
from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from namespace.heal_node import Heal, HealNode, HealState, read_heals
from namespace.log_nodes import LogNodes
from namespace.node_reads import read_nodes
from namespace.segment_nodes import list_segments

ATTEMPTS_MAX = 20  # each is lost to another client that changed the node meanwhile


@attrs.frozen
class GivenUpByHeal:
    """The log's heal node gives the ledger up, and no segment of the log names it."""

    log: LogNodes

    async def refusal(self, ledger: StoredLedger) -> str | None:
        """See ``Claim``."""
        log, root = self.log, self.log.root_path
        await log.store.sync(root)
        node = await read_heals(log)
        if all(each.given_up != ledger.ledger_id for each in node.heals):
            return f"the node {log.heal_path} does not give it up"
        for segment in (await list_segments(log, gaps_ok=True)).segments:
            if segment.ledger_id == ledger.ledger_id:
                return f"segment {segment.segment_seqno} is in it"
        return foreign(ledger, log.name, (await read_nodes(log.store, [root]))[root])


async def delete_replaced(log: LogNodes, client: LedgerClient, *, now_ms: int | None) -> None:
    """Delete the ledgers that heals replaced, and copies that were given up. Repeating it is safe.

    Args:
        now_ms: Only those whose time is over then; None: all.
    """
    claim = GivenUpByHeal(log)
    for _ in range(ATTEMPTS_MAX):
        node = await read_heals(log)
        due = [each for each in node.heals if _is_due(each, now_ms)]
        if not due:
            return
        for heal in due:
            assert heal.given_up is not None  # _is_due looked
            await delete_ledger(client, heal.given_up, claim)
        listed = (await list_segments(log, gaps_ok=True)).segments
        left = {each.segment_seqno for each in listed}
        after = [
            attrs.evolve(each, state=HealState.GONE) if each in due else each
            for each in node.heals
            if each not in due or each.state is HealState.KEPT
        ]
        # Readers that know the old ledger need the heal as long as there is the segment.
        after = [each for each in after if each.state is not HealState.GONE or each.segment_seqno in left]
        if await write_heals(log, node, after):
            return


async def drop_unfinished(log: LogNodes, client: LedgerClient) -> None:
    """Give up the copies of heals that were interrupted, and delete them. A heal under way fails.

    Raises:
        LogUnavailableError: Other clients changed the heals at every attempt.
    """
    for _ in range(ATTEMPTS_MAX):
        node = await read_heals(log)
        after = [
            attrs.evolve(each, state=HealState.DROPPED) if each.state is HealState.COPYING else each
            for each in node.heals
        ]
        if after == list(node.heals) or await write_heals(log, node, after):
            break
    else:
        raise LogUnavailableError(f"log {log.name!r}: other clients heal it now; try again")
    await delete_replaced(log, client, now_ms=0)


async def write_heals(log: LogNodes, node: HealNode, heals: list[Heal]) -> bool:
    """Write the node; False if another client has changed it since, or deleted the log."""
    try:
        await log.store.commit([node.operation(log, heals)])
    except (BadVersionError, NodeExistsError, NoNodeError):
        return False
    return True


def _is_due(heal: Heal, now_ms: int | None) -> bool:
    if heal.state is HealState.DROPPED:
        return True
    return heal.state is HealState.KEPT and (now_ms is None or heal.until_ms <= now_ms)
