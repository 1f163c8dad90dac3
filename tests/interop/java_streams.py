"""Apache DistributedLog in a driver: logs, writers and readers of ``StreamsDriver.java``.

Inside: the calls that tests need, in our types (``DLSN``, ``Record``). Not inside: the conversation
(``driver``), processes and class paths.
Always: no call is retried or corrected, with one exception: if a reader left records unread, another reader
follows it (``READ_CANCELLED``). An exception of Java is raised as ``DriverError``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from dlog import DLSN, Record
from tests.interop.driver import REPLY_TIMEOUT_S, Driver, DriverError

FIRST = DLSN(1, 0, 0)
CLOSE_TIMEOUT_S = 30.0
READ_CANCELLED = 1002
"""The code with which a reader fails after it closed the wrong segment: the one after the finished one.

Apache's ``ReadAheadEntryReader.onFailure`` lets other threads continue before it chooses the segment to
close. By then the current segment may be the next one. If the reader has begun to read that segment, it fails
with this error: one read of many segments in 10 to 300. If it has not begun, it skips the whole segment
without an error; this is much rarer. Both also happen to streams that Java wrote to Java's bookies; the
second was seen there with pauses added (``docs/compatibility.md``). Users of Java open another reader, and so
do the tests.
"""
END_OF_STREAM = 512
SYNCHRONOUS_READ_S = 45.0  # the driver itself gives up after 20 s, if the reader lets it
READERS_MAX = 5
READ_TIMEOUT_S = 20.0

AT_ONCE = {"writerOutputBufferSize": "0", "enableImmediateFlush": "true"}
"""Each write is an entry of its own, durable and visible at once."""
ROLLING = {"logSegmentRollingMinutes": "0", "logSegmentRollingConcurrency": "0", "maxLogSegmentBytes": "1"}
"""A segment ends as soon as its ledger has confirmed bytes, any number of times."""


@attrs.frozen
class JavaRecord:
    """An item to write: one record, a record set, or an application's control record."""

    txid: int
    payload: bytes = b""
    record_set: tuple[bytes, ...] | None = None
    codec: str = "NONE"
    control: bool = False

    def as_argument(self) -> dict[str, Any]:
        """The item as an argument of a request."""
        if self.record_set is not None:
            return {"txid": self.txid, "set": [each.hex() for each in self.record_set], "codec": self.codec}
        return {"txid": self.txid, "payload": self.payload.hex(), "control": self.control}


@attrs.frozen
class JavaRead:
    """The records that a reader returned, and the error that ended it, if any."""

    records: list[Record]
    ended: DriverError | None

    @property
    def was_cancelled(self) -> bool:
        """True if another reader must continue, see ``READ_CANCELLED``."""
        return self.ended is not None and self.ended.code == READ_CANCELLED


class JavaLog:
    """A log, in a namespace object of its own. Made by ``open_java_log``."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver, self._on = driver, name

    @asynccontextmanager
    async def open_writer(self) -> AsyncIterator[JavaWriter]:
        """Open an asynchronous writer. Leaving the block closes it; an error in the block aborts it."""
        writer = await self.start_writer()
        try:
            yield writer
        except BaseException:
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S):
                await writer.abort()
            raise
        await writer.close()

    async def start_writer(self, *, timeout_s: float = 60.0) -> JavaWriter:
        """Wait for the lock and open an asynchronous writer, which the caller closes or aborts."""
        name = self.driver.name("writer")
        last_txid = await self.driver.call("writer", on=self._on, name=name, timeout_s=timeout_s)
        return JavaWriter(self.driver, name, last_txid)

    async def sync_write(self, *steps: JavaRecord | str) -> None:
        """Perform steps by a synchronous writer, then close it: records, ``flush``, ``commit``, ``seal``."""
        arguments = [each if isinstance(each, str) else each.as_argument() for each in steps]
        await self.driver.call("sync-write", on=self._on, steps=arguments)

    @asynccontextmanager
    async def open_reader(self, start: DLSN | int = FIRST) -> AsyncIterator[JavaReader]:
        """Open an asynchronous reader at a position or a transaction id."""
        reader = JavaReader(self.driver, self._on, start)
        await reader.begin()
        try:
            yield reader
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S):
                await reader.end()

    async def read(self, count: int, start: DLSN | int = FIRST, *, up_to: DLSN | None = None) -> list[Record]:
        """Read ``count`` records, and more up to ``up_to``, by the first asynchronous reader with them."""

        async def read_once() -> JavaRead:
            async with self.open_reader(start) as reader:
                got = await reader.read_some(count, timeout_s=READ_TIMEOUT_S)
                while up_to is not None and len(got.records) >= count and got.records[-1].dlsn < up_to:
                    got.records.extend(await reader.read(1))
                return got

        return await _first_whole(read_once, count)

    async def read_to_end(self, count: int, start: DLSN | int = FIRST) -> list[Record]:
        """Read a sealed log by the first asynchronous reader that ends behind ``count`` records.

        Once, one returned only the first records of a completed segment, which another one had just read.
        """

        async def read_once() -> JavaRead:
            async with self.open_reader(start) as reader:
                return await reader.read_some(count + 1, timeout_s=READ_TIMEOUT_S)

        return await _first_whole(read_once, count, end=END_OF_STREAM)

    async def read_synchronously(self, count: int, start: DLSN | int = FIRST) -> list[Record]:
        """Read ``count`` records, and all after them, by the first synchronous reader that finds them.

        A reader may report the end of the log too early; the driver then calls it again. A reader may also
        wait in one call for ever (``ReadAheadEntryReader.getNextReadAheadEntry``): then the next one reads.
        """

        async def read_once() -> JavaRead:
            with trio.move_on_after(SYNCHRONOUS_READ_S):
                return _parse_read(
                    await self.driver.call("read-synchronously", on=self._on, count=count, **_start(start))
                )
            return JavaRead([], None)

        return await _first_whole(read_once, count)

    async def segments(self) -> list[dict[str, Any]]:
        """The metadata of the segments as Java parses them."""
        found: list[dict[str, Any]] = await self.driver.call("segments", on=self._on)
        for each in found:
            each["last_dlsn"] = DLSN(*each["last_dlsn"])
            each["min_active_dlsn"] = DLSN(*each["min_active_dlsn"])
        return found

    async def ends(self) -> dict[str, Any]:
        """The first and last DLSN and transaction id, the record count, and whether the log is sealed."""
        ends: dict[str, Any] = await self.driver.call("ends", on=self._on)
        return ends | {key: DLSN(*ends[key]) for key in ("first_dlsn", "last_dlsn")}

    async def find_txid(self, txid: int) -> DLSN:
        """The position at which a reader opened at this transaction id starts."""
        return DLSN(*await self.driver.call("find-txid", on=self._on, txid=txid))

    async def count(self, start: DLSN = FIRST) -> int:
        """The number of records from a position on."""
        number: int = await self.driver.call("count", on=self._on, dlsn=_numbers(start))
        return number

    async def recover(self) -> None:
        """Recover the segment that a dead writer left in progress."""
        await self.driver.call("recover", on=self._on)


class JavaWriter:
    """An asynchronous writer."""

    def __init__(self, driver: Driver, name: str, last_txid: int) -> None:
        self._driver, self.name = driver, name
        self.last_txid = last_txid

    async def write(self, *records: JavaRecord) -> list[DLSN]:
        """Write records one by one and wait for all; raise the first failure."""
        dlsns = []
        for outcome in await self.outcomes(*records):
            if isinstance(outcome, DriverError):
                raise outcome
            dlsns.append(outcome)
        return dlsns

    async def write_bulk(self, *records: JavaRecord) -> list[DLSN]:
        """Write records as one batch, which share entries, and wait for all."""
        dlsns = await self._driver.call(
            "write-bulk", on=self.name, records=[each.as_argument() for each in records]
        )
        return [DLSN(*each) for each in dlsns]

    async def outcomes(
        self, *records: JavaRecord, timeout_s: float = REPLY_TIMEOUT_S
    ) -> list[DLSN | DriverError]:
        """Write records one by one; return the position of each, or its error."""
        outcomes = await self._driver.call(
            "write", on=self.name, records=[each.as_argument() for each in records], timeout_s=timeout_s
        )
        return [
            DLSN(*each) if isinstance(each, list) else DriverError("write", {**each, "stack": ""})
            for each in outcomes
        ]

    async def truncate(self, dlsn: DLSN) -> bool:
        """Truncate the log before a position."""
        done: bool = await self._driver.call("truncate", on=self.name, dlsn=_numbers(dlsn))
        return done

    async def seal(self) -> None:
        """Mark the end of the stream."""
        await self._driver.call("seal", on=self.name)

    async def close(self, *, timeout_s: float = REPLY_TIMEOUT_S) -> None:
        """Complete the segment and release the lock."""
        await self._driver.call("writer-close", on=self.name, timeout_s=timeout_s)

    async def abort(self) -> None:
        """Release the lock and leave the segment in progress."""
        await self._driver.call("writer-abort", on=self.name)


class JavaReader:
    """An asynchronous reader, or several: each continues after the last record of the one before it."""

    def __init__(self, driver: Driver, log: str, start: DLSN | int) -> None:
        self._driver, self._log, self._start = driver, log, start
        self._name: str | None = None
        self._last: DLSN | None = None
        self._repeats = False  # the next record repeats the last one

    async def begin(self) -> None:
        """Open a reader, at the last record if one was read."""
        name = self._driver.name("reader")
        start = self._start if self._last is None else self._last
        await self._driver.call("reader", on=self._log, name=name, **_start(start))
        self._name, self._repeats = name, self._last is not None

    async def end(self) -> None:
        """Close the open reader, if any."""
        name, self._name = self._name, None
        if name is not None:
            await self._driver.call("reader-close", on=name)

    async def read(self, count: int) -> list[Record]:
        """Read the next records; fail if fewer than ``count`` arrive in time."""
        got = await self.read_some(count, timeout_s=READ_TIMEOUT_S)
        if got.ended is not None:
            raise got.ended
        assert len(got.records) == count, f"{len(got.records)} of {count} records arrived: {got.records}"
        return got.records

    async def read_some(self, count_max: int, *, timeout_s: float) -> JavaRead:
        """Read the records that arrive in time; the time starts again with each further reader."""
        records: list[Record] = []
        for _ in range(READERS_MAX):
            got = await self._read_by_one(count_max - len(records), timeout_s)
            records += got.records
            if not got.was_cancelled:
                break
            await self.end()
            await self.begin()
        return JavaRead(records, got.ended)

    async def _read_by_one(self, count_max: int, timeout_s: float) -> JavaRead:
        reply = await self._driver.call(
            "read",
            on=self._name,
            count=count_max + self._repeats,
            timeout_ms=int(timeout_s * 1000),
            timeout_s=timeout_s + 30,
        )
        got = _parse_read(reply)
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
    """Open a log, created if missing, in a new namespace object, which has no state of earlier ones."""
    namespace, name = driver.name("namespace"), driver.name("log")
    await driver.call(
        "namespace", name=namespace, uri=uri, client_id=client_id, settings=dict(settings or {})
    )
    try:
        await driver.call("log", namespace=namespace, log=log, name=name)
        yield JavaLog(driver, name)
    finally:
        # Do not wait: with a long poll under way, Apache's code takes seconds to close.
        driver.begin("namespace-close", on=namespace)


def numbered(count: int, first: int = 1) -> list[JavaRecord]:
    """Records with their transaction ids as payloads, from ``first`` on."""
    return [JavaRecord(txid, b"java %d" % txid) for txid in range(first, first + count)]


async def _first_whole(
    read_once: Callable[[], Awaitable[JavaRead]], count: int, *, end: int | None = None
) -> list[Record]:
    """Read by up to ``READERS_MAX`` readers; return the records of the first with ``count`` and a good end.

    An error other than ``READ_CANCELLED`` is raised at once. The result of the last reader is taken as it is.

    Args:
        end: The code of the error that is a good end; None: no error is.
    """
    for _ in range(READERS_MAX):
        got = await read_once()
        code = None if got.ended is None else got.ended.code
        if code == end and len(got.records) >= count:
            break
        if code not in (None, end, READ_CANCELLED):
            break
    if code == end:
        return got.records
    raise got.ended or AssertionError(
        f"no end behind {count} records; the last reader got {len(got.records)}"
    )


def _start(start: DLSN | int) -> dict[str, Any]:
    return {"txid": start} if isinstance(start, int) else {"dlsn": _numbers(start)}


def _numbers(dlsn: DLSN) -> Sequence[int]:
    return [dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id]


def _parse_read(reply: dict[str, Any]) -> JavaRead:
    records = [
        Record(DLSN(*each["dlsn"]), each["txid"], bytes.fromhex(each["payload"]), each["sequence_id"])
        for each in reply["records"]
    ]
    ended = reply.get("ended")
    return JavaRead(records, None if ended is None else DriverError("read", {**ended, "stack": ""}))
