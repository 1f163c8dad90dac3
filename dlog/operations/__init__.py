"""The calls of ``Namespace`` on its logs. Each is made of the frozen ``dlog.context.NamespaceContext``.

Inside: the objects that a namespace holds (``properties``, ``retention``, ``batches``, ``repairs``,
``policy``, ``access``); functions for its own calls: opening, creating and deleting (``administration``),
renaming, describing (``queries``); what the calls share (``calls``).
Not inside: the namespace (``dlog.namespace_handle``), moving logs, the context (``dlog.context``).
Begin at ``calls``.
"""

from __future__ import annotations

from dlog.operations.access import AccessCalls
from dlog.operations.batches import BatchCalls
from dlog.operations.policy import PolicyCalls
from dlog.operations.properties import PropertyCalls
from dlog.operations.repairs import RepairCalls
from dlog.operations.retention import RetentionCalls

__all__ = ["AccessCalls", "BatchCalls", "PolicyCalls", "PropertyCalls", "RepairCalls", "RetentionCalls"]
