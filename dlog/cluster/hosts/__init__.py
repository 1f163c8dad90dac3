"""A cluster on several hosts, which a hosts file describes: start, show and stop its programs.

Inside: the hosts file (``hosts_file``), the files and commands of one host (``programs``), running a command
on a host (``channel``), the order of starting and stopping (``hosted_cluster``).
Not inside: the programs, and keeping them alive after a crash or a boot, which is the work of systemd.
Entry points: ``load_hosts_file``, ``HostedCluster``.
"""

from __future__ import annotations

from dlog.cluster.hosts.hosted_cluster import Failure, HostedCluster, ProgramState, Report
from dlog.cluster.hosts.hosts_file import Host, HostsFile, HostsFileError, load_hosts_file

__all__ = [
    "Failure",
    "Host",
    "HostedCluster",
    "HostsFile",
    "HostsFileError",
    "ProgramState",
    "Report",
    "load_hosts_file",
]
