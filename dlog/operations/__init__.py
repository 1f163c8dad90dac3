"""The calls of ``Namespace`` on its logs, in groups: a class for each, of which ``Namespace`` is made.

Inside: creating and deleting (``administration``), renaming, rights and denials, space and repair
(``maintenance``), questions (``queries``), promotion, and what all of them need (``namespace_base``).
Not inside: opening writers and readers (``dlog.namespace_handle``).
Begin at ``namespace_base``.
"""

from __future__ import annotations

from dlog.operations.access_administration import AccessAdministration
from dlog.operations.administration import LogAdministration
from dlog.operations.maintenance import LogMaintenance
from dlog.operations.promoting import LogPromotion
from dlog.operations.queries import LogQueries
from dlog.operations.renaming import LogRenaming

__all__ = [
    "AccessAdministration",
    "LogAdministration",
    "LogMaintenance",
    "LogPromotion",
    "LogQueries",
    "LogRenaming",
]
