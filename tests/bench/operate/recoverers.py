"""The processes that restore replicas: ours, and Apache's, on the same bookies with the same settings.

Always: a process of Apache's ends with the benchmark, also when the benchmark is killed. It has a file of its
own; no file of a bookie is changed.

Source: AutoRecoveryMain.java.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import attrs
import trio

from dlog.cluster import LocalCluster, open_local_cluster, process
from dlog.cluster.guardian import open_guardian
from dlog.cluster.layout import LEDGERS_ROOT, LOCALHOST
from dlog.cluster.process import ProcessId
from dlog.cluster.zookeeper_process import ZookeeperNotInstalledError, find_java
from ledger.replication import ReplicationConfig

MAIN_CLASS = "org.apache.bookkeeper.replication.AutoRecoveryMain"
HEAP_MIB = 256
STOP_S = 5.0
JAR = "bookkeeper-server-*.jar"
PACKAGE = "apache: Java, and --apache-jars DIR with the jars of bookkeeper-server 4.17.3 or 4.18.0"

_OURS = ReplicationConfig()
SETTINGS: Mapping[str, object] = {  # of both; ours are the defaults of `dlog autorecovery`
    "lostBookieRecoveryDelay": _OURS.lost_bookie_delay_s,
    "rereplicationEntryBatchSize": _OURS.batch_entries,
    "replicationRateByBytes": _OURS.rate_bytes_max or -1,
    "auditorPeriodicBookieCheckInterval": int(_OURS.bookie_check_interval_s),
    "auditorPeriodicCheckInterval": int(_OURS.ledger_check_interval_s),
    "auditorLedgerVerificationPercentage": _OURS.verified_percentage,
}


@attrs.frozen
class RepairCluster:
    """A cluster with one process that restores replicas."""

    cluster: LocalCluster
    recoverer: ProcessId
    log: Path

    def recoverer_cpu_s(self) -> float | None:
        """The CPU time of the process so far; None if it has ended."""
        stats = process.stats(self.recoverer)
        return None if stats is None else stats.cpu_s


Open = Callable[..., contextlib.AbstractAsyncContextManager[RepairCluster]]


@contextlib.asynccontextmanager
async def open_ours(
    directory: Path, *, bookie_count: int, session_timeout_ms: int
) -> AsyncIterator[RepairCluster]:
    """A cluster with `dlog autorecovery`."""
    async with open_local_cluster(
        directory, bookie_count=bookie_count, session_timeout_ms=session_timeout_ms, has_recovery=True
    ) as cluster:
        member = cluster.state.recovery
        assert member is not None, "the cluster was asked for it"  # ``has_recovery`` above
        assert member.process is not None, "the cluster was asked for it"  # ``has_recovery`` above
        yield RepairCluster(cluster, member.process, cluster.paths.log(member.name))


def open_apache(jars: Path) -> Open:
    """Opens a cluster of our bookies with Apache's auditor and worker, from the jars of a directory."""

    @contextlib.asynccontextmanager
    async def opened(
        directory: Path, *, bookie_count: int, session_timeout_ms: int
    ) -> AsyncIterator[RepairCluster]:
        async with open_local_cluster(
            directory, bookie_count=bookie_count, session_timeout_ms=session_timeout_ms
        ) as cluster:
            home = cluster.paths.home("apache-autorecovery")
            home.mkdir()
            config = home / "bk_server.conf"
            config.write_text(configuration(cluster.zookeeper_hosts, home, session_timeout_ms), "utf-8")
            log = cluster.paths.log(home.name)
            with open_guardian() as group:
                started = process.start_detached(command_line(jars, config), log, group=group)
                try:
                    yield RepairCluster(cluster, started, log)
                finally:
                    with trio.CancelScope(shield=True):
                        await process.stop(started, grace_s=STOP_S)

    return opened


def find_missing(jars: Path | None) -> str | None:
    """The packages to install, or None if Apache's program can run."""
    try:
        find_java()
    except ZookeeperNotInstalledError:
        return PACKAGE
    return PACKAGE if jars is None or not any(jars.glob(JAR)) else None


def release_of(jars: Path) -> str:
    """The release of the jars, such as ``4.17.3``."""
    return next(iter(sorted(jars.glob(JAR)))).stem.removeprefix("bookkeeper-server-")


def command_line(jars: Path, config: Path) -> list[str]:
    """The command of Apache's auditor and worker, with its compiler and collector as they come."""
    return [
        str(find_java()),
        f"-Xmx{HEAP_MIB}m",
        f"-XX:MaxDirectMemorySize={HEAP_MIB}m",
        # The first address of the loopback interface may be ::1, which makes an invalid id.
        "-Djava.net.preferIPv4Stack=true",
        "-cp",
        f"{jars.absolute()}{os.sep}*",
        MAIN_CLASS,
        "--conf",
        str(config),
    ]


def configuration(zookeeper_hosts: str, home: Path, session_timeout_ms: int) -> str:
    """The file of Apache's process: Apache's keys with our values."""
    settings = {
        "metadataServiceUri": f"zk+null://{zookeeper_hosts}{LEDGERS_ROOT}",
        "zkTimeout": session_timeout_ms,
        "listeningInterface": "lo",
        "advertisedAddress": LOCALHOST,
        "allowLoopback": "true",
        "journalDirectories": home / "journal",
        "ledgerDirectories": home / "ledgers",
        **SETTINGS,
    }
    return "".join(f"{key}={str(value).replace(chr(92), chr(92) * 2)}\n" for key, value in settings.items())
