"""Consumer groups without ``async``."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import Any

import trio

from dlog.groups import member
from dlog.groups.member import GroupBatch
from ledger.runtime.tasks.blocking_face import HeldFace, forwarded, opened
from ledger.runtime.tasks.face import Shown, attribute, shown


class GroupMember(HeldFace[member.GroupMember]):
    """See ``dlog.groups.GroupMember``: an iterator of batches. Made by ``join_group``.

    Closed by ``close`` or the end of a ``with`` block. Then a thread that waits for a batch gets
    NamespaceClosedError.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        # The batch that is fetched and not returned yet. Threads and interrupts cannot divide a step of a
        # list's iterator.
        self._ready: Iterator[GroupBatch] = iter([])
        self._fetching = trio.Lock()

    group: Shown[str] = attribute("group", "The group's name.")
    name: Shown[str] = attribute("name", "The member's name.")
    all_logs: Shown[tuple[str, ...]] = attribute("all_logs", "The logs that the members share.")
    logs: Shown[tuple[str, ...]] = shown(member.GroupMember.logs)

    wait_change = forwarded(member.GroupMember.wait_change)
    commit = forwarded(member.GroupMember.commit)

    def __iter__(self) -> Iterator[GroupBatch]:
        return self

    def __next__(self) -> GroupBatch:
        while True:
            for batch in self._ready:
                return batch
            self._loop.run(self._fetch)

    async def _fetch(self) -> None:
        """In the loop: store the next batch here, so that a call that is interrupted loses none."""
        async with self._fetching:
            if not length_hint(self._ready):
                self._ready = iter([await self._inner.__anext__()])


join_group = opened(member.join_group, GroupMember)
