"""Reasons that concern the bookies of a cluster and the restoring of lost replicas.

Source: docs/autorecovery.md.
"""

from __future__ import annotations

from collections.abc import Collection

from dlog.explain.facts import ClusterFacts, Reason


def named(bookies: Collection[str]) -> str:
    """Bookies as text, in order."""
    return ", ".join(sorted(bookies))


def absence(cluster: ClusterFacts, bookies: Collection[str]) -> list[Reason]:
    """Which of these bookies are not registered, and what that means."""
    away = {each for each in bookies if each not in cluster.registered}
    known = away & cluster.with_cookie
    gone = away - known
    reasons = []
    if known:
        reasons.append(
            Reason(
                f"{_are(known, 'bookie')} away: {named(known)}",
                "it has a cookie, so it belongs to the cluster, but it is not registered. Start it again",
                "dlog bookies list --away",
            )
        )
    if gone:
        reasons.append(
            Reason(
                f"{_are(gone, 'bookie')} not part of the cluster any more: {named(gone)}",
                "it has no cookie and is not registered",
                f"dlog bookie recover {' '.join(sorted(gone))}",
            )
        )
    return reasons


def restoring(cluster: ClusterFacts, *, is_marked: bool) -> list[Reason]:
    """Why lost replicas are not restored yet."""
    if not cluster.has_recovery:
        return []
    if not cluster.is_recovery_enabled:
        return [
            Reason(
                "auto-recovery is switched off for the whole cluster",
                "the node underreplication/disable exists",
                "dlog autorecovery enable",
            )
        ]
    if cluster.auditor is None:
        return [
            Reason(
                "no process restores lost replicas",
                "no process is a candidate for the auditor. Start `dlog autorecovery` as a service",
                "dlog autorecovery status",
            )
        ]
    if not is_marked and cluster.delay_s:
        return [
            Reason(
                f"the auditor waits {cluster.delay_s} s for a lost bookie before it marks ledgers",
                f"the auditor is {cluster.auditor}, and the ledger has no mark yet",
                "dlog autorecovery audit",
            )
        ]
    if not is_marked:
        return [
            Reason(
                "the auditor has not marked the ledger yet",
                f"the auditor is {cluster.auditor}, and the delay of the cluster is 0 s",
                "dlog autorecovery audit",
            )
        ]
    return []


def _are(bookies: Collection[str], noun: str) -> str:
    return f"a {noun} is" if len(bookies) == 1 else f"{len(bookies)} {noun}s are"
