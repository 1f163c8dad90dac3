"""Access control entries of Apache DistributedLog: what is denied on a log, to everyone.

Inside: the stored form, the nodes, the refusal. Not inside: rights of principals
(``namespace.policies``). Entry point: ``AccessControl``.
"""

from namespace.access_control.entries import AccessControlEntry, Denial
from namespace.access_control.nodes import AccessControl, AccessControlEntries

__all__ = ["AccessControl", "AccessControlEntries", "AccessControlEntry", "Denial"]
