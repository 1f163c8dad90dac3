"""Moving replicas of closed ledgers to emptier bookies, as an operator asks for it.

Inside: which replicas move (``plan``), the facts it needs (``survey``), the moves, the node that keeps a
second run away and says how far the first one is. Not inside: the copy of a fragment
(``ledger.replication``), commands.
Entry points: ``plan_balance``, ``balance_bookies``, ``running_balance``.
"""

from ledger.balancing.balance import Balanced, BalanceOptions, balance_bookies, plan_balance
from ledger.balancing.plan import BookieUse, Move, Plan
from ledger.balancing.run_node import RunningBalance, running_balance

__all__ = [
    "BalanceOptions",
    "Balanced",
    "BookieUse",
    "Move",
    "Plan",
    "RunningBalance",
    "balance_bookies",
    "plan_balance",
    "running_balance",
]
