"""Consumer groups without ``async``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from operator import length_hint
from types import TracebackType

import trio

from dlog.blocking.closing import close_after_block
from dlog.blocking.namespace import Namespace
from dlog.groups import member as groups
from dlog.groups.member import GroupBatch, GroupConfig
from dlog.read.positioning import EARLIEST, Start
from ledger.runtime.tasks.loop_thread import Held, LoopThread


class GroupMember:
    """See ``dlog.groups.GroupMember``: an iterator of batches. Made by ``join_group``.

    Closed by ``close`` or the end of a ``with`` block. Then a thread that waits for a batch gets
    NamespaceClosedError.
    """

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[groups.GroupMember]) -> None:
        self._loop = loop
        self._held = Held(loop, manager)
        self._member = self._held.value
        self.group, self.name, self.all_logs = (
            self._member.group,
            self._member.name,
            self._member.all_logs,
        )
        # The batch that is fetched and not returned yet. Threads and interrupts cannot divide a step of a
        # list's iterator.
        self._ready: Iterator[GroupBatch] = iter([])
        self._fetching = trio.Lock()

    def __repr__(self) -> str:
        return f"<blocking {repr(self._member)[1:]}"

    @property
    def logs(self) -> tuple[str, ...]:
        """See ``dlog.groups.GroupMember.logs``."""
        return self._member.logs

    def wait_change(self) -> None:
        """See ``dlog.groups.GroupMember.wait_change``."""
        self._loop.run(self._member.wait_change)

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
                self._ready = iter([await self._member.__anext__()])

    def commit(self, batch: GroupBatch) -> None:
        """See ``dlog.groups.GroupMember.commit``."""
        self._loop.run(self._member.commit, batch)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        self._held.release()

    def __enter__(self) -> GroupMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after_block(self.close, exc)


def join_group(
    namespace: Namespace,
    group: str,
    logs: Sequence[str],
    *,
    member: str | None = None,
    start: Start = EARLIEST,
    config: GroupConfig | None = None,
    gaps: bool = False,
) -> GroupMember:
    """See ``dlog.groups.join_group``. Close the result, or use it in a ``with`` statement."""
    manager = groups.join_group(
        namespace._namespace, group, logs, member=member, start=start, config=config, gaps=gaps
    )
    joined = GroupMember(namespace._loop, manager)
    namespace._open.add(joined)
    return joined
