"""The directory of a local cluster as values and text: paths, the bookies' configuration, the state file.

::

    DIRECTORY/cluster.json             the state: the processes with their pids and ports
              cluster.lock             locked (flock) while a program starts or stops processes
              zookeeper/               configuration and data
              bookie-1/bk_server.conf  Apache's keys; journal/ and ledgers/ beside it
              security/                certificates, if the cluster is secured (``certificates``)
              logs/zookeeper.log, logs/bookie-1.log, ...

Not inside: processes (``process``), starting and stopping (``local``).
Always: a cluster keeps its ports over restarts, because a bookie's id is its address and ledgers refer to it.
"""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from dlog.cluster.process import ProcessId

STATE_VERSION = 1
LOCALHOST = "127.0.0.1"
LEDGERS_ROOT = "/ledgers"
DEFAULT_NAMESPACE = "dlog"
# A killed bookie cannot register again before its old session ends. A local cluster should not wait long.
SESSION_TIMEOUT_MS = 6_000
_WRITTEN_BY = "written by `dlog cluster start`"
_INDEX = "DbLedgerStorage"  # our chunk index; without the key Apache's Sorted is meant


class ClusterStateError(Exception):
    """The state file does not parse, or another version of this program wrote it; nothing was changed."""


@attrs.frozen
class Member:
    """One process of a cluster: its name, its port and its identity; None if it was not started."""

    name: str  # "zookeeper", "bookie-1", ...
    port: int
    process: ProcessId | None = None
    http_port: int | None = None  # of metrics and of a bookie's page; None: it has no HTTP server


@attrs.frozen
class ClusterState:
    """The recorded state of a cluster, for the next command."""

    zookeeper: Member
    bookies: tuple[Member, ...]
    recovery: Member | None = None  # the process of auto-recovery, which has no port but that of HTTP
    secure: bool = False  # the bookies demand TLS and a client certificate

    @property
    def members(self) -> tuple[Member, ...]:
        """ZooKeeper and the bookies, in the order in which they start; they stop in reverse order."""
        return (self.zookeeper, *self.bookies, *(() if self.recovery is None else (self.recovery,)))

    @property
    def page_url(self) -> str | None:
        """The address of the page; None without one."""
        ports = (bookie.http_port for bookie in self.bookies if bookie.http_port is not None)
        return next((f"http://{LOCALHOST}:{port}/page" for port in ports), None)

    @property
    def zookeeper_hosts(self) -> str:
        """ZooKeeper's connection string."""
        return f"{LOCALHOST}:{self.zookeeper.port}"

    @property
    def uri(self) -> str:
        """The URI of the cluster's default namespace."""
        return f"distributedlog://{self.zookeeper_hosts}/{DEFAULT_NAMESPACE}"

    def with_process(self, name: str, process: ProcessId | None) -> ClusterState:
        """The same cluster with the process of one member replaced."""

        def replaced(member: Member) -> Member:
            return attrs.evolve(member, process=process) if member.name == name else member

        return attrs.evolve(
            self,
            zookeeper=replaced(self.zookeeper),
            bookies=tuple(map(replaced, self.bookies)),
            recovery=None if self.recovery is None else replaced(self.recovery),
        )


@attrs.frozen
class ClusterPaths:
    """The paths of one cluster's files."""

    directory: Path

    @property
    def state(self) -> Path:
        """The state file."""
        return self.directory / "cluster.json"

    @property
    def lock(self) -> Path:
        """The file that is locked while a program starts or stops processes."""
        return self.directory / "cluster.lock"

    def home(self, name: str) -> Path:
        """The data directory of one member."""
        return self.directory / name

    def log(self, name: str) -> Path:
        """The log file of one member; a restart appends to it."""
        return self.directory / "logs" / f"{name}.log"

    @property
    def token(self) -> Path:
        """The file with the token of the bookies' HTTP servers."""
        return self.directory / "http.token"

    @property
    def security(self) -> Path:
        """The directory with certificates, of a secured cluster."""
        return self.directory / "security"

    @property
    def client_settings(self) -> Path:
        """The settings of a client of a secured cluster, for DLOG_CONFIG."""
        return self.security / "client.toml"

    @property
    def bookie_security(self) -> Path:
        """The settings of TLS with the bookies of a secured cluster, for DLOG_BOOKIE_SECURITY."""
        return self.security / "bookies.toml"

    def bookie_config(self, name: str) -> Path:
        """A bookie's ``bk_server.conf``."""
        return self.home(name) / "bk_server.conf"


def new_state(bookie_count: int, ports: list[int]) -> ClusterState:
    """A cluster without processes; ``ports`` has one port for ZooKeeper and one for each bookie."""
    assert len(ports) == bookie_count + 1  # the caller asked ``free_ports`` for them
    return ClusterState(
        zookeeper=Member("zookeeper", ports[0]),
        bookies=tuple(Member(f"bookie-{index + 1}", port) for index, port in enumerate(ports[1:])),
    )


def bookie_id(member: Member) -> str:
    """The id with which the bookie registers. Like Apache's default, it is the advertised address."""
    return f"{LOCALHOST}:{member.port}"


def bookie_config_text(
    paths: ClusterPaths, state: ClusterState, member: Member, *, session_timeout_ms: int = SESSION_TIMEOUT_MS
) -> str:
    """The text of a bookie's ``bk_server.conf``, with Apache's keys."""
    home = paths.home(member.name)
    page = {} if member.http_port is None else _page_settings(paths, state, member.http_port)
    secured = _security_settings(paths) if state.secure else {}
    settings = (
        page
        | secured
        | {
            "bookiePort": member.port,
            "listeningInterface": "lo",
            "advertisedAddress": LOCALHOST,
            "allowLoopback": "true",
            "metadataServiceUri": f"zk+null://{state.zookeeper_hosts}{LEDGERS_ROOT}",
            "zkTimeout": session_timeout_ms,
            "journalDirectories": home / "journal",
            "ledgerDirectories": home / "ledgers",
            "ledgerStorageClass": _INDEX,
            # A laptop's disk may be nearly full. A local cluster must start on it all the same.
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.98,
            "minUsableSizeForEntryLogCreation": 100_000_000,
        }
    )
    lines = (f"{key}={_escaped(str(value))}" for key, value in settings.items())
    return f"# {member.name} of a local cluster, {_WRITTEN_BY}\n" + "\n".join(lines) + "\n"


def name_the_index(config: Path) -> None:
    """Add the key of the index to a bookie's file from before the key was necessary.

    Such a file is one that `dlog cluster start` wrote and that lacks the key. It meant the chunk index. Now
    it would mean Apache's SortedLedgerStorage, and the bookie would refuse to start. A file that has the key,
    or is not ours, stays as it is. Safe to repeat.
    """
    text = config.read_text("utf-8")
    keys = {line.partition("=")[0].strip() for line in text.splitlines()}
    if _WRITTEN_BY in text.partition("\n")[0] and "ledgerStorageClass" not in keys:
        partial = config.with_suffix(".new")
        partial.write_text(text.rstrip("\n") + f"\nledgerStorageClass={_INDEX}\n", "utf-8")
        partial.replace(config)


def _page_settings(paths: ClusterPaths, state: ClusterState, http_port: int) -> dict[str, object]:
    return {
        "httpServerEnabled": "true",
        "httpServerPort": http_port,
        "httpServerTokenPath": paths.token,
        "httpPageNamespace": state.uri,
        "httpPageRecords": "true",
    }


def _security_settings(paths: ClusterPaths) -> dict[str, object]:
    return {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsRequired": "true",
        "tlsClientAuthentication": "true",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": paths.security / "bookie.key",
        "tlsCertificatePath": paths.security / "bookie.pem",
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": paths.security / "authority.pem",
        "tlsHostnameVerificationEnabled": "true",
        "tlsCertFilesRefreshDurationSeconds": 10,
    }


def _escaped(value: str) -> str:
    # In a properties file a backslash starts an escape. Apache's reader splits a value at a comma.
    return value.replace("\\", "\\\\").replace(",", "\\,")


def encode_state(state: ClusterState) -> str:
    """The state as JSON, for people and programs."""
    document = {"version": STATE_VERSION, **attrs.asdict(state)}
    return json.dumps(document, indent=2) + "\n"


def decode_state(text: str, origin: Path) -> ClusterState:
    """The state from its JSON.

    Raises:
        ClusterStateError: The text is no state file, or another version wrote it.
    """
    try:
        document = json.loads(text)
        if document["version"] != STATE_VERSION:
            raise ClusterStateError(
                f"{origin} has format {document['version']!r} of another dlog version, but this version reads"
                f" format {STATE_VERSION}; stop the cluster with the version that started it"
            )
        return ClusterState(
            zookeeper=_member(document["zookeeper"]),
            bookies=tuple(_member(bookie) for bookie in document["bookies"]),
            recovery=_member(document["recovery"]) if document.get("recovery") else None,
            secure=document.get("secure") is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ClusterStateError(
            f"{origin} is no state file of a cluster ({error!r}); stop its processes by hand and start a"
            " cluster in another directory"
        ) from error


def _member(document: dict[str, object]) -> Member:
    name, port, process = document["name"], document["port"], document["process"]
    if not isinstance(name, str) or not isinstance(port, int):
        raise TypeError(f"a member needs a name and a port: {document}")
    http_port = document.get("http_port")
    if not isinstance(http_port, int | None):
        raise TypeError(f"a port is a number: {document}")
    if process is None:
        return Member(name, port, None, http_port)
    if not isinstance(process, dict):
        raise TypeError(f"a process is an object: {process!r}")
    pid, ticks, boot = process["pid"], process["start_ticks"], process["boot_id"]
    if not isinstance(pid, int) or not isinstance(ticks, int) or not isinstance(boot, str):
        raise TypeError(f"a process needs pid, start_ticks and boot_id: {process}")
    return Member(name, port, ProcessId(pid, ticks, boot), http_port)
