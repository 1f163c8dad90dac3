"""Why a bookie takes no entries, or serves none.

Inside: conclusions from facts. Not inside: the facts' collection.
"""

from __future__ import annotations

from dlog.explain.cluster_reasons import absence, restoring
from dlog.explain.facts import BookieFacts, Reason

LOW_SPACE = 0.05  # of the disks: Apache's bookie becomes read-only when this much is left


def explain_bookie(facts: BookieFacts) -> list[Reason]:
    """The reasons, the gravest first; without a fault the last one says that the bookie takes entries."""
    bookie, cluster = facts.bookie, facts.cluster
    if bookie not in cluster.registered and bookie not in cluster.with_cookie:
        return [
            Reason(
                f"{bookie} is no bookie of this cluster",
                "it has no cookie and is not registered",
                "dlog bookies list",
            )
        ]
    reasons = absence(cluster, [bookie])
    if facts.silence is not None:
        reasons.append(Reason("the bookie does not reply", facts.silence, "dlog bookies list"))
    space = _space(facts)
    if bookie in cluster.readonly:
        reasons.append(
            Reason(
                "the bookie is read-only: it serves entries and takes none",
                f"{space}. An operator can set this, or a disk is full or failed; its log has the reason",
                "dlog bookies info",
            )
        )
    elif facts.free_bytes is not None and facts.free_bytes < LOW_SPACE * (facts.total_bytes or 0):
        reasons.append(Reason("the disks of the bookie are nearly full", space, "dlog bookies info"))
    if facts.marked_ledgers:
        count = facts.marked_ledgers
        reasons.append(
            Reason(
                f"{count} ledger{'s miss' if count > 1 else ' misses'} a replica of this bookie",
                "the marks below underreplication/ledgers name it",
                f"dlog ledger underreplicated --bookie {bookie}",
            )
        )
    if bookie not in cluster.registered:
        reasons += restoring(cluster, is_marked=facts.marked_ledgers > 0)
    if not reasons:
        reasons.append(
            Reason("the bookie takes and serves entries", space, "dlog bookies info", is_fault=False)
        )
    return reasons


def _space(facts: BookieFacts) -> str:
    rack = "" if facts.rack is None else f"; its rack is {facts.rack}"
    if facts.free_bytes is None or facts.total_bytes is None:
        return f"it did not say how much space it has{rack}"
    return f"{facts.free_bytes / 1e9:.1f} of {facts.total_bytes / 1e9:.1f} GB are free{rack}"
