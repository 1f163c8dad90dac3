"""Who may do what with logs: Apache's access control entries, and rights by a namespace's policy.

Inside: entries, which deny something on a log to everyone; the stored policy, as one principal sees it.
Not inside: the meaning of a policy's rules (``ledger.policy``). Entry points: ``AccessControl``,
``Permissions``.
"""

from namespace.access_control.entries import AccessControlEntry, Denial
from namespace.access_control.nodes import AccessControl, AccessControlEntries
from namespace.access_control.policies import Permissions

__all__ = ["AccessControl", "AccessControlEntries", "AccessControlEntry", "Denial", "Permissions"]
