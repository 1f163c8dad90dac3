"""Consumer groups for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dlog.aio.bridge import Bridge, Held, passed
from dlog.aio.namespace import Namespace, closing
from dlog.groups import member
from dlog.groups.member import GroupBatch, GroupConfig
from dlog.groups.member import join_group as join_in_trio
from dlog.read.positioning import EARLIEST, Start


class GroupMember:
    """See ``dlog.groups.GroupMember``: an asynchronous iterator of batches. Made by ``join_group``."""

    def __init__(self, bridge: Bridge, inner: member.GroupMember) -> None:
        self._bridge, self._inner = bridge, inner
        self.group, self.name, self.all_logs = inner.group, inner.name, inner.all_logs

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._inner)[1:]}"

    @property
    def logs(self) -> tuple[str, ...]:
        """See ``dlog.groups.GroupMember.logs``."""
        return self._inner.logs

    def __aiter__(self) -> GroupMember:
        return self

    async def __anext__(self) -> GroupBatch:
        # The batch stays in the member until it is taken here, so a cancelled call loses none.
        while (batch := self._inner._take()) is None:
            await self._bridge.run(self._inner._fetch)
        return batch

    wait_change = passed(member.GroupMember.wait_change)
    commit = passed(member.GroupMember.commit)


@asynccontextmanager
async def join_group(
    namespace: Namespace,
    group: str,
    logs: Sequence[str],
    *,
    member: str | None = None,
    start: Start = EARLIEST,
    config: GroupConfig | None = None,
    gaps: bool = False,
) -> AsyncIterator[GroupMember]:
    """See ``dlog.groups.join_group``."""
    manager = join_in_trio(
        namespace._inner, group, logs, member=member, start=start, config=config, gaps=gaps
    )
    held = Held(namespace._bridge, manager)
    joined = GroupMember(namespace._bridge, await held.open())
    async with closing(held):
        yield joined
