"""From facts of any kind to reasons."""

from __future__ import annotations

from typing import assert_never

from dlog.explain.bookie_reasons import explain_bookie
from dlog.explain.facts import BookieFacts, LedgerFacts, LogFacts, Reason
from dlog.explain.ledger_reasons import explain_ledger
from dlog.explain.log_reasons import explain_log


def explain(facts: LogFacts | LedgerFacts | BookieFacts) -> list[Reason]:
    """Why the log, the ledger or the bookie behaves as it does. Without a fault it is sound."""
    match facts:
        case LogFacts():
            return explain_log(facts)
        case LedgerFacts():
            return explain_ledger(facts)
        case BookieFacts():
            return explain_bookie(facts)
        case _:
            assert_never(facts)
