"""What a cluster's directory holds, as values and text: paths, the bookies' configuration, the state file.

::

    DIRECTORY/cluster.json             the state: what was started, with pids and ports
              cluster.lock             held (flock) while one program starts or stops things
              zookeeper/               configuration and data
              bookie-1/bk_server.conf  Apache's keys; journal/ and ledgers/ beside it
              logs/zookeeper.log, logs/bookie-1.log, ...

Not inside: processes (``process``), starting and stopping (``local``).
Always: a cluster keeps its ports over restarts, since a bookie's id is its address, and its ledgers name it.
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
# A killed bookie may come back only when its old session is over: not long, where it is tried out.
SESSION_TIMEOUT_MS = 6_000


class ClusterStateError(Exception):
    """The state file does not parse, or is of another version of this program; nothing was touched."""


@attrs.frozen
class Member:
    """One process of a cluster: its name, where it listens, and which process it is (None: not running)."""

    name: str  # "zookeeper", "bookie-1", ...
    port: int
    process: ProcessId | None = None


@attrs.frozen
class ClusterState:
    """What is known about a cluster between two commands."""

    zookeeper: Member
    bookies: tuple[Member, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """ZooKeeper first: the order of starting; stopping goes backwards."""
        return (self.zookeeper, *self.bookies)

    @property
    def zookeeper_hosts(self) -> str:
        """As a connection string."""
        return f"{LOCALHOST}:{self.zookeeper.port}"

    @property
    def uri(self) -> str:
        """The namespace that commands use when told nothing else."""
        return f"distributedlog://{self.zookeeper_hosts}/{DEFAULT_NAMESPACE}"

    def with_process(self, name: str, process: ProcessId | None) -> ClusterState:
        """The same cluster, one member's process replaced."""

        def renewed(member: Member) -> Member:
            return attrs.evolve(member, process=process) if member.name == name else member

        return attrs.evolve(
            self, zookeeper=renewed(self.zookeeper), bookies=tuple(map(renewed, self.bookies))
        )


@attrs.frozen
class ClusterPaths:
    """Where everything of one cluster lies."""

    directory: Path

    @property
    def state(self) -> Path:
        """The state file."""
        return self.directory / "cluster.json"

    @property
    def lock(self) -> Path:
        """The file whose lock is held while things are started and stopped."""
        return self.directory / "cluster.lock"

    def home(self, name: str) -> Path:
        """The data directory of one member."""
        return self.directory / name

    def log(self, name: str) -> Path:
        """The log of one member; appended to over restarts."""
        return self.directory / "logs" / f"{name}.log"

    def bookie_config(self, name: str) -> Path:
        """A bookie's ``bk_server.conf``."""
        return self.home(name) / "bk_server.conf"


def new_state(bookie_count: int, ports: list[int]) -> ClusterState:
    """A cluster of which nothing runs yet; ``ports`` has one for ZooKeeper and one for each bookie."""
    assert len(ports) == bookie_count + 1
    return ClusterState(
        zookeeper=Member("zookeeper", ports[0]),
        bookies=tuple(Member(f"bookie-{index + 1}", port) for index, port in enumerate(ports[1:])),
    )


def bookie_id(member: Member) -> str:
    """The id under which the bookie registers: Apache's default, its advertised address."""
    return f"{LOCALHOST}:{member.port}"


def bookie_config_text(
    paths: ClusterPaths, state: ClusterState, member: Member, *, session_timeout_ms: int = SESSION_TIMEOUT_MS
) -> str:
    """A bookie's ``bk_server.conf``, in Apache's keys."""
    home = paths.home(member.name)
    settings = {
        "bookiePort": member.port,
        "listeningInterface": "lo",
        "advertisedAddress": LOCALHOST,
        "allowLoopback": "true",
        "metadataServiceUri": f"zk+null://{state.zookeeper_hosts}{LEDGERS_ROOT}",
        "zkTimeout": session_timeout_ms,
        "journalDirectories": home / "journal",
        "ledgerDirectories": home / "ledgers",
        # A laptop's disk may well be nearly full: a cluster for trying things out must start on it.
        "diskUsageThreshold": 0.99,
        "diskUsageWarnThreshold": 0.98,
        "minUsableSizeForEntryLogCreation": 100_000_000,
    }
    lines = (f"{key}={_escaped(str(value))}" for key, value in settings.items())
    return f"# {member.name} of a local cluster, written by `dlog cluster start`\n" + "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    # In a properties file a backslash escapes; in Apache's reader a comma makes a list.
    return value.replace("\\", "\\\\").replace(",", "\\,")


def encode_state(state: ClusterState) -> str:
    """The state as JSON for people and programs."""
    document = {"version": STATE_VERSION, **attrs.asdict(state)}
    return json.dumps(document, indent=2) + "\n"


def decode_state(text: str, origin: Path) -> ClusterState:
    """The state from its JSON.

    Raises:
        ClusterStateError: Not our JSON, or of another version.
    """
    try:
        document = json.loads(text)
        if document["version"] != STATE_VERSION:
            raise ClusterStateError(
                f"{origin}: written by another version of dlog (format {document['version']!r}, "
                f"this one reads {STATE_VERSION}); stop the cluster with the version that started it"
            )
        return ClusterState(
            zookeeper=_member(document["zookeeper"]),
            bookies=tuple(_member(bookie) for bookie in document["bookies"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterStateError(f"{origin}: not a cluster's state file ({error!r})") from error


def _member(document: dict[str, object]) -> Member:
    name, port, process = document["name"], document["port"], document["process"]
    if not isinstance(name, str) or not isinstance(port, int):
        raise TypeError(f"a member needs a name and a port: {document}")
    if process is None:
        return Member(name, port)
    if not isinstance(process, dict):
        raise TypeError(f"a process is an object: {process!r}")
    pid, ticks, boot = process["pid"], process["start_ticks"], process["boot_id"]
    if not isinstance(pid, int) or not isinstance(ticks, int) or not isinstance(boot, str):
        raise TypeError(f"a process needs pid, start_ticks and boot_id: {process}")
    return Member(name, port, ProcessId(pid, ticks, boot))
