"""The URI that locates a cluster's ledgers, and the parts it shares with the URI of a namespace.

``zk[+layout]://zk1:2181;zk2:2181/ledgers``   the ledgers of a BookKeeper cluster

Hosts are separated by ``;`` or ``,``. The connect string joins them with ``,``. A host without a port stays
without one.

Not inside: the URI of a namespace (``namespace.namespace_uri``).

Source: BookKeeper, MetadataDrivers.java; DistributedLog, DLUtils.java; RFC 8089 (``file:/dir``).
"""

from __future__ import annotations

import os
import re
import urllib.parse

import attrs

from ledger.metadata_store.errors import InvalidPathError, InvalidStoreAddressError
from ledger.metadata_store.store import check_path

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_QUERY = re.compile(r"([?#]).+", re.DOTALL)
_USER_INFO = re.compile(r"\A(\s*[A-Za-z0-9+.-]*:?/*).*@", re.DOTALL)  # up to the last "@"
_OWN_DIRECTORY = re.compile(r"\s*file:/(?://|(?!/))", re.IGNORECASE)
_LAYOUTS = {"": None, "null": None, "flat": "flat", "hierarchical": "hierarchical"} | {
    "longhierarchical": "longhierarchical"
}


@attrs.frozen
class ServiceUri:
    """Where the ledgers of a cluster are."""

    hosts: str  # ZooKeeper's connect string
    ledgers_root: str
    layout: str | None  # "flat", "hierarchical", "longhierarchical"; None: the layout that the cluster has

    def __str__(self) -> str:
        return f"zk+{self.layout or 'null'}://{self.hosts.replace(',', ';')}{self.ledgers_root}"


def parse_metadata_service_uri(text: str) -> ServiceUri:
    """Parse the URI of a cluster's ledgers, the value of ``metadataServiceUri``.

    Raises:
        InvalidStoreAddressError: The URI cannot be parsed. The message names the part.
    """
    try:
        if text.strip().startswith("metadata-store:"):
            raise ValueError("metadata-store is a driver of Pulsar's; name the same servers by zk+null://")
        scheme, authority, path = split_uri(text)
        driver, _, layout = scheme.partition("+")
        if driver != "zk":
            raise ValueError(f"metadata driver {driver!r} is not known, only 'zk' is")
        if layout not in _LAYOUTS:
            raise ValueError(f"ledger layout {layout!r} is none of {', '.join(filter(None, _LAYOUTS))}")
        return ServiceUri(connect_string(authority), node_path(path), _LAYOUTS[layout])
    except ValueError as exc:
        raise InvalidStoreAddressError(f"URI {without_user_info(text)!r}: {exc}") from None


def parse_directory_uri(text: str) -> str:
    """Parse ``file:///dir`` or ``file:/dir``; return the directory's absolute path.

    Raises:
        InvalidStoreAddressError: The URI cannot be parsed. The message names the part.
    """
    try:
        scheme, authority, path = split_uri(text)
        if scheme != "file":
            raise ValueError(f"scheme {scheme!r} is not 'file'")
        return directory_path(authority, path)
    except ValueError as exc:
        raise InvalidStoreAddressError(f"URI {without_user_info(text)!r}: {exc}") from None


def split_uri(text: str) -> tuple[str, str, str]:
    """Split a URI into its scheme in lower case, its authority, and its path without the first slash.

    Raises:
        ValueError: A part is missing, or there is a query, a fragment, a user name or a password. The message
            quotes none of them.
    """
    scheme, separator, rest = text.strip().partition(":")
    if not separator or not scheme:
        raise ValueError("it has no scheme, such as 'distributedlog:' or 'file:'")
    if scheme.lower() == "file" and not rest.startswith("//"):
        if not rest.startswith("/"):
            raise ValueError("the path of a directory begins with a slash: write file:///dir")
        rest = f"//{rest}"  # RFC 8089 allows file:/dir
    if not rest.startswith("//"):
        raise ValueError(f"'//' is missing after '{scheme}:'")
    if "?" in rest or "#" in rest:
        raise ValueError("it has a query or a fragment; neither is supported")
    authority, _, path = rest[2:].partition("/")
    # A password may have a slash in it. Then the first part is no list of hosts, or the text after the last
    # "@" is one, with a path of its own.
    if "@" in authority or (
        "@" in path and authority and (not _are_hosts(authority) or _is_location(path.rpartition("@")[2]))
    ):
        raise ValueError(
            "it has a user name or a password; commands, logs and lists of processes show a URI, so remove"
            " them and name a file with the identity in DLOG_ZK_SECURITY (docs/security.md)"
        )
    return scheme.lower(), authority, path


def without_user_info(text: str) -> str:
    """A URI or a list of hosts for a message: ``***`` in place of user names, passwords and the query."""
    shown = _QUERY.sub(r"\1***", text)
    return shown if _OWN_DIRECTORY.match(shown) else _USER_INFO.sub(r"\1***@", shown)


def connect_string(authority: str) -> str:
    """ZooKeeper's connect string for the authority of a URI.

    Raises:
        ValueError: There is no host, or one of them is not ``host`` or ``host:port``.
    """
    if not authority:
        raise ValueError("the ZooKeeper hosts are missing")
    hosts = authority.replace(";", ",").split(",")
    for host in hosts:
        match = _HOST.fullmatch(host)
        if match is None or not 0 < int(match[1] or 2181) < 65536:
            raise ValueError(f"{host!r} is not a host, or host:port")
    return ",".join(hosts)


def _are_hosts(authority: str) -> bool:
    return all(map(_HOST.fullmatch, authority.replace(";", ",").split(",")))


def _is_location(text: str) -> bool:
    hosts, _, path = text.partition("/")
    return bool(path) and _are_hosts(hosts)


def node_path(path: str) -> str:
    """The path of a node for the path of a URI.

    Raises:
        ValueError: It is no path of a node, or it is the root.
    """
    try:
        checked = check_path("/" + path.removesuffix("/"))
    except InvalidPathError as exc:
        raise ValueError(f"its path is not a node's: {exc}") from None
    if checked == "/":
        raise ValueError("the path is missing")
    return checked


def directory_path(authority: str, path: str) -> str:
    """The absolute path of a directory for the authority and the path of a URI.

    Raises:
        ValueError: It is a directory of another machine, or there is no path.
    """
    if authority not in ("", "localhost"):
        raise ValueError(f"a directory of another machine ({authority}); write file:///dir")
    # The bytes of a name are kept, also those that are no UTF-8, as by Python's own functions for files.
    directory = "/" + os.fsdecode(urllib.parse.unquote_to_bytes(os.fsencode(path))).strip("/")
    if directory == "/" or "\0" in directory:
        raise ValueError("the path of a directory is missing")
    return directory
