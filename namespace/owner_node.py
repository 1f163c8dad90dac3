"""The node in which the owner of a shared log says where it takes the records of other programs.

Inside: its data. Not inside: creating and removing it, connections (``dlog.forwarding.meeting``).
Always: nothing depends on it for safety, so data that no owner wrote count as no owner.

Source: our own; docs/shared.md, "Where they meet".
"""

from __future__ import annotations

import json

import attrs
import trio

from ledger.metadata_store.errors import NoNodeError
from namespace.log_nodes import LogNodes

VERSION = 1


@attrs.frozen
class LogOwner:
    """The owner of a shared log.

    Args:
        address: Where it takes records.
        forwarders: How many programs forward to it.
    """

    address: str = attrs.field(repr=lambda text: repr(text.partition("#")[0]))  # without the owner's key
    forwarders: int


def encode_owner(owner: LogOwner) -> bytes:
    """The data of the node."""
    return json.dumps({"version": VERSION, "address": owner.address, "forwarders": owner.forwarders}).encode()


def decode_owner(data: bytes) -> LogOwner | None:
    """The owner in the data of the node; None if no owner wrote them."""
    try:
        found = json.loads(data)
        address, forwarders = found["address"], found["forwarders"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    is_known = found.get("version") == VERSION and isinstance(address, str) and type(forwarders) is int
    return LogOwner(address, forwarders) if is_known else None


async def read_owner(log: LogNodes, watch: trio.Event | None = None) -> LogOwner | None:
    """The owner of a log; None if the log is not shared now. ``watch`` is set when that may have changed.

    Raises:
        ledger.metadata_store.errors.MetadataError: The store failed.
    """
    try:
        return decode_owner((await log.store.get(log.owner_path, watch=watch)).value)
    except NoNodeError:
        if watch is not None and await log.store.exists(log.owner_path, watch=watch) is not None:
            watch.set()  # created since
        return None
