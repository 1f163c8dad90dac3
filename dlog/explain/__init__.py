"""Why an append waits, a reader stands still, a ledger is short of replicas, a bookie takes no entries.

Inside: the facts of a log, a ledger or a bookie, collected once; the rules that turn facts into reasons. Not
inside: the output (``dlog.cli.operators.explain``, ``dlog.page``).
Entry points: ``collect_log``, ``collect_ledger``, ``collect_bookie``, then ``explain``.
"""

from dlog.explain.collecting import collect_bookie, collect_ledger, collect_log
from dlog.explain.facts import BookieFacts, LedgerFacts, LogFacts, Reason
from dlog.explain.reasons import explain

__all__ = [
    "BookieFacts",
    "LedgerFacts",
    "LogFacts",
    "Reason",
    "collect_bookie",
    "collect_ledger",
    "collect_log",
    "explain",
]
