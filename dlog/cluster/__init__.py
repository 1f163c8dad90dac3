"""ZooKeeper and bookies as processes of one machine: for the CLI, the demo, benchmarks and tests."""

from __future__ import annotations

from dlog.cluster.layout import ClusterStateError
from dlog.cluster.local import ClusterError, LocalCluster, MemberStatus, open_local_cluster
from dlog.cluster.process import Figures

__all__ = [
    "ClusterError",
    "ClusterStateError",
    "Figures",
    "LocalCluster",
    "MemberStatus",
    "open_local_cluster",
]
