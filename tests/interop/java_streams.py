"""Apache DistributedLog over there, as a test sees it: logs, writers and readers of ``StreamsDriver.java``.

Inside: the calls tests need, in our types (``DLSN``, ``Record``). Not inside: the conversation (``driver``),
processes and class paths.
Always: nothing is retried or corrected here, except that a reader which left a segment unread is followed by
another one (``READ_CANCELLED``); what Java threw comes out as ``DriverError``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from driver import Driver, DriverError

from dlog import DLSN, Record

FIRST = DLSN(1, 0, 0)
CLOSE_TIMEOUT_S = 30.0
READ_CANCELLED = 1002
"""What a reader says that has closed the segment after the one that ended.

Apache's ``ReadAheadEntryReader.onFailure`` names the segment to leave only after it has let others go on: it
may be the next one by then. If that one is being read, the reader ends with this error, one read of many
segments in 10 to 300; if its reading has not begun, all of it is passed over in silence, much more seldom.
Both happen to streams that Java wrote to Java's bookies as well, the second one seen there with pauses added
(``docs/compatibility.md``). Its users open another reader, and so do we.
"""
READERS_MAX = 5
READ_TIMEOUT_S = 20.0

AT_ONCE = {"writerOutputBufferSize": "0", "enableImmediateFlush": "true"}
"""Each write is an entry of its own, durable and visible at once."""
ROLLING = {"logSegmentRollingMinutes": "0", "logSegmentRollingConcurrency": "0", "maxLogSegmentBytes": "1"}
"""A segment is over as soon as its ledger has confirmed bytes; no limit to how often."""


@attrs.frozen
class JavaRecord:
    """What to write: one record, a record set, or an application's control record."""

    txid: int
    payload: bytes = b""
    record_set: tuple[bytes, ...] | None = None
    codec: str = "NONE"
    control: bool = False

    def told(self) -> dict[str, Any]:
        """As the driver is told."""
        if self.record_set is not None:
            return {"txid": self.txid, "set": [each.hex() for each in self.record_set], "codec": self.codec}
        return {"txid": self.txid, "payload": self.payload.hex(), "control": self.control}


@attrs.frozen
class JavaRead:
    """What a reader gave, and the error that ended it, if one did."""

    records: list[Record]
    ended: DriverError | None

    @property
    def ended_itself(self) -> bool:
        """Whether another reader would go on, see ``READ_CANCELLED``."""
        return self.ended is not None and self.ended.code == READ_CANCELLED


class JavaLog:
    """A log, in a namespace object of its own. Made by ``open_java_log``."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver, self._on = driver, name

    @asynccontextmanager
    async def open_writer(self) -> AsyncIterator[JavaWriter]:
        """An asynchronous writer; leaving the block closes it, an error in the block aborts it."""
        writer = await self.start_writer()
        try:
            yield writer
        except BaseException:
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S):
                await writer.abort()
            raise
        await writer.close()

    async def start_writer(self, *, timeout_s: float = 60.0) -> JavaWriter:
        """An asynchronous writer, to be closed or aborted by the caller; waits for the lock."""
        name = self.driver.name("writer")
        last_txid = await self.driver.call("writer", on=self._on, name=name, timeout_s=timeout_s)
        return JavaWriter(self.driver, name, last_txid)

    async def sync_write(self, *steps: JavaRecord | str) -> None:
        """Through a synchronous writer: records, ``flush``, ``commit``, ``seal``, in order; then close it."""
        told = [each if isinstance(each, str) else each.told() for each in steps]
        await self.driver.call("sync-write", on=self._on, steps=told)

    @asynccontextmanager
    async def open_reader(self, start: DLSN | int = FIRST) -> AsyncIterator[JavaReader]:
        """An asynchronous reader, at a position or a transaction id."""
        reader = JavaReader(self.driver, self._on, start)
        await reader.begin()
        try:
            yield reader
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S):
                await reader.end()

    async def read(self, count: int, start: DLSN | int = FIRST, *, up_to: DLSN | None = None) -> list[Record]:
        """So many records by the first asynchronous reader that finds them all, and more up to a position."""

        async def by_another() -> JavaRead:
            async with self.open_reader(start) as reader:
                got = await reader.read_some(count, timeout_s=READ_TIMEOUT_S)
                while up_to is not None and len(got.records) >= count and got.records[-1].dlsn < up_to:
                    got.records.extend(await reader.read(1))
                return got

        return await _first_whole(by_another, count)

    async def read_synchronously(self, count: int, start: DLSN | int = FIRST) -> list[Record]:
        """So many records, and what follows them, by the first synchronous reader that finds them all.

        It may say too early that this is all; then it is asked again.
        """

        async def by_another() -> JavaRead:
            return _read(
                await self.driver.call("read-synchronously", on=self._on, count=count, **_start(start))
            )

        return await _first_whole(by_another, count)

    async def segments(self) -> list[dict[str, Any]]:
        """The segments' metadata as Java understands it."""
        found: list[dict[str, Any]] = await self.driver.call("segments", on=self._on)
        for each in found:
            each["last_dlsn"] = DLSN(*each["last_dlsn"])
            each["min_active_dlsn"] = DLSN(*each["min_active_dlsn"])
        return found

    async def ends(self) -> dict[str, Any]:
        """First and last DLSN and transaction id, record count, whether it is sealed."""
        ends: dict[str, Any] = await self.driver.call("ends", on=self._on)
        return ends | {key: DLSN(*ends[key]) for key in ("first_dlsn", "last_dlsn")}

    async def find_txid(self, txid: int) -> DLSN:
        """Where a reader opened at this transaction id would start."""
        return DLSN(*await self.driver.call("find-txid", on=self._on, txid=txid))

    async def count(self, start: DLSN = FIRST) -> int:
        """How many records there are from a position on."""
        number: int = await self.driver.call("count", on=self._on, dlsn=_numbers(start))
        return number

    async def recover(self) -> None:
        """Have what a dead writer left recovered."""
        await self.driver.call("recover", on=self._on)


class JavaWriter:
    """An asynchronous writer."""

    def __init__(self, driver: Driver, name: str, last_txid: int) -> None:
        self._driver, self.name = driver, name
        self.last_txid = last_txid

    async def write(self, *records: JavaRecord) -> list[DLSN]:
        """Write records one by one, wait for all; the first failure is raised."""
        dlsns = []
        for outcome in await self.outcomes(*records):
            if isinstance(outcome, DriverError):
                raise outcome
            dlsns.append(outcome)
        return dlsns

    async def write_bulk(self, *records: JavaRecord) -> list[DLSN]:
        """Write records as one batch, wait for all; they share entries."""
        answer = await self._driver.call(
            "write-bulk", on=self.name, records=[each.told() for each in records]
        )
        return [DLSN(*each) for each in answer]

    async def outcomes(self, *records: JavaRecord) -> list[DLSN | DriverError]:
        """Write records one by one; for each where it is, or why it is not."""
        answer = await self._driver.call("write", on=self.name, records=[each.told() for each in records])
        return [
            DLSN(*each) if isinstance(each, list) else DriverError("write", {**each, "stack": ""})
            for each in answer
        ]

    async def truncate(self, dlsn: DLSN) -> bool:
        """Give up everything before a position."""
        done: bool = await self._driver.call("truncate", on=self.name, dlsn=_numbers(dlsn))
        return done

    async def seal(self) -> None:
        """Mark the end of the stream."""
        await self._driver.call("seal", on=self.name)

    async def close(self) -> None:
        """Complete the segment and give the lock back."""
        await self._driver.call("writer-close", on=self.name)

    async def abort(self) -> None:
        """Give the lock back and leave the segment in progress."""
        await self._driver.call("writer-abort", on=self.name)


class JavaReader:
    """An asynchronous reader, or several, each going on where the one before it ended itself."""

    def __init__(self, driver: Driver, log: str, start: DLSN | int) -> None:
        self._driver, self._log, self._start = driver, log, start
        self._name: str | None = None
        self._last: DLSN | None = None
        self._repeats = False  # the next record is the last one again

    async def begin(self) -> None:
        """Open the reader, at the last record there was if there was one."""
        name = self._driver.name("reader")
        start = self._start if self._last is None else self._last
        await self._driver.call("reader", on=self._log, name=name, **_start(start))
        self._name, self._repeats = name, self._last is not None

    async def end(self) -> None:
        """Close the reader that is open, if one is."""
        name, self._name = self._name, None
        if name is not None:
            await self._driver.call("reader-close", on=name)

    async def read(self, count: int) -> list[Record]:
        """The next records; an error if so many do not come in time."""
        got = await self.read_some(count, timeout_s=READ_TIMEOUT_S)
        if got.ended is not None:
            raise got.ended
        assert len(got.records) == count, f"of {count} records {len(got.records)} came: {got.records}"
        return got.records

    async def read_some(self, count_max: int, *, timeout_s: float) -> JavaRead:
        """What comes in time, which begins anew with each reader that goes on for another."""
        records: list[Record] = []
        for _ in range(READERS_MAX):
            got = await self._read_by_one(count_max - len(records), timeout_s)
            records += got.records
            if not got.ended_itself:
                break
            await self.end()
            await self.begin()
        return JavaRead(records, got.ended)

    async def _read_by_one(self, count_max: int, timeout_s: float) -> JavaRead:
        answer = await self._driver.call(
            "read",
            on=self._name,
            count=count_max + self._repeats,
            timeout_ms=int(timeout_s * 1000),
            timeout_s=timeout_s + 30,
        )
        got = _read(answer)
        if self._repeats and got.records:
            assert got.records[0].dlsn == self._last
            self._repeats = False
            del got.records[0]
        if got.records:
            self._last = got.records[-1].dlsn
        return got


@asynccontextmanager
async def open_java_log(
    driver: Driver, uri: str, log: str, *, settings: Mapping[str, str] | None = None, client_id: str = "java"
) -> AsyncIterator[JavaLog]:
    """A log, created if missing, in a namespace object of its own: it remembers nothing of another's."""
    namespace, name = driver.name("namespace"), driver.name("log")
    await driver.call(
        "namespace", name=namespace, uri=uri, client_id=client_id, settings=dict(settings or {})
    )
    try:
        await driver.call("log", namespace=namespace, log=log, name=name)
        yield JavaLog(driver, name)
    finally:
        # Apache's code takes seconds for it, while a long poll is on its way; nobody needs to wait.
        driver.begin("namespace-close", on=namespace)


def numbered(count: int, first: int = 1) -> list[JavaRecord]:
    """Records that say what they are, transaction ids from ``first`` on."""
    return [JavaRecord(txid, b"java %d" % txid) for txid in range(first, first + count)]


async def _first_whole(by_another: Callable[[], Awaitable[JavaRead]], count: int) -> list[Record]:
    """What the first reader gave that gave at least so many and did not end, of at most ``READERS_MAX``."""
    for _ in range(READERS_MAX):
        got = await by_another()
        was_whole = got.ended is None and len(got.records) >= count
        if was_whole or (got.ended is not None and not got.ended_itself):
            break
    if got.ended is not None:
        raise got.ended
    return got.records


def _start(start: DLSN | int) -> dict[str, Any]:
    return {"txid": start} if isinstance(start, int) else {"dlsn": _numbers(start)}


def _numbers(dlsn: DLSN) -> Sequence[int]:
    return [dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id]


def _read(answer: dict[str, Any]) -> JavaRead:
    records = [
        Record(DLSN(*each["dlsn"]), each["txid"], bytes.fromhex(each["payload"]), each["sequence_id"])
        for each in answer["records"]
    ]
    ended = answer.get("ended")
    return JavaRead(records, None if ended is None else DriverError("read", {**ended, "stack": ""}))
