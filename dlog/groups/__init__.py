"""Consumer groups: members share the logs of a set, each log read by one member at a time.

Inside: claiming logs, balancing them over members, reading and committing. Not inside: cursors and readers,
which a group uses, one cursor of the group's name in each log. Entry point: ``join_group``.
"""

from dlog.groups.errors import ClaimLostError
from dlog.groups.member import GroupBatch, GroupConfig, GroupMember, join_group

__all__ = ["ClaimLostError", "GroupBatch", "GroupConfig", "GroupMember", "join_group"]
