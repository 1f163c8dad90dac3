"""A local cluster: ZooKeeper and bookies as processes of one machine, for commands, demo, benchmarks and
tests.

Inside: starting, stopping and measuring the processes, their ports and their directory; ``daemons``, programs
of a real cluster in the background; ``hosts``, a cluster on several hosts.
Not inside: the work of the processes (``bookie``, Apache ZooKeeper). Entry points: ``LocalCluster``,
``open_local_cluster``.
"""

from __future__ import annotations

from dlog.cluster.layout import ClusterStateError
from dlog.cluster.local import ClusterError, LocalCluster, MemberStatus, open_local_cluster
from dlog.cluster.process import ProcessStats

__all__ = [
    "ClusterError",
    "ClusterStateError",
    "LocalCluster",
    "MemberStatus",
    "ProcessStats",
    "open_local_cluster",
]
