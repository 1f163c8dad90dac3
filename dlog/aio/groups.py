"""Consumer groups for asyncio."""

from __future__ import annotations

from dlog.aio.bridge import Bridge
from dlog.aio.face import Face, forwarded, opened
from dlog.groups import member
from dlog.groups.member import GroupBatch
from ledger.runtime.tasks.face import Shown, attribute, shown


class GroupMember(Face[member.GroupMember]):
    """See ``dlog.groups.GroupMember``: an asynchronous iterator of batches. Made by ``join_group``."""

    def __init__(self, bridge: Bridge, inner: member.GroupMember) -> None:
        super().__init__(bridge, inner)
        self._ready: list[GroupBatch] = []  # fetched, and not returned yet

    group: Shown[str] = attribute("group", "The group's name.")
    name: Shown[str] = attribute("name", "The member's name.")
    all_logs: Shown[tuple[str, ...]] = attribute("all_logs", "The logs that the members share.")
    logs: Shown[tuple[str, ...]] = shown(member.GroupMember.logs)

    wait_change = forwarded(member.GroupMember.wait_change)
    commit = forwarded(member.GroupMember.commit)

    def __aiter__(self) -> GroupMember:
        return self

    async def __anext__(self) -> GroupBatch:
        while not self._ready:
            await self._bridge.run(self._fetch_in_trio)
        return self._ready.pop(0)

    async def _fetch_in_trio(self) -> None:
        # Stored here, so that a cancelled call loses no batch.
        self._ready.append(await self._inner.__anext__())


join_group = opened(member.join_group, GroupMember)
