"""The URI that locates a namespace of logs.

``distributedlog[-bk]://zk1:2181;zk2:2181/path``  logs under a node of a ZooKeeper
``file:///dir``                                   logs in a directory of this machine

Not inside: the URI of a cluster's ledgers (``ledger.metadata_store.service_uri``).

Source: DistributedLog, DLUtils.java and NamespaceDriverManager.java.
"""

from __future__ import annotations

import os
import urllib.parse

import attrs

from ledger.metadata_store.service_uri import (
    connect_string,
    directory_path,
    node_path,
    split_uri,
    without_user_info,
)
from namespace.errors import InvalidUriError


@attrs.frozen
class NamespaceUri:
    """Where a namespace is. ``str()`` gives the URI in its normal form."""

    scheme: str  # "distributedlog" or "file"
    hosts: str  # ZooKeeper's connect string; empty for "file"
    path: str  # of the namespace's node, or of the directory

    def __str__(self) -> str:
        path = urllib.parse.quote(os.fsencode(self.path)) if self.scheme == "file" else self.path
        return f"{self.scheme}://{self.hosts}{path}"


def parse_namespace_uri(text: str) -> NamespaceUri:
    """Parse the URI of a namespace.

    Raises:
        InvalidUriError: The URI cannot be parsed. The message names the part.
    """
    try:
        scheme, authority, path = split_uri(text)
        if scheme == "file":
            return NamespaceUri("file", "", directory_path(authority, path))
        name, dash, backend = scheme.partition("-")
        if name != "distributedlog":
            raise ValueError(f"scheme {scheme!r} is neither 'distributedlog' nor 'file'")
        if dash and backend != "bk":
            raise ValueError(f"backend {backend!r} is not known, only 'bk' is")
        return NamespaceUri("distributedlog", connect_string(authority), node_path(path))
    except ValueError as exc:
        raise InvalidUriError(f"URI {without_user_info(text)!r}: {exc}") from None
