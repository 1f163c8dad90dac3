"""Names of a compaction's files at each step, and the action of a restart for each.

Logs S (one or several) are copied into the new log N; all ids are in lower-case hex:

step     files                                             action on restart
copying  ``N.log.compacting``                              delete it: no index entry references it
copied   ``N.log.compacting``, ``N.log.S.compacted``       delete the former, continue with the latter
ready    ``N.log.S.compacted``                             continue: give it the name ``N.log``
visible  ``N.log``, ``N.log.S.compacted``                  continue: move the index from S to N, delete S
done     ``N.log``                                         none

All names of N are links to one file. Each of several sources has its own link and is finished separately: an
entry moves only if the index still references it in that source. S is deleted before ``N.log.S.compacted``.
In the other order, a crash between the two would leave S without a live entry, and its summary would still
count its ledgers as live for ever.

Inside: the names. Not inside: the files (``compactor``).

Source: TransactionalEntryLogCompactor.java, DefaultEntryLogger.java; apache/bookkeeper#4804 (decimal names).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

_COMPACTING = re.compile(r"([0-9a-f]{1,8})\.log\.compacting")
_COMPACTED = re.compile(r"([0-9a-f]{1,8})\.log\.([0-9a-f]{1,8})\.compacted")


@attrs.frozen
class UnfinishedCompactions:
    """Compactions that have begun and not ended, from the names of files."""

    abandoned: tuple[str, ...]  # names of files to delete
    pending: Mapping[int, tuple[int, ...]]  # new log -> its sources, ascending


def compacting_name(target_id: int) -> str:
    """The name of the new log while it is being written."""
    return f"{target_id:x}.log.compacting"


def compacted_name(target_id: int, source_id: int) -> str:
    """The name of the complete new log, until the source is deleted."""
    return f"{target_id:x}.log.{source_id:x}.compacted"


def unfinished_compactions(names: Iterable[str]) -> UnfinishedCompactions:
    """The unfinished compactions in a listing of a ledger directory."""
    abandoned: list[str] = []
    pending: dict[int, list[int]] = {}
    for name in names:
        if _COMPACTING.fullmatch(name):
            abandoned.append(name)
        elif match := _COMPACTED.fullmatch(name):
            pending.setdefault(int(match[1], 16), []).append(int(match[2], 16))
    return UnfinishedCompactions(
        tuple(sorted(abandoned)), {target: tuple(sorted(pending[target])) for target in sorted(pending)}
    )


def ids_in_name(name: str) -> tuple[int, ...]:
    """All entry-log ids in the name of a log or of a compaction's file; empty for other files."""
    if match := _COMPACTED.fullmatch(name):
        return int(match[1], 16), int(match[2], 16)
    match = _COMPACTING.fullmatch(name) or re.fullmatch(r"([0-9a-f]{1,8})\.log", name)
    return (int(match[1], 16),) if match else ()
