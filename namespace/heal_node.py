"""The node of a log that says which ledgers of its segments were replaced by copies with more replicas.

Inside: the node's value, its JSON, the operation that writes it. Not inside: copying
(``dlog.repair.healing``), deleting ledgers (``dlog.ownership.replaced``).
Always: a segment's node names the copy if and only if the heal is ``KEPT`` or ``GONE``, since one transaction
changes both. A copy that is given up is ``DROPPED`` before it is deleted, so no transaction names it later.

``…/<default>/dlog-heal`` holds JSON; Apache's programs do not know it::

    {"version": 1,
     "heals": [{"segment": 3, "old": 17, "new": 42, "state": "kept", "until_ms": 1764201600000}]}

Source: our own; docs/metadata.md 16.19.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable

import attrs

from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.store import Create, Operation, Put
from namespace.errors import LogMetadataError
from namespace.log_nodes import LogNodes

VERSION = 1


class HealState(enum.Enum):
    """The step of one heal. The value is the stored text."""

    COPYING = "copying"  # the new ledger is being filled
    DROPPED = "dropped"  # the new ledger is not used, and is deleted next
    KEPT = "kept"  # the segment is in the new ledger; readers may still have the old one open
    GONE = "gone"  # the old ledger is deleted


@attrs.frozen
class Heal:
    """The replacement of one segment's ledger."""

    segment_seqno: int
    old: int
    new: int
    state: HealState
    until_ms: int = 0  # KEPT: the old ledger may be deleted after it

    @property
    def is_done(self) -> bool:
        """True if the segment's node names the new ledger."""
        return self.state in (HealState.KEPT, HealState.GONE)

    @property
    def given_up(self) -> int | None:
        """The ledger that nothing needs any more; None if there is none."""
        if self.state is HealState.DROPPED:
            return self.new
        return self.old if self.state is HealState.KEPT else None


@attrs.frozen
class HealNode:
    """The heals of a log, with the version at which they were read."""

    heals: tuple[Heal, ...] = ()
    version: int = -1  # there is no node

    def operation(self, log: LogNodes, heals: Iterable[Heal]) -> Operation:
        """Write other heals, if nobody has changed the node since it was read."""
        path = log.heal_path
        data = json.dumps({"version": VERSION, "heals": [_encoded(each) for each in heals]}).encode()
        return Create(path, data) if self.version < 0 else Put(path, data, self.version)


async def read_heals(log: LogNodes) -> HealNode:
    """The heals of a log.

    Raises:
        LogMetadataError: They do not parse.
    """
    path = log.heal_path
    try:
        node = await log.store.get(path)
    except NoNodeError:
        return HealNode()
    try:
        value = json.loads(node.value)
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']!r} is not {VERSION}")
        heals = tuple(
            Heal(
                int(each["segment"]),
                int(each["old"]),
                int(each["new"]),
                HealState(each["state"]),
                int(each["until_ms"]),
            )
            for each in value["heals"]
        )
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise LogMetadataError(f"log {log.name!r}, node {path}: {exc}; nothing was changed") from None
    return HealNode(heals, node.stat.version)


def ledgers_of_segment(heals: Iterable[Heal], segment_seqno: int, ledger_id: int) -> set[int]:
    """The ledgers that hold the entries of this segment, or did: this one, and all that heals lead to."""
    done = [each for each in heals if each.is_done and each.segment_seqno == segment_seqno]
    known = {ledger_id}
    while (
        more := {ledger for each in done if known & {each.old, each.new} for ledger in (each.old, each.new)}
        - known
    ):
        known |= more
    return known


def in_same_segment(heals: Iterable[Heal], segment_seqno: int, one: int, other: int) -> bool:
    """True if both ledgers hold the entries of this segment: heals lead from one to the other."""
    return other in ledgers_of_segment(heals, segment_seqno, one)


def _encoded(heal: Heal) -> dict[str, object]:
    return {
        "segment": heal.segment_seqno,
        "old": heal.old,
        "new": heal.new,
        "state": heal.state.value,
        "until_ms": heal.until_ms,
    }
