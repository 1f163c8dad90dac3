"""Promotion: moving a log of a directory to a cluster while it is written and read (docs/promotion.md).

Inside: the state that both sides store (``record``, ``nodes``), which step comes next (``steps``), copying
and comparing one segment (``segment_copy``), doing the steps (``promoter``), reading on after the hand-over
(``promoted_log``). Not inside: opening the two namespaces, the commands.
Entry point: ``promoter.Promoter``.
"""

from __future__ import annotations

from dlog.promotion.promoter import Promoter
from dlog.promotion.sides import PromotionProgress, PromotionStatus, Side

__all__ = ["Promoter", "PromotionProgress", "PromotionStatus", "Side"]
