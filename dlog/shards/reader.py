"""Reading a sharded log: its shards merged, in turns.

Inside: turns, the positions of what was returned, commits of each shard. Not inside: reading a shard and its
bounds (``LogReader``).
Always: the order inside each shard is kept, gaps included; each record is returned once, to exactly one
caller; a cancelled call loses no record and no gap; a shard that fails ends the whole reader.

One task for each shard offers a turn of records and waits until it is taken. Offers are taken in the order in
which they were made, so a busy shard cannot starve the others.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from threading import get_ident
from typing import Literal, overload

import attrs
import trio

from dlog.contained import contained_error
from dlog.errors import DLogError, NamespaceClosedError
from dlog.format.record import Record
from dlog.namespace_handle import Namespace
from dlog.read.gaps import Gap, Missing, check_gaps
from dlog.read.log_reader import BATCH_RECORDS, LogReader, end_of, read_turn
from dlog.read.positioning import EARLIEST, Where
from dlog.read.record_batch import RecordBatch
from dlog.shards.creation import shard_names
from ledger.pickling import ProcessBound
from ledger.runtime.tasks.service_tasks import open_service_tasks
from ledger.runtime.tasks.trio_only import check_thread
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN
from namespace.log_name import check_log_name

TURN_RECORDS_MAX = 256  # of one shard, before the next one; a turn of columns is one read of its entries
NO_SHARD = -1  # of an empty batch


@attrs.frozen
class Turn:
    """The rest of a shard's turn."""

    shard: int
    records: Sequence[Record]
    missing: Missing | None


_Turn = tuple[int, Sequence[Record] | Missing | DLogError]


class ShardedReader(ProcessBound):
    """An async iterator of (shard, record). Made by ``open_sharded_reader``.

    It ends when each shard has ended: at its ``end``, at its present end with ``follow=False``, or sealed. It
    raises as ``LogReader.read_batch`` when a shard fails, after the records before. Then each later call
    raises the same error, and ``positions`` stay valid. Taking a record that is decoded already is no
    checkpoint.
    """

    def __init__(self, name: str, readers: Mapping[int, LogReader], *, gaps: bool = False) -> None:
        self.name = name
        self._readers, self.gaps, self._thread = readers, gaps, get_ident()
        self._offers, self._turns = trio.open_memory_channel[_Turn](0)
        self._refilling = trio.Lock()
        self._is_columnar = False  # the last call asked for columns
        self._starts = {shard: reader.position for shard, reader in readers.items()}
        self._behind: dict[int, DLSN] = {}  # by shard, after what was returned of the turns before this one
        self._gaps: dict[int, Gap] = {}  # the last one returned, by shard
        self._shard = NO_SHARD  # of this turn
        self._records: Sequence[Record] = []
        self._index = 0  # of the first record that is not returned yet
        self._missing: Missing | None = None  # this turn is a gap that is not returned yet
        self._error: DLogError | None = None
        self._stop: Callable[[], None]

    def __repr__(self) -> str:
        state = "open" if self._error is None else "ended by an error or closed"
        return f"<ShardedReader of {self.name!r}: {len(self._readers)} shards, {state}>"

    def __aiter__(self) -> ShardedReader:
        return self

    async def __anext__(self) -> tuple[int, Record]:
        while self._index == len(self._records):
            if not await self.refill(columns=False):
                raise StopAsyncIteration
        index = self._index
        self._index = index + 1
        return self._shard, self._records[index]

    async def read_batch(
        self, records_max: int, *, wait_s: float | None = None
    ) -> tuple[int, RecordBatch] | None:
        """Return a shard and its next records, at most ``records_max``; see ``LogReader.read_batch``.

        If no record of any shard came within ``wait_s``, the batch is empty, and its shard is ``NO_SHARD``.
        None means the end of all shards. A cancelled call loses no record.

        Raises:
            The errors of ``LogReader.read_batch``, for one of the shards.
        """
        self.check_max(records_max)
        while True:
            ready = await self.refill(columns=True, wait_s=wait_s)
            if not ready:
                return (NO_SHARD, RecordBatch()) if ready is None else None
            if (batch := self.take_batch(records_max)) is not None:
                return batch

    async def read_batch_or_gap(
        self, records_max: int, *, wait_s: float | None = None
    ) -> tuple[int, RecordBatch | Gap] | None:
        """As ``read_batch``, but data of a shard that are missing for good are returned as a ``Gap``.

        The shard then continues after the gap; see ``LogReader.read_batch_or_gap``.

        Raises:
            ValueError: The reader was opened without ``gaps=True``.
        """
        self.check_max(records_max, gaps=True)
        while True:
            ready = await self.refill(columns=True, wait_s=wait_s, gaps=True)
            if not ready:
                return (NO_SHARD, RecordBatch()) if ready is None else None
            if (taken := self.take_gap() or self.take_batch(records_max)) is not None:
                return taken

    @overload
    def batches(
        self, records_max: int = ..., *, gaps: Literal[False] = ...
    ) -> AsyncIterator[tuple[int, RecordBatch]]: ...
    @overload
    def batches(
        self, records_max: int = ..., *, gaps: Literal[True]
    ) -> AsyncIterator[tuple[int, RecordBatch | Gap]]: ...
    async def batches(
        self, records_max: int = BATCH_RECORDS, *, gaps: bool = False
    ) -> AsyncIterator[tuple[int, RecordBatch | Gap]]:
        """Iterate over shards and batches of their records, each with one record or more, until the end.

        It raises as ``read_batch``; with ``gaps=True`` as ``read_batch_or_gap``, whose gaps it returns.
        """
        while True:
            taken = await (self.read_batch_or_gap(records_max) if gaps else self.read_batch(records_max))
            if taken is None:
                return
            yield taken

    @property
    def ends(self) -> dict[int, DLSN]:
        """By shard, the last position that is read; absent if ``end`` is no position and not LATEST.

        Another reader with this ``end`` gets the same records of each shard, until they are truncated.
        """
        ends = {shard: end_of(reader) for shard, reader in self._readers.items()}
        return {shard: end for shard, end in ends.items() if isinstance(end, DLSN)}

    @property
    def positions(self) -> dict[int, DLSN]:
        """By shard, where a new reader continues: ``open_sharded_reader(..., start=positions)``.

        A shard is absent if its first record is the next one.
        """
        positions = {shard: start for shard, start in self._starts.items() if start is not None}
        return {**positions, **self.returned}

    @property
    def returned(self) -> dict[int, DLSN]:
        """By shard, the position after what was returned; a shard of which nothing was returned is absent."""
        if not self._index:
            return dict(self._behind)
        return {**self._behind, self._shard: self._records[self._index - 1].dlsn.next_slot()}

    async def commit(self) -> dict[int, Cursor]:
        """Move the cursor of each shard after the last record returned; return the cursors by shard.

        A shard of which nothing was returned keeps its cursor. The shards are committed one after the other:
        if the call is cancelled or fails, some may be committed. Call it again.

        Raises:
            ValueError: The reader was opened without a cursor.
            CursorConflictError: Another reader has moved the cursor of a shard.
            LogNotFoundError, LogUnavailableError, AccessDeniedError
        """
        return await self.commit_to(self.returned)

    async def commit_to(self, positions: Mapping[int, DLSN]) -> dict[int, Cursor]:
        """Like ``commit``, by the positions after what was consumed, such as earlier ``positions``.

        Raises:
            ValueError: A shard was not read up to its position yet, or the reader has no cursor.
            The errors of ``commit``.
        """
        check_returned(self.name, positions, self.positions)
        cursors = {}
        for shard, position in positions.items():
            cursor = await self._readers[shard].commit_to(position)
            assert cursor is not None  # opened with a cursor
            cursors[shard] = cursor
        return cursors

    async def commit_shard(self, shard: int, last: DLSN) -> Cursor:
        """Move the cursor of one shard after a record or gap that was returned; see ``LogReader.commit``.

        Raises:
            ValueError: The record was not returned yet, or the reader was opened without a cursor.
            The errors of ``LogReader.commit``.
        """
        position = position_behind(self.name, shard, last, self.returned, self._gaps)
        return (await self.commit_to({shard: position}))[shard]

    # For the faces without trio, too. They take what is there in one step, so that a cancelled or interrupted
    # call loses nothing.

    def check_max(self, records_max: int, *, gaps: bool = False) -> None:
        """Raise ValueError for a number of records, or for gaps, that the reader refuses."""
        if records_max < 1:
            raise ValueError(f"records_max={records_max}: at least 1")
        if gaps:
            check_gaps(f"sharded log {self.name!r}", self.gaps)

    def take_record(self) -> tuple[int, Record] | None:
        """The next record of this turn; None if there is none."""
        index = self._index
        if index == len(self._records):
            return None
        self._index = index + 1
        return self._shard, self._records[index]

    def take_rest(self) -> Turn:
        """All that is left of this turn."""
        shard, missing = self._shard, self._missing
        if missing is not None:
            self.take_gap()
        return Turn(shard, self._take_records(BATCH_RECORDS), missing)

    def take_batch(self, records_max: int) -> tuple[int, RecordBatch] | None:
        """The next records of this turn; None if there are none."""
        records = self._take_records(records_max)
        return (self._shard, RecordBatch.of(records)) if records else None

    def _take_records(self, records_max: int) -> Sequence[Record]:
        records = self._records[self._index : self._index + records_max]
        self._index += len(records)
        return records

    def take_gap(self) -> tuple[int, Gap] | None:
        """The gap that this turn is; None if it is none."""
        if self._missing is None:
            return None
        gap, self._missing = self._missing.gap, None
        self._gaps[self._shard], self._behind[self._shard] = gap, gap.resume
        return self._shard, gap

    async def refill(self, *, columns: bool, wait_s: float | None = None, gaps: bool = False) -> bool | None:
        """Begin the next turn if this one is over; False at the end of all shards, None if none came in time.

        Args:
            gaps: A turn may be a gap; False: raise its error, at each call.
        """
        check_thread(self._thread, f"reader of the sharded log {self.name!r}")
        self._is_columnar = columns
        await trio.lowlevel.checkpoint()
        ready = None if self._refilling.locked() else self._look()  # also if there is no time to wait
        if ready is None:
            with trio.move_on_after(math.inf if wait_s is None else wait_s):
                async with self._refilling:
                    ready = self._look()
                    if ready is None:
                        ready = self._begin(await self._next_turn())
        if self._missing is not None and not gaps:
            raise self._missing.error
        return ready

    def _look(self) -> bool | None:
        """True if something is left of this turn, or the next one is offered already; False at the end."""
        if self._index < len(self._records) or self._missing is not None:
            return True
        if self._error is not None:
            raise self._error
        try:
            turn = self._turns.receive_nowait()
        except trio.WouldBlock:
            return None
        except trio.EndOfChannel:
            return False
        return self._begin(turn)

    async def _next_turn(self) -> _Turn | None:
        try:
            return await self._turns.receive()
        except trio.EndOfChannel:
            if self._error is not None:  # failed or closed: its tasks have ended before their shards
                raise self._error from None
            return None

    def _begin(self, turn: _Turn | None) -> bool:
        if turn is None:
            return False
        shard, content = turn
        if isinstance(content, DLogError):
            self._error = content
            self._stop()
            raise content
        self._end_turn()
        self._shard = shard
        if isinstance(content, Missing):
            self._missing = content
        else:
            self._records = content
        return True

    def _end_turn(self) -> None:
        self._behind = self.returned
        self._records, self._index = [], 0

    # For this module only.

    def offers(self) -> list[tuple[int, trio.MemorySendChannel[_Turn]]]:
        """One end for each shard. Iteration ends when all of them are closed."""
        with self._offers:
            return [(shard, self._offers.clone()) for shard in self._readers]

    async def offer(self, shard: int, offers: trio.MemorySendChannel[_Turn]) -> None:
        """Offer the records of a shard, a turn at a time, until its end."""
        with offers:
            try:
                while (turn := await self._read_turn(self._readers[shard])) is not None:
                    await offers.send((shard, turn))
            except DLogError as exc:
                await offers.send((shard, exc))

    async def _read_turn(self, reader: LogReader) -> Sequence[Record] | Missing | None:
        columns = self._is_columnar
        count = BATCH_RECORDS if columns else TURN_RECORDS_MAX
        try:
            return await read_turn(reader, count, columns=columns, gaps=self.gaps)
        except DLogError:
            raise
        except Exception as exc:  # ends this reader, not the block that it is open in
            raise contained_error("reader of a shard", self.name, exc) from exc

    def close(self) -> None:
        """Refuse every later call."""
        if self._error is None:
            self._error = NamespaceClosedError(
                f"reader of sharded log {self.name!r}: it was closed; open another one"
            )
        self._end_turn()
        self._missing = None


def check_returned(name: str, positions: Mapping[int, DLSN], here: Mapping[int, DLSN]) -> None:
    """Raise ValueError if the reader, whose positions are ``here``, has not come to one of these yet.

    The reader of a shard is ahead of the merged one, so it cannot check this.
    """
    for shard, position in positions.items():
        if position > here.get(shard, DLSN(0, 0, 0)):
            raise ValueError(
                f"sharded log {name!r}: shard {shard} was not returned up to {position} yet, so it cannot be"
                " committed"
            )


def position_behind(
    name: str, shard: int, last: DLSN, returned: Mapping[int, DLSN], gaps: Mapping[int, Gap]
) -> DLSN:
    """Where reading a shard continues after a record, or after the last gap that was returned.

    Raises:
        ValueError: The record was not returned yet.
    """
    behind = returned.get(shard)
    if behind is None or last >= behind:
        raise ValueError(
            f"sharded log {name!r}: {last} of shard {shard} was not returned yet, so it cannot be committed"
        )
    gap = gaps.get(shard)
    return gap.resume if gap is not None and last == gap.last else last.next_slot()


@asynccontextmanager
async def open_sharded_reader(
    namespace: Namespace,
    name: str,
    *,
    start: Where | Mapping[int, Where] = EARLIEST,
    end: Where | Mapping[int, Where] | None = None,
    follow: bool = True,
    cursor: str | None = None,
    shards: Iterable[int] | None = None,
    gaps: bool = False,
) -> AsyncIterator[ShardedReader]:
    """Read the shards of a sharded log, merged, for the duration of an ``async with``.

    Each shard has its own read-ahead of ``ReaderConfig.read_bytes_max``.

    Args:
        start: For all shards, or by shard; EARLIEST for a shard that the mapping lacks. See
            ``Namespace.open_reader``.
        end: The last record to read, inclusive: for all shards, or by shard; no end for a shard that the
            mapping lacks. A transaction id or a moment ends each shard before its first record with a greater
            id. LATEST ends each shard after its last record that is visible when it is opened here. Between
            two such bounds every reader gets the same records of each shard; see ``ShardedReader.ends``.
        follow: Wait for more records at the end of the shards; False to stop there.
        cursor: The name of a cursor in each shard. A shard in which it was committed starts at its position,
            the others at ``start``. ``ShardedReader.commit`` moves it.
        shards: Read only these shards.
        gaps: Open it also if data are missing for good. ``batches`` and ``read_batch_or_gap`` then return a
            ``Gap`` with its shard; the other calls raise as ever.

    Raises:
        NotShardedError: There is no sharded log with this name.
        ShardsMissingError: Its creation was interrupted, or shards of it were deleted.
        ValueError: There is no such shard, or ``end`` is EARLIEST.
        The errors of ``Namespace.open_reader``.
    """
    names = await shard_names(namespace, name)
    starts = start if isinstance(start, Mapping) else dict.fromkeys(range(len(names)), start)
    ends = end if isinstance(end, Mapping) else dict.fromkeys(range(len(names)), end)
    chosen = range(len(names)) if shards is None else sorted(set(shards))
    for shard in (*chosen, *starts, *ends):
        if not 0 <= shard < len(names):
            raise ValueError(f"sharded log {name!r}: shard {shard}; it has 0 to {len(names) - 1}")
    async with AsyncExitStack() as stack:
        readers = {
            shard: await stack.enter_async_context(
                namespace.open_reader(
                    names[shard],
                    start=starts.get(shard, EARLIEST),
                    end=ends.get(shard),
                    follow=follow,
                    cursor=cursor,
                    gaps=gaps,
                )
            )
            for shard in chosen
        }
        reader = ShardedReader(check_log_name(name), readers, gaps=gaps)
        async with open_service_tasks() as tasks:
            reader._stop = tasks.cancel
            for shard, offers in reader.offers():
                tasks.start_soon(reader.offer, shard, offers)
            try:
                yield reader
            finally:
                reader.close()
