"""Streams for tests: a namespace on either kind of bookies, for writers and readers of both sides.

Inside: namespaces and their logs, records to write, reading by our reader. Not inside: Apache's writers and
readers (``java_streams``), the expected results.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import attrs

import dlog
from dlog import DLSN, Record
from ledger.metadata_store.store import MetadataStore
from namespace.binding import new_binding
from namespace.bindings import bind
from tests.interop.driver import Driver
from tests.interop.java_streams import JavaLog, open_java_log
from tests.interop.originals import Cluster, Originals

TEST_TIMEOUT_S = 240
SESSION_TIMEOUT_MS = 4_000  # of a writer that a test kills or pauses; then its lock is free
# The same for Java's, which otherwise waits 5 s before it repeats a request that failed with its session.
SHORT_SESSION = {"zkSessionTimeoutSeconds": "4", "zkRetryStartBackoffMillis": "100"}
LZ4_PARAMETERS = [dlog.Compression.NONE, dlog.Compression.LZ4]

# Apache's status codes that tests expect by name.
OWNERSHIP_ACQUIRE_FAILED = 302
TRANSMIT_ERROR = 507
WRITE_CANCELLED = 516


@attrs.frozen
class StreamPlace:
    """A namespace on three bookies of one kind, and a Java driver that can open it."""

    cluster: Cluster
    driver: Driver
    path: str

    @property
    def originals(self) -> Originals:
        """The release of Apache's programs."""
        return self.cluster.originals

    @property
    def uri(self) -> str:
        """The namespace URI, for either side."""
        return f"distributedlog://{self.originals.zookeeper_hosts}{self.path}"

    def fresh_log(self) -> str:
        """Return an unused log name."""
        return self.originals.fresh("log")

    def namespace(
        self,
        *,
        compression: dlog.Compression = dlog.Compression.NONE,
        segment_bytes_max: int | None = None,
        client_id: str = "ours",
        hash_chain: bool = False,
        keys_and_headers: bool | None = None,
    ) -> AbstractAsyncContextManager[dlog.Namespace]:
        """Open the namespace by our code."""
        writer = dlog.WriterConfig(
            segment_bytes_max=segment_bytes_max,
            visibility_delay_ms=1,
            hash_chain=hash_chain,
            keys_and_headers=keys_and_headers,
        )
        config = dlog.NamespaceConfig(
            compression=compression,
            client_id=client_id,
            writer=writer,
        )
        return dlog.open_namespace(self.uri, config=config)

    def java_log(
        self,
        log: str,
        settings: Mapping[str, str] | None = None,
        *,
        driver: Driver | None = None,
        client_id: str = "java",
    ) -> AbstractAsyncContextManager[JavaLog]:
        """Open a log by Java, from a namespace object of its own."""
        return open_java_log(driver or self.driver, self.uri, log, settings=settings, client_id=client_id)

    def start_driver(self) -> Driver:
        """Start another Java driver, which a test may kill or pause."""
        return self.originals.start_driver("streams-driver", "interop.StreamsDriver")

    def start_our_driver(self) -> Driver:
        """Start our writer as a driver process, which a test may kill or pause."""
        program = "tests.interop.our_streams_driver"
        process = self.originals.processes.start(
            self.originals.fresh("our-streams-driver"),
            [sys.executable, "-m", program, self.uri, str(SESSION_TIMEOUT_MS)],
            piped=True,
        )
        driver = Driver(process)
        assert driver.ask("ping", timeout_s=TEST_TIMEOUT_S) == "pong"
        return driver


def bind_by_java(originals: Originals, path: str, root: str) -> None:
    """Bind a namespace by Apache's own tool."""
    code, output = originals.run_java(
        "org.apache.distributedlog.tools.Tool",
        "org.apache.distributedlog.admin.DistributedLogAdmin",
        "bind",
        *("-l", root, "-s", originals.zookeeper_hosts, "-c", "-f"),
        f"distributedlog://{originals.zookeeper_hosts}{path}",
        name="bind",
    )
    assert code == 0, output


def bind_by_us(originals: Originals, path: str, root: str) -> None:
    """Bind a namespace by our code."""

    async def bound(store: MetadataStore) -> None:
        await bind(store, path, new_binding(originals.zookeeper_hosts, root))

    originals.with_store(bound)


def payloads_of(count: int, *, seed: int = 0) -> list[bytes]:
    """Payloads of various sizes, the first one empty; some compress well and some not at all."""
    rng = random.Random(seed)
    payloads = [b""]
    for number in range(1, count):
        size = rng.choice([1, 10, 100, 1000])
        payloads.append(b"%d:" % number + (b"ab" * size if number % 2 else rng.randbytes(size)))
    return payloads


async def read_by_us(
    namespace: dlog.Namespace, log: str, start: DLSN | int | dlog.Start = dlog.EARLIEST
) -> list[Record]:
    """Read the records up to the present end by our reader."""
    async with namespace.open_reader(log, start=start, follow=False) as reader:
        return [record async for record in reader]


def without_attributes(records: Sequence[Record]) -> list[Record]:
    """The records as Apache's readers get them: without key and headers."""
    return [Record(each.dlsn, each.txid, each.payload, each.sequence_id) for each in records]


async def write_rolling(writer: dlog.LogWriter, segments: int) -> tuple[list[bytes], list[DLSN]]:
    """Append small batches, with transaction ids from 1 on, until ``segments`` segments have records.

    Each batch becomes visible before the next one is written: the last entry before a roll does not stay
    invisible for long.
    """
    payloads: list[bytes] = []
    dlsns: list[DLSN] = []
    while not dlsns or dlsns[-1].segment_seqno < segments:
        batch = payloads_of(5, seed=len(payloads))
        txids = range(len(payloads) + 1, len(payloads) + 6)
        dlsns += await writer.append_many(batch, txids=txids)
        payloads += batch
        await writer.flush()
    return payloads, dlsns


def expected_records(payloads: Sequence[bytes], dlsns: Sequence[DLSN]) -> list[Record]:
    """The records that readers must return: transaction ids from 1 on, sequence ids from 0 on."""
    return [
        Record(dlsn, number + 1, payload, number)
        for number, (payload, dlsn) in enumerate(zip(payloads, dlsns, strict=True))
    ]


async def same_for_both(place: StreamPlace, log: str, expected: Sequence[Record]) -> None:
    """Check that both sides, each in a namespace of its own, read and count exactly these records."""
    async with place.namespace() as namespace, place.java_log(log) as java:
        ours = await read_by_us(namespace, log)
        assert without_attributes(ours) == expected
        theirs = await java.read(len(expected))
        assert theirs == expected
        theirs = await java.read_synchronously(len(expected))
        assert theirs == expected
        description = await namespace.describe_log(log)
        ends = await java.ends()
        assert description.record_count == ends["record_count"] == len(expected)
        assert description.last_dlsn == ends["last_dlsn"] == expected[-1].dlsn
        assert description.last_txid == ends["last_txid"] == expected[-1].txid
        assert ends["first_dlsn"] == expected[0].dlsn
        segments = await java.segments()
        assert [
            (each["segment_seqno"], each["ledger_id"], not each["in_progress"], each["first_txid"])
            for each in segments
        ] == [
            (each.segment_seqno, each.ledger_id, each.is_completed, each.first_txid)
            for each in description.segments
        ]
        assert [
            (each["last_txid"], each["record_count"], each["start_sequence_id"], each["completed_ms"])
            for each in segments
            if not each["in_progress"]
        ] == [
            (each.last_txid, each.record_count, each.start_sequence_id, each.completed_ms)
            for each in description.segments
            if each.is_completed
        ]


def is_followed_by_java(got: Sequence[Record], expected: Sequence[Record]) -> bool:
    """Whether these are the records that a Java reader returns which opened before they were written.

    A rolling writer, Java's or ours, starts the new segment before it completes the old one. A Java reader
    that lists the segments in between does not know the sequence ids of the new segment, and uses negative
    numbers for all of it. A reader that lists the segments later knows them.
    """
    return len(got) == len(expected) and all(
        Record(one.dlsn, one.txid, one.payload, other.sequence_id) == other
        and (one == other or one.sequence_id >> 32 == -(2**31) + one.dlsn.segment_seqno)
        for one, other in zip(got, expected, strict=True)
    )
