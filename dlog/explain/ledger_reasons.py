"""Why a ledger is short of replicas, why its writer waits, why its readers stop before its end.

Inside: conclusions from facts. Not inside: the facts' collection.
Always: a closed ledger whose bookies are all registered, and an open one whose bookies all reply, have no
fault.

Source: docs/autorecovery.md; docs/protocol.md 6.4 and 7.3.
"""

from __future__ import annotations

import shlex

from dlog.explain.cluster_reasons import absence, named, restoring
from dlog.explain.facts import LedgerFacts, Reason
from ledger.errors import MetadataFormatError
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.policy import LogMark
from ledger.replication_asked import AskedReplication


def explain_ledger(facts: LedgerFacts) -> list[Reason]:
    """The reasons, the gravest first; without a fault the last one says what the ledger is."""
    metadata, show = facts.metadata, f"dlog ledger show {facts.ledger_id}"
    if metadata is None:
        return [
            Reason(
                f"ledger {facts.ledger_id} does not exist",
                "the metadata store has no node of it: it was deleted, or never created",
                "dlog ledger list",
            )
        ]
    reasons = [*_unreadable(facts, metadata), *_short(facts, metadata), *_writer_waits(facts, metadata)]
    reasons += _degraded(facts, metadata)
    reasons += _open_end(facts, metadata)
    if metadata.is_closed:
        end = f"it ends at entry {metadata.last_entry_id} after {metadata.length_bytes:,} bytes"
        reasons.append(Reason("the ledger is closed and will not change", end, show, is_fault=False))
    return reasons


def holders(metadata: LedgerMetadata) -> dict[str, None]:
    """All bookies that hold entries, in the order of the ensembles."""
    last = metadata.last_entry_id if metadata.is_closed else None
    return {
        bookie: None
        for ensemble in metadata.ensembles
        if last is None or ensemble.first_entry_id <= max(last, 0)
        for bookie in ensemble.bookies
    }


def _unreadable(facts: LedgerFacts, metadata: LedgerMetadata) -> list[Reason]:
    """Entries with no replica on a registered bookie."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    for ensemble in metadata.ensembles:
        if metadata.is_closed and ensemble.first_entry_id > metadata.last_entry_id:
            break
        for first in range(size):
            replicas = [ensemble.bookies[(first + offset) % size] for offset in range(quorum)]
            if not any(bookie in facts.cluster.registered for bookie in replicas):
                entry = f"entries from {ensemble.first_entry_id} on"
                if quorum < size:
                    entry += f" with remainder {first} modulo {size}"
                return [
                    Reason(
                        "some entries cannot be read: every bookie that holds them is away",
                        f"{entry} are on {named(replicas)} only",
                        "dlog bookies list --away",
                    )
                ]
    return []


def _short(facts: LedgerFacts, metadata: LedgerMetadata) -> list[Reason]:
    cluster = facts.cluster
    missing = [bookie for bookie in holders(metadata) if bookie not in cluster.registered]
    if not missing and facts.marked_missing is None:
        return []
    reasons = absence(cluster, missing)
    if missing and not cluster.writable - set(metadata.last_ensemble.bookies):
        # Workers wait for such a bookie.
        reasons.append(
            Reason(
                "there is no other bookie to copy the entries to",
                f"writable bookies: {named(cluster.writable) or 'none'}; all are in the ensemble already",
                "dlog bookies list --rw",
            )
        )
    if facts.is_being_restored:
        reasons.append(
            Reason(
                "a worker has taken the ledger: it restores replicas, or waits before its next attempt",
                f"the lock of ledger {facts.ledger_id} below underreplication/locks is taken",
                "dlog ledger underreplicated",
            )
        )
        return reasons
    if facts.marked_missing is not None:
        since = "" if facts.marked_ms is None else f" {_ago(facts.now_ms - facts.marked_ms)}"
        reasons.append(
            Reason(
                "the ledger is marked as under-replicated and no worker has it yet",
                f"it was marked{since} for {named(facts.marked_missing) or 'no bookie'}",
                "dlog ledger underreplicated",
            )
        )
    return reasons + restoring(cluster, is_marked=facts.marked_missing is not None)


def _degraded(facts: LedgerFacts, metadata: LedgerMetadata) -> list[Reason]:
    """A ledger that began on fewer bookies than its creator asked for keeps these sizes."""
    asked = AskedReplication.of(metadata.custom)
    if asked is None:
        return []
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    try:
        mark = LogMark.of(metadata.custom)
    except MetadataFormatError:
        mark = None
    show = f"dlog ledger show {facts.ledger_id}"
    heal = show if mark is None or not metadata.is_closed else f"dlog log heal {shlex.quote(mark.log)}"
    return [
        Reason(
            f"ledger {facts.ledger_id} began on {size} bookies instead of {asked.ensemble_size}",
            f"no more were writable at that time, so each entry has {quorum} copies instead of"
            f" {asked.write_quorum}",
            heal,
        )
    ]


def _writer_waits(facts: LedgerFacts, metadata: LedgerMetadata) -> list[Reason]:
    """An add to an open ledger is acknowledged when an ack quorum of its write set has it."""
    if metadata.state is not LedgerState.OPEN:
        return []
    ensemble = metadata.last_ensemble.bookies
    silent = {bookie for bookie in ensemble if isinstance(facts.lacs.get(bookie), str)}
    silent |= {bookie for bookie in ensemble if bookie not in facts.cluster.registered}
    unwritable = {bookie for bookie in ensemble if bookie in facts.cluster.readonly}
    reasons = []
    if said := [
        f"{bookie}: {facts.lacs[bookie]}" for bookie in ensemble if bookie in silent & set(facts.lacs)
    ]:
        reasons.append(
            Reason("a bookie of the last ensemble does not reply", "; ".join(said), "dlog bookies info")
        )
    lost = silent | unwritable
    if lost and (needed := len(lost)) > (left := len(facts.cluster.writable - set(ensemble))):
        kept, quorum = metadata.write_quorum - needed, metadata.ack_quorum
        outcome = (
            "its appends wait"
            if kept < quorum
            else "its appends continue with fewer replicas than it asks for"
        )
        reasons.append(
            Reason(
                f"a writer cannot replace {named(lost)} in the ensemble, so {outcome}",
                f"{needed} to replace, {left} other writable; write quorum {metadata.write_quorum},"
                f" ack quorum {quorum}",
                "dlog bookies list",
            )
        )
    return reasons


def _open_end(facts: LedgerFacts, metadata: LedgerMetadata) -> list[Reason]:
    if metadata.is_closed:
        return []
    lacs = [lac for lac in facts.lacs.values() if isinstance(lac, int)]
    known = "; ".join(f"{bookie}: {lac}" for bookie, lac in facts.lacs.items() if isinstance(lac, int))
    if metadata.state is LedgerState.IN_RECOVERY:
        return [
            Reason(
                "a client is deciding the end of the ledger; its writer is fenced",
                f"state IN_RECOVERY; last confirmed entry per bookie: {known or 'no bookie says'}."
                " A recovery that was interrupted is completed by the next one",
                f"dlog ledger read {facts.ledger_id} --recover",
            )
        ]
    if not lacs:
        return [
            Reason(
                "readers do not see how far they may read",
                f"no bookie of {named(metadata.last_ensemble.bookies)} tells the last confirmed entry",
                "dlog bookies info",
            )
        ]
    return [
        Reason(
            f"the ledger is open; readers see entries up to {max(lacs)}",
            f"last confirmed entry per bookie: {known}. A later entry is not confirmed, or does not exist",
            f"dlog ledger show {facts.ledger_id}",
            is_fault=False,
        )
    ]


def _ago(passed_ms: int) -> str:
    seconds = max(0, passed_ms) // 1000
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {word} ago"
    return f"{seconds} s ago"
