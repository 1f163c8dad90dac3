"""The URIs that locate a namespace of logs, and a cluster's ledgers.

``distributedlog[-bk]://zk1:2181;zk2:2181/path``  logs under a node of a ZooKeeper
``file:///dir``                                   logs in a directory of this machine
``zk[+layout]://zk1:2181;zk2:2181/ledgers``       the ledgers of a BookKeeper cluster

Hosts are separated by ``;`` or ``,`` and handed on with ``,``; a port left out is left out.

Source: DistributedLog, DLUtils.java and NamespaceDriverManager.java; BookKeeper, MetadataDrivers.java.
"""

from __future__ import annotations

import re
import urllib.parse

import attrs

from namespace.errors import InvalidPathError, InvalidUriError
from namespace.store import check_path

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_LAYOUTS = {"": None, "null": None, "flat": "flat", "hierarchical": "hierarchical"} | {
    "longhierarchical": "longhierarchical"
}


@attrs.frozen
class NamespaceUri:
    """Where a namespace is. ``str()`` gives the URI in its normal form."""

    scheme: str  # "distributedlog" or "file"
    hosts: str  # ZooKeeper's connect string; empty for "file"
    path: str  # of the namespace's node, or of the directory

    def __str__(self) -> str:
        path = urllib.parse.quote(self.path) if self.scheme == "file" else self.path
        return f"{self.scheme}://{self.hosts}{path}"


@attrs.frozen
class ServiceUri:
    """Where the ledgers of a cluster are."""

    hosts: str  # ZooKeeper's connect string
    ledgers_root: str
    layout: str | None  # "flat", "hierarchical", "longhierarchical"; None: whatever the cluster has

    def __str__(self) -> str:
        return f"zk+{self.layout or 'null'}://{self.hosts.replace(',', ';')}{self.ledgers_root}"


def parse_namespace_uri(text: str) -> NamespaceUri:
    """Read the URI of a namespace.

    Raises:
        InvalidUriError: Saying which part cannot be understood.
    """
    scheme, authority, path = _split(text)
    if scheme == "file":
        return NamespaceUri("file", "", _directory(text, authority, path))
    name, dash, backend = scheme.partition("-")
    if name != "distributedlog":
        raise _refusal(text, f"scheme {scheme!r} is neither 'distributedlog' nor 'file'")
    if dash and backend != "bk":
        raise _refusal(text, f"backend {backend!r} is not known, only 'bk' is")
    return NamespaceUri("distributedlog", _hosts(text, authority), _node_path(text, path))


def parse_metadata_service_uri(text: str) -> ServiceUri:
    """Read the URI of a cluster's ledgers, as ``metadataServiceUri`` has it.

    Raises:
        InvalidUriError: Saying which part cannot be understood.
    """
    scheme, authority, path = _split(text)
    driver, _, layout = scheme.partition("+")
    if driver != "zk":
        raise _refusal(text, f"metadata driver {driver!r} is not known, only 'zk' is")
    if layout not in _LAYOUTS:
        raise _refusal(text, f"ledger layout {layout!r} is none of {', '.join(filter(None, _LAYOUTS))}")
    return ServiceUri(_hosts(text, authority), _node_path(text, path), _LAYOUTS[layout])


def _split(text: str) -> tuple[str, str, str]:
    scheme, separator, rest = text.strip().partition(":")
    if not separator or not scheme:
        raise _refusal(text, "it has no scheme, such as 'distributedlog:' or 'file:'")
    if not rest.startswith("//"):
        raise _refusal(text, f"'//' is missing after '{scheme}:'")
    if "?" in rest or "#" in rest:
        raise _refusal(text, "a query or fragment means nothing here")
    authority, _, path = rest[2:].partition("/")
    return scheme.lower(), authority, path


def _hosts(text: str, authority: str) -> str:
    if not authority:
        raise _refusal(text, "the ZooKeeper hosts are missing")
    hosts = authority.replace(";", ",").split(",")
    for host in hosts:
        match = _HOST.fullmatch(host)
        if match is None or not 0 < int(match[1] or 2181) < 65536:
            raise _refusal(text, f"{host!r} is not a host, or host:port")
    return ",".join(hosts)


def _node_path(text: str, path: str) -> str:
    try:
        node_path = check_path("/" + path.removesuffix("/"))
    except InvalidPathError as exc:
        raise _refusal(text, f"its path is not a node's: {exc}") from exc
    if node_path == "/":
        raise _refusal(text, "the path is missing")
    return node_path


def _directory(text: str, authority: str, path: str) -> str:
    if authority not in ("", "localhost"):
        raise _refusal(text, f"a directory of another machine ({authority}); write file:///dir")
    directory = "/" + urllib.parse.unquote(path).strip("/")
    if directory == "/" or "\0" in directory:
        raise _refusal(text, "the path of a directory is missing")
    return directory


def _refusal(text: str, reason: str) -> InvalidUriError:
    return InvalidUriError(f"URI {text!r}: {reason}")
