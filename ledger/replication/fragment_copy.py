"""Copying the entries of one fragment to new bookies, or to a member that lacks them.

Inside: reading from the other replicas, recovery adds, the limit of bytes per second. Not inside: which
fragments are copied and where to (``ledger_restorer``), the metadata afterwards (likewise).
Always: only verified bytes are copied, and they stay the same bytes; the copy has succeeded only when each
new bookie acknowledged each of its entries; the adds have the recovery flag, so a fenced ledger takes them.

Source: LedgerFragmentReplicator.java; docs/protocol.md 7.8; docs/autorecovery.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing

import trio

from ledger.catalog.availability import Availability
from ledger.catalog.catalog import Versioned
from ledger.codes import Code
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import LedgerReadError
from ledger.fragments.entry_lists import lacked_ranges
from ledger.fragments.fragments import Fragment
from ledger.read.replica_copy import ReplicaCopy
from ledger.read.replica_reads import SINGLE_READS_MAX
from ledger.replication.config import ReplicationConfig
from ledger.runtime.tasks.task_errors import for_each
from ledger.transport.bookie_requests import refusal_of
from ledger.wire.messages import AddRequest


class CopyRate:
    """The limit of one worker: bytes per second over all its copies."""

    def __init__(self, bytes_per_s: int) -> None:
        """``bytes_per_s``: 0 for no limit."""
        self._bytes_per_s, self._allowed_at = bytes_per_s, 0.0

    async def wait(self, size_bytes: int) -> None:
        """Return when this many more bytes may be copied."""
        if self._bytes_per_s:
            start = max(self._allowed_at, trio.current_time())
            self._allowed_at = start + size_bytes / self._bytes_per_s
            await trio.sleep_until(start)


class FragmentCopy:
    """The copies of one ledger's fragments."""

    def __init__(
        self, context: ClientContext, current: Versioned, config: ReplicationConfig, rate: CopyRate
    ) -> None:
        metadata = current.metadata
        self.entries_copied = 0
        self.bytes_copied = 0
        self._context, self._config, self._rate = context, config, rate
        self._ledger_id = current.ledger_id
        self._batch_entries = config.batch_entries
        self._batch_bytes = min(config.batch_bytes_min, config.rate_bytes_max or config.batch_bytes_min)
        self._source = ReplicaCopy(current, context, None)
        self._master_key = EntryCodec(metadata.digest_type, metadata.password or b"").master_key

    async def check_readable(self, entry_id: int) -> None:
        """Raise unless the entry can be read: an earlier copy failed at it."""
        await self._source.read(entry_id, entry_id, self._config.batch_bytes_max)

    async def copy(
        self, fragment: Fragment, replacements: Mapping[int, str], is_needless: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Copy the entries that belong on the bookies at these indices to their replacements.

        If cancelled, or if it raises, some entries may be stored there; they do no harm. So it is if
        ``is_needless``, which is asked before each batch, ends the copy; then False is returned.

        Raises:
            LedgerReadError: No replica returned an entry; the error names it.
            BookieError: A replacement failed, or refused an entry.
        """
        return await self._copy_ranges(
            fragment, replacements, _in_turn(fragment.ranges(replacements)), is_needless
        )

    async def fill(self, fragment: Fragment, index: int, held: Availability | None) -> None:
        """Copy the entries that the bookie at this index lacks into it; all of its entries without a list.

        The metadata name it already. If cancelled, or if it raises, some entries are stored there.

        Raises: as ``copy``.
        """
        target = {index: fragment.bookies[index]}
        await self._copy_ranges(fragment, target, lacked_ranges(fragment, index, held), _never)

    async def _copy_ranges(
        self,
        fragment: Fragment,
        targets: Mapping[int, str],
        ranges: AsyncGenerator[tuple[int, int], None],
        is_needless: Callable[[], Awaitable[bool]],
    ) -> bool:
        """Copy short ranges together, as many as fill a batch; False if any of them was ended."""
        group: list[tuple[int, int]] = []
        is_ended = False

        async def copy(one: tuple[int, int]) -> None:
            nonlocal is_ended
            # Not `is_ended |= not await …`: that reads the flag before the copies beside this one set it.
            if not await self._copy_range(fragment, targets, *one, is_needless):
                is_ended = True

        async with aclosing(ranges):
            async for one in ranges:
                group.append(one)
                # Each range is read by itself, so no bookie limits the bytes of the whole group.
                wanted = min(self._batch_entries, SINGLE_READS_MAX)
                if sum(last - first + 1 for first, last in group) >= wanted:
                    await for_each(copy, group)
                    group = []
                    if is_ended:
                        return False
        await for_each(copy, group)
        return not is_ended

    async def _copy_range(
        self,
        fragment: Fragment,
        targets: Mapping[int, str],
        first: int,
        last: int,
        is_needless: Callable[[], Awaitable[bool]],
    ) -> bool:
        while first <= last:
            if await is_needless():
                return False
            stop = min(last, first + self._batch_entries - 1)
            bodies = await self._source.read(first, stop, self._config.batch_bytes_max)
            size_bytes = sum(map(len, bodies))
            await self._rate.wait(size_bytes)
            await self._store(fragment, targets, first, bodies)
            first += len(bodies)
            # A batch costs a read and a sync whatever its size, so small entries are taken together.
            fitting = self._batch_bytes * len(bodies) // size_bytes
            self._batch_entries = max(self._config.batch_entries, fitting)
        return True

    async def _store(
        self, fragment: Fragment, replacements: Mapping[int, str], first: int, bodies: list[bytes]
    ) -> None:
        adds = [
            (bookie, entry_id, body)
            for entry_id, body in enumerate(bodies, first)
            for index, bookie in replacements.items()
            if fragment.holds(index, entry_id)
        ]
        await for_each(lambda add: self._add(*add), adds)

    async def _add(self, bookie: str, entry_id: int, body: bytes) -> None:
        request = AddRequest(self._ledger_id, entry_id, self._master_key, body, recovery=True)
        config = self._context.config
        deadline = trio.current_time() + config.overload_timeout_s
        pause_s = config.retry_backoff_min_s
        while True:
            reply = await self._context.transport.call(bookie, request, high_priority=True)
            if reply.code is Code.OK:
                self.entries_copied += 1
                self.bytes_copied += len(body)
                return
            if reply.code is not Code.TOO_MANY_REQUESTS or trio.current_time() + pause_s > deadline:
                raise refusal_of(reply, bookie, self._ledger_id, entry_id)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, config.retry_backoff_max_s)


async def _in_turn(ranges: Iterable[tuple[int, int]]) -> AsyncGenerator[tuple[int, int], None]:
    for one in ranges:
        await trio.lowlevel.checkpoint()
        yield one


async def _never() -> bool:
    return False


def unreadable_entry(error: Exception) -> int | None:
    """The entry that no replica returned; None if the error has another cause."""
    return error.entry_id if isinstance(error, LedgerReadError) else None
