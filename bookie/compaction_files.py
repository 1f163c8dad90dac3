"""Names of the files a compaction leaves behind at each step, and what a restart makes of them.

Logs S (one or several) are copied into the new log N; all ids are in lower-case hex:

step     files                                             on restart
copying  ``N.log.compacting``                              delete it: nothing points there
copied   ``N.log.compacting``, ``N.log.S.compacted``       delete the former, go on with the latter
ready    ``N.log.S.compacted``                             go on: give it the name ``N.log``
visible  ``N.log``, ``N.log.S.compacted``                  go on: move the index from S to N, delete S
done     ``N.log``                                         nothing

All names of N are links to one file. Of several sources each has a link of its own; each is finished by
itself, since an entry moves only if the index still says that it lies in that source. S is deleted before
``N.log.S.compacted`` is: in the other order a crash between the two would leave S, of which nothing is
live, as a log that seems full for ever.

Inside: the names. Not inside: the files themselves (``compactor``).

Source: TransactionalEntryLogCompactor.java, DefaultEntryLogger.java; apache/bookkeeper#4804 (decimal names).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

_COMPACTING = re.compile(r"([0-9a-f]{1,8})\.log\.compacting")
_COMPACTED = re.compile(r"([0-9a-f]{1,8})\.log\.([0-9a-f]{1,8})\.compacted")


@attrs.frozen
class Leftovers:
    """Compactions that have begun and not ended."""

    abandoned: tuple[str, ...]  # names of files to delete
    pending: Mapping[int, tuple[int, ...]]  # new log -> its sources, ascending


def compacting_name(target_id: int) -> str:
    """The new log while it is being written."""
    return f"{target_id:x}.log.compacting"


def compacted_name(target_id: int, source_id: int) -> str:
    """The new log once it is whole, as long as the source is not gone."""
    return f"{target_id:x}.log.{source_id:x}.compacted"


def leftovers(names: Iterable[str]) -> Leftovers:
    """What a listing of a ledger directory tells of compactions."""
    abandoned: list[str] = []
    pending: dict[int, list[int]] = {}
    for name in names:
        if _COMPACTING.fullmatch(name):
            abandoned.append(name)
        elif match := _COMPACTED.fullmatch(name):
            pending.setdefault(int(match[1], 16), []).append(int(match[2], 16))
    return Leftovers(
        tuple(sorted(abandoned)), {target: tuple(sorted(pending[target])) for target in sorted(pending)}
    )


def ids_in_name(name: str) -> tuple[int, ...]:
    """All entry-log ids a file's name mentions, in whatever state the file is."""
    if match := _COMPACTED.fullmatch(name):
        return int(match[1], 16), int(match[2], 16)
    match = _COMPACTING.fullmatch(name) or re.fullmatch(r"([0-9a-f]{1,8})\.log", name)
    return (int(match[1], 16),) if match else ()
