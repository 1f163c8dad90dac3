"""Promotion: moving a log of a directory to a cluster while it is written and read (docs/promotion.md).

Inside: where a log is (``location``, the seam that everything else asks), the state that both sides store
(``record``, ``nodes``), which step comes next (``steps``), doing the steps
(``promoter``), reading on after the hand-over (``promoted_log``), the calls of ``Namespace.promotion``
(``calls``). Not inside: copying one segment (``write.segment_copy``), opening namespaces, the commands.
Begin at ``location``.
"""

from __future__ import annotations

from dlog.promotion.calls import PromotionCalls
from dlog.promotion.location import promotable
from dlog.promotion.progress import PromotionProgress, PromotionStatus

__all__ = ["PromotionCalls", "PromotionProgress", "PromotionStatus", "promotable"]
