"""The hosts file of a cluster: TOML, one table for each host.

::

    namespace = "dlog"                       # optional: the namespace that is bound to the ledgers
    service = "zk://zk1:2181;zk2:2181/ledgers"   # optional: a ZooKeeper that runs elsewhere

    [defaults]                               # keys of hosts, for all hosts
    dlog = "/opt/dlog/bin/dlog"

    [bookie]                                 # more keys of each bk_server.conf
    [zookeeper]                              # more keys of each zoo.cfg

    [hosts.m1]
    address = "10.0.0.1"
    ssh = "dlog@m1"
    zookeeper = 1

Inside: parsing, types, contradictions between hosts. Not inside: what is done with it (``programs``).
Always: a key that is not known is an error that names the host, the key and the nearest key. No file with an
error has any effect.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

from ledger.metadata_store.errors import InvalidStoreAddressError
from ledger.metadata_store.service_uri import ServiceUri, parse_metadata_service_uri

LEDGERS_ROOT = "/ledgers"
DIRECTORY = PurePosixPath("/var/lib/dlog")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ADDRESS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_SSH = re.compile(r"[A-Za-z0-9._][^\s]*")  # a leading "-" would be an option of ssh
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Keys of the two configurations that follow from keys of the host, and these keys.
BOOKIE_KEYS_OF_HOST = {
    "advertisedAddress": "address",
    "bookiePort": "bookie_port",
    "journalDirectories": "journal_directories",
    "journalDirectory": "journal_directories",
    "ledgerDirectories": "ledger_directories",
    "metadataServiceUri": "zookeeper or service",
    "zkServers": "zookeeper or service",
    "zkLedgersRootPath": "service",
    "httpServerEnabled": "http_port",
    "httpServerPort": "http_port",
    "httpServerHost": "http_host",
    "httpServerTokenPath": "http_port",
    "httpPageNamespace": "namespace",
}
ZOOKEEPER_KEYS_OF_HOST = {
    "clientPort": "zookeeper_port",
    "clientPortAddress": "address",
    "dataDir": "zookeeper_directory",
}


class HostsFileError(ValueError):
    """The file cannot be used; nothing was done. The message names file, host, key and remedy."""


@attrs.frozen(kw_only=True)
class Host:
    """One host: how commands run there, and which programs it has. Paths are those of the host."""

    name: str
    address: str  # at which the other hosts and the clients reach it
    ssh: str | None = None  # the destination for ssh; None: ``run``
    ssh_options: tuple[str, ...] = ()
    run: tuple[str, ...] = ()  # the words in front of a command; without both, commands run on this machine
    dlog: tuple[str, ...] = ("dlog",)
    environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    directory: PurePosixPath = DIRECTORY
    bookie: bool = True
    bookie_port: int = 3181
    journal_directories: tuple[PurePosixPath, ...] = ()
    ledger_directories: tuple[PurePosixPath, ...] = ()
    bookie_settings: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # of bk_server.conf
    http_port: int | None = None  # None: no HTTP server, and no page
    http_host: str = "127.0.0.1"
    autorecovery: bool = True
    autorecovery_http_port: int | None = None  # None: the one after ``http_port``
    zookeeper: int | None = None  # the member's id (myid); None: no ZooKeeper here
    zookeeper_port: int = 2181
    zookeeper_peer_port: int = 2888
    zookeeper_election_port: int = 3888
    zookeeper_directory: PurePosixPath | None = None
    zookeeper_heap_mib: int = 512
    zookeeper_jars: PurePosixPath | None = None

    @property
    def recovery_http_port(self) -> int | None:
        """The port of auto-recovery's metrics; None: it has no HTTP server."""
        if self.autorecovery_http_port is not None or self.http_port is None:
            return self.autorecovery_http_port
        return self.http_port + 1

    @property
    def bookie_id(self) -> str:
        """The id with which its bookie registers, as Apache's default makes it."""
        return f"{self.address}:{self.bookie_port}"


@attrs.frozen(kw_only=True)
class HostsFile:
    """The hosts, and what they have in common."""

    path: Path
    hosts: tuple[Host, ...]
    service: ServiceUri
    namespace: str = "dlog"
    bookie: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # of bk_server.conf
    zookeeper: Mapping[str, str] = attrs.field(factory=dict)  # of zoo.cfg

    @property
    def uri(self) -> str:
        """The URI of the namespace."""
        return f"distributedlog://{self.service.hosts.replace(',', ';')}/{self.namespace}"

    @property
    def members(self) -> tuple[Host, ...]:
        """The hosts with a ZooKeeper, in the order of their ids."""
        return tuple(
            sorted((host for host in self.hosts if host.zookeeper), key=lambda one: one.zookeeper or 0)
        )


def load_hosts_file(path: Path) -> HostsFile:
    """Read a hosts file.

    Raises:
        HostsFileError: It cannot be read or parsed, or contradicts itself.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or "it is not UTF-8"
        raise HostsFileError(f"{path}: the hosts file cannot be read: {reason}") from exc
    return parse_hosts_file(text, path)


def parse_hosts_file(text: str, path: Path) -> HostsFile:
    """The hosts file with this text. Raises ``HostsFileError``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise HostsFileError(f"{path}: not TOML: {exc}") from exc
    kinds: dict[str, Kind] = {"namespace": "text", "service": "text"}
    kinds |= dict.fromkeys(("defaults", "bookie", "zookeeper", "hosts"), "table")
    top = _Table(f"{path}", document, kinds)
    defaults = top.table("defaults")
    _Table(f"{path}: [defaults]", defaults, _HOST_KINDS)
    tables = top.table("hosts")
    if not tables:
        raise HostsFileError(f"{path}: no host; add a table such as [hosts.m1] with address and ssh or run")
    hosts = tuple(_host(path, name, table, defaults) for name, table in tables.items())
    _check_together(path, hosts)
    namespace = top.text("namespace") or "dlog"
    if _NAMESPACE.fullmatch(namespace) is None:
        raise HostsFileError(f"{path}: namespace: {namespace!r} is no path such as shop or shop/orders")
    zookeeper = _settings(f"{path}: [zookeeper]", top.table("zookeeper"), ZOOKEEPER_KEYS_OF_HOST)
    if peer := next((key for key in zookeeper if key.startswith("server.")), None):
        raise HostsFileError(f"{path}: [zookeeper]: {peer} follows from the key zookeeper of the hosts")
    return HostsFile(
        path=path,
        hosts=hosts,
        service=_service(path, top.text("service"), hosts),
        namespace=namespace,
        bookie=_settings(f"{path}: [bookie]", top.table("bookie"), BOOKIE_KEYS_OF_HOST),
        zookeeper=zookeeper,
    )


Kind = str  # "text", "texts", "words", "path", "paths", "port", "number", "switch", "table"
_HOST_KINDS: Mapping[str, Kind] = {
    "address": "text",
    "ssh": "text",
    "ssh_options": "texts",
    "run": "texts",
    "dlog": "words",
    "environment": "table",
    "directory": "path",
    "bookie": "switch",
    "bookie_port": "port",
    "journal_directories": "paths",
    "ledger_directories": "paths",
    "bookie_settings": "table",
    "http_port": "port",
    "http_host": "text",
    "autorecovery": "switch",
    "autorecovery_http_port": "port",
    "zookeeper": "number",
    "zookeeper_port": "port",
    "zookeeper_peer_port": "port",
    "zookeeper_election_port": "port",
    "zookeeper_directory": "path",
    "zookeeper_heap_mib": "number",
    "zookeeper_jars": "path",
}
_WANTED: Mapping[Kind, str] = {
    "text": 'a text: "..."',
    "texts": 'a list of texts: ["...", "..."]',
    "words": 'a text, or a list of texts: ["...", "..."]',
    "path": 'an absolute path: "/..."',
    "paths": 'a list of absolute paths: ["/..."]',
    "port": "a port from 1 to 65535",
    "number": "a whole number, at least 1",
    "switch": "true or false",
    "table": "a table",
}


class _Table:
    """A table whose keys and types have been checked."""

    def __init__(self, where: str, values: object, kinds: Mapping[str, Kind]) -> None:
        if not isinstance(values, dict):
            raise HostsFileError(f"{where} must be a table")
        for key, value in values.items():
            if key not in kinds:
                near = difflib.get_close_matches(key, kinds, 1, 0.6)
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(kinds)}"
                raise HostsFileError(f"{where}: unknown key {key!r}{hint}")
            if not _is_of_kind(value, kinds[key]):
                raise HostsFileError(f"{where}: {key} must be {_WANTED[kinds[key]]}")
        self.values: dict[str, Any] = values

    def text(self, key: str) -> str | None:
        found: str | None = self.values.get(key)
        return found

    def table(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = self.values.get(key, {})
        return found


def _is_of_kind(value: object, kind: Kind) -> bool:
    if kind in ("text", "path"):
        return isinstance(value, str) and _is_plain(value) and (kind == "text" or value.startswith("/"))
    if kind in ("texts", "paths"):
        one = kind.removesuffix("s")
        return isinstance(value, list) and bool(value) and all(_is_of_kind(each, one) for each in value)
    if kind == "words":
        return _is_of_kind(value, "text") or _is_of_kind(value, "texts")
    if kind in ("port", "number"):
        return type(value) is int and value >= 1 and (kind == "number" or value < 65536)
    return isinstance(value, bool if kind == "switch" else dict)


def _is_plain(value: str) -> bool:
    """True without control characters: a line end would add a line to a configuration."""
    return bool(value) and value.isprintable()


def _host(path: Path, name: str, table: object, defaults: Mapping[str, Any]) -> Host:
    where = f"{path}: host {name!r}"
    if _NAME.fullmatch(name) is None:
        raise HostsFileError(f"{where}: a name has letters, digits, '.', '_' and '-' only")
    own = _Table(where, table, _HOST_KINDS).values
    # The two ways to reach a host exclude each other, so one here hides the other one of [defaults].
    hidden = {"ssh": ("run",), "run": ("ssh", "ssh_options")}
    given = {key: value for key, value in defaults.items() if not any(key in hidden.get(o, ()) for o in own)}
    values = {**given, **own}
    if "address" not in values:
        raise HostsFileError(f'{where}: address is missing, such as address = "10.0.0.1"')
    if _ADDRESS.fullmatch(values["address"]) is None:
        raise HostsFileError(f"{where}: address: {values['address']!r} is no IPv4 address and no host name")
    if "ssh" in values and "run" in values:
        raise HostsFileError(f"{where}: ssh and run are two ways to reach the host; keep one of them")
    if "ssh_options" in values and "ssh" not in values:
        raise HostsFileError(f"{where}: ssh_options needs ssh")
    if "ssh" in values and _SSH.fullmatch(values["ssh"]) is None:
        raise HostsFileError(f'{where}: ssh: {values["ssh"]!r} is no destination such as "user@host"')
    environment = values.get("environment", {})
    for key, value in environment.items():
        if _VARIABLE.fullmatch(key) is None or not isinstance(value, str) or not value.isprintable():
            raise HostsFileError(f"{where}: environment: {key} must be a name with a text as its value")
    typed: dict[str, Any] = {}
    for key, value in values.items():
        kind = _HOST_KINDS[key]
        if kind == "path":
            typed[key] = PurePosixPath(value)
        elif kind == "paths":
            typed[key] = tuple(map(PurePosixPath, value))
        elif kind in ("texts", "words"):
            typed[key] = (value,) if isinstance(value, str) else tuple(value)
        else:
            typed[key] = value
    settings = typed.get("bookie_settings", {})
    typed["bookie_settings"] = _settings(f"{where}: bookie_settings", settings, BOOKIE_KEYS_OF_HOST)
    if typed.get("zookeeper", 1) > 255:
        raise HostsFileError(f"{where}: zookeeper: the id of a member is a number from 1 to 255")
    return Host(name=name, **typed)


def _settings(where: str, table: Mapping[str, object], of_host: Mapping[str, str]) -> dict[str, str]:
    """Lines of a properties file, by key."""
    texts: dict[str, str] = {}
    for key, value in table.items():
        if key in of_host:
            raise HostsFileError(f"{where}: {key} follows from the key {of_host[key]} of the hosts file")
        if re.fullmatch(r"[A-Za-z0-9._-]+", key) is None:
            raise HostsFileError(f"{where}: {key!r} is no key of a properties file")
        if not isinstance(value, str | int | float) or (isinstance(value, str) and not value.isprintable()):
            raise HostsFileError(f"{where}: {key} must be a text on one line, a number, true or false")
        texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def _check_together(path: Path, hosts: tuple[Host, ...]) -> None:
    if not any(host.bookie for host in hosts):
        raise HostsFileError(f"{path}: no host has a bookie; remove bookie = false from some")
    used: dict[tuple[str, object], str] = {}
    for host in hosts:
        claims: list[tuple[str, str, object]] = [("directory", host.address, host.directory)]
        if host.bookie:
            claims.append(("bookie_port", host.address, host.bookie_port))
            if host.http_port is not None:
                claims.append(("http_port", host.address, host.http_port))
        if host.autorecovery and host.recovery_http_port is not None:
            claims.append(("autorecovery_http_port", host.address, host.recovery_http_port))
        if host.zookeeper is not None:
            for key in ("zookeeper_port", "zookeeper_peer_port", "zookeeper_election_port"):
                claims.append((key, host.address, getattr(host, key)))
            claims.append(("zookeeper", "ids", host.zookeeper))
        for key, place, value in claims:
            mine = f"host {host.name!r}: {key}"
            if (other := used.setdefault((place, value), mine)) != mine:
                raise HostsFileError(f"{path}: {mine}: {value} is that of {other} already")


def _service(path: Path, given: str | None, hosts: tuple[Host, ...]) -> ServiceUri:
    members = sorted(
        (host for host in hosts if host.zookeeper is not None), key=lambda one: one.zookeeper or 0
    )
    if given is None:
        if not members:
            raise HostsFileError(
                f"{path}: no ZooKeeper: give hosts the key zookeeper, a different number for each, or name"
                ' one that runs: service = "zk://zk1:2181;zk2:2181/ledgers"'
            )
        connect = ",".join(f"{host.address}:{host.zookeeper_port}" for host in members)
        return ServiceUri(connect, LEDGERS_ROOT, None)
    if members:
        raise HostsFileError(
            f"{path}: service names a ZooKeeper, and host {members[0].name!r} has the key zookeeper; keep one"
        )
    try:
        return parse_metadata_service_uri(given)
    except InvalidStoreAddressError as exc:
        raise HostsFileError(f"{path}: service: {exc}") from None
