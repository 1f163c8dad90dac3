"""A scan: the records between two bounds as Arrow batches, in trio, in asyncio, and for other programs."""

# covers: dlog/aio/scan.py
# covers: dlog/blocking/scan.py

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dlog
import dlog.aio
import dlog.blocking
from dlog import DLSN
from dlog.encryption import KeyFile
from dlog.read.log_reader import LogReader
from dlog.scan import scan as scan_module

COUNT = 40
NAMES = ["segment", "entry", "slot", "txid", "sequence_id", "payload", "key", "headers"]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A namespace with the log "orders": four segments; some records have keys and headers."""
    uri = (tmp_path_factory.mktemp("scan") / "log").as_uri()
    with dlog.blocking.open_namespace(uri) as namespace:
        namespace.create_log("empty")
        for first in range(0, COUNT, 10):
            with namespace.open_writer("orders", create=True) as log:
                for at in range(first, first + 10, 2):
                    some = at % 3 == 0
                    log.append_many(
                        [b"%d" % at * (at % 5), b"%d" % (at + 1)],
                        txids=[10 * at, 10 * at + 1],
                        keys=[b"k" if some else None, None],
                        headers=[{"a": b"1", "b": b""} if some else None, None],
                    )
    return uri


@pytest.fixture
def namespace(uri: str) -> Iterator[dlog.blocking.Namespace]:
    with dlog.blocking.open_namespace(uri, read_only=True) as namespace:
        yield namespace


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "BATCH_RECORDS", 7)


def row(record: dlog.Record) -> dict[str, Any]:
    """A record as a plain program would make a row of it."""
    return {
        "segment": record.dlsn.segment_seqno,
        "entry": record.dlsn.entry_id,
        "slot": record.dlsn.slot_id,
        "txid": record.txid,
        "sequence_id": record.sequence_id,
        "payload": record.payload,
        "key": record.key,
        "headers": [{"key": name, "value": value} for name, value in record.headers.items()],
        "dlsn": str(record.dlsn),
    }


def read(
    namespace: dlog.blocking.Namespace, names: list[str] | None = None, **bounds: Any
) -> list[dict[str, Any]]:
    with namespace.open_reader("orders", follow=False, **bounds) as reader:
        rows = [row(record) for record in reader]
    return [{name: one[name] for name in names or NAMES} for one in rows]


positions = st.one_of(
    st.builds(DLSN, st.integers(1, 5), st.integers(0, 7), st.integers(0, 2)),
    st.integers(0, 10 * COUNT + 20),
    st.just(dlog.LATEST),
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=positions | st.just(dlog.EARLIEST),
    end=positions | st.none(),
    columns=st.none() | st.lists(st.sampled_from([*NAMES, "dlsn"]), min_size=1, unique=True),
)
def test_a_scan_gives_the_rows_of_a_plain_reader(
    namespace: dlog.blocking.Namespace,
    small_batches: None,
    start: Any,
    end: Any,
    columns: list[str] | None,
) -> None:
    with namespace.scan("orders", start, end, columns=columns) as scan:
        wanted = read(namespace, columns, start=start, end=end)
        batches = list(scan)
        assert [one for batch in batches for one in batch.to_pylist()] == wanted
        assert all(batch.schema == scan.schema and batch.num_rows for batch in batches)
        assert scan.schema.names == (columns or NAMES)
        assert scan.to_table().to_pylist() == wanted


def test_batches_join_the_reads_of_the_reader_up_to_a_size(
    namespace: dlog.blocking.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [len(batch) for batch in namespace.scan("orders")] == [COUNT]
    monkeypatch.setattr(scan_module, "BATCH_RECORDS", 7)
    assert [len(batch) for batch in namespace.scan("orders")] == [7, 7, 7, 7, 7, 5]
    monkeypatch.setattr(scan_module, "BATCH_BYTES", 1)
    assert max(len(batch) for batch in namespace.scan("orders")) < 11


def test_the_end_is_the_last_record_of_it_and_never_waited_for(namespace: dlog.blocking.Namespace) -> None:
    every = read(namespace)
    fifth = DLSN(every[4]["segment"], every[4]["entry"], every[4]["slot"])
    assert namespace.scan("orders", end=fifth).to_table().to_pylist() == every[:5]
    assert namespace.scan("orders", fifth, fifth).to_table().to_pylist() == every[4:5]
    assert namespace.scan("orders", 20, 40).to_table()["txid"].to_pylist() == [20, 21, 40]
    assert namespace.scan("orders", end=DLSN(99, 0, 0)).to_table().to_pylist() == every
    assert namespace.scan("orders", end=10**12).to_table().to_pylist() == every


def test_a_log_without_records_is_a_table_without_rows(namespace: dlog.blocking.Namespace) -> None:
    scan = namespace.scan("empty", columns=["txid", "payload"])
    assert list(scan) == []
    assert scan.to_table().schema == pa.schema([("txid", pa.int64()), ("payload", pa.binary())])
    assert pl.DataFrame(namespace.scan("empty")).shape == (0, len(NAMES))


def test_each_reading_gives_the_same_records_although_the_log_continues(tmp_path: Path) -> None:
    with (
        dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace,
        namespace.open_writer("log", create=True) as log,
    ):
        log.append(b"first", txid=1)
        log.flush()
        scans = [namespace.scan("log", end=end) for end in (None, 7, dlog.LATEST, DLSN(9, 0, 0))]
        log.append(b"second", txid=2)
        log.flush()
        for scan in scans:
            assert scan.to_table()["payload"].to_pylist() == [b"first"]
            assert [batch["payload"].to_pylist() for batch in scan] == [[b"first"]]
        assert len(namespace.scan("log").to_table()) == 2


def test_duckdb_polars_pandas_and_pyarrow_take_a_scan(
    namespace: dlog.blocking.Namespace, small_batches: None
) -> None:
    wanted = read(namespace)
    scan = namespace.scan("orders")
    assert pa.table(scan).to_pylist() == wanted
    assert pl.DataFrame(scan)["payload"].to_list() == [one["payload"] for one in wanted]
    assert pd.DataFrame.from_arrow(scan)["txid"].tolist() == [one["txid"] for one in wanted]
    with duckdb.connect() as database:
        database.register("orders", scan)
        assert database.sql("SELECT txid, payload FROM orders WHERE slot = 1 ORDER BY txid").fetchall() == [
            (one["txid"], one["payload"]) for one in wanted if one["slot"] == 1
        ]
        # Twice in one query: each place reads the log for itself.
        assert database.sql("SELECT count(*) FROM orders a, orders b").fetchall() == [(COUNT**2,)]


def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers fail after their first batch."""
    read_batch = LogReader.read_batch

    async def fails_later(self: LogReader, records_max: int, **more: Any) -> dlog.RecordBatch | None:
        if self.position is not None and self.position > DLSN(1, 0, 0):
            raise dlog.CorruptLogError("orders", self.position, "a test damaged it")
        return await read_batch(self, records_max, **more)

    monkeypatch.setattr(LogReader, "read_batch", fails_later)


def test_an_error_in_the_middle_reaches_every_consumer_with_its_message(
    namespace: dlog.blocking.Namespace, small_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch)
    with pytest.raises(dlog.CorruptLogError, match="a test damaged it"):
        list(namespace.scan("orders"))
    with pytest.raises(dlog.CorruptLogError, match="a test damaged it"):
        namespace.scan("orders").to_table()
    with pytest.raises(Exception, match="a test damaged it"):
        pa.table(namespace.scan("orders"))
    with pytest.raises(Exception, match="a test damaged it"):
        pl.DataFrame(namespace.scan("orders"))
    with pytest.raises(Exception, match="a test damaged it"):
        pd.DataFrame.from_arrow(namespace.scan("orders"))
    with duckdb.connect() as database:
        database.register("orders", namespace.scan("orders"))
        with pytest.raises(duckdb.Error, match="a test damaged it"):
            database.sql("SELECT sum(txid) FROM orders").fetchall()


@pytest.fixture
def open_readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logs of the readers of scans that are open."""
    found: list[str] = []
    run = scan_module.ScanReading.run

    async def counted(self: scan_module.ScanReading) -> None:
        found.append("orders")
        try:
            await run(self)
        finally:
            found.pop()

    monkeypatch.setattr(scan_module.ScanReading, "run", counted)
    return found


def test_a_reader_is_closed_at_the_end_of_its_reading_and_when_that_is_left(
    namespace: dlog.blocking.Namespace, small_batches: None, open_readers: list[str]
) -> None:
    with namespace.scan("orders") as scan:
        left = iter(scan)
        assert len(next(left)) == 7
        assert open_readers == ["orders"]
        stream = pa.RecordBatchReader.from_stream(scan)
        assert len(stream.read_next_batch()) == 7
        assert open_readers == ["orders"] * 2
        assert len(scan.to_table()) == COUNT
        del left, stream
        gc.collect()
        namespace.list_logs()  # the loop has passed what was told before
        namespace.list_logs()
        assert open_readers == []
        again = iter(scan)
        next(again)
    assert open_readers == []
    with pytest.raises(dlog.NamespaceClosedError, match="closed"):
        next(again)
    with pytest.raises(dlog.NamespaceClosedError, match="closed"):
        list(scan)


def test_a_scan_that_is_dropped_is_no_warning_and_closed(namespace: dlog.blocking.Namespace) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pa.table(namespace.scan("orders")).num_rows == COUNT
        namespace.scan("orders")
        gc.collect()


def test_a_namespace_closes_its_scans(uri: str) -> None:
    with dlog.blocking.open_namespace(uri, read_only=True) as namespace:
        scan = namespace.scan("orders")
        batches = iter(scan)
        stream = pa.RecordBatchReader.from_stream(scan)
    with pytest.raises(dlog.NamespaceClosedError):
        next(batches)
    with pytest.raises(pa.ArrowInvalid, match="it was closed"):
        stream.read_all()


async def test_trio_iterates_over_batches_and_makes_a_table(
    uri: str, small_batches: None, open_readers: list[str]
) -> None:
    async with (
        dlog.open_namespace(uri, read_only=True) as namespace,
        namespace.scan("orders", columns=["txid"]) as scan,
    ):
        batches = [batch async for batch in scan]
        assert [len(batch) for batch in batches] == [7, 7, 7, 7, 7, 5]
        table = await scan.to_table()
        assert table == pa.Table.from_batches(batches)
        assert repr(scan) == "<Scan of 'orders': txid>"
        async for batch in scan:
            assert len(batch) == 7
            break
        await trio.testing.wait_all_tasks_blocked()
        assert open_readers == []
        await scan.aclose()
        with pytest.raises(dlog.NamespaceClosedError, match="make another one"):
            await scan.to_table()
    assert pl.DataFrame(table).height == COUNT


def test_asyncio_iterates_over_batches_and_makes_a_table(uri: str, small_batches: None) -> None:
    async def main() -> list[int]:
        async with (
            dlog.aio.open_namespace(uri, read_only=True) as namespace,
            namespace.scan("orders", columns=["txid"]) as scan,
        ):
            sizes = [len(batch) async for batch in scan]
            assert scan.schema == pa.schema([("txid", pa.int64())])
            assert (await scan.to_table()).num_rows == sum(sizes)
            async for _ in scan:
                break
            await scan.aclose()
            with pytest.raises(dlog.NamespaceClosedError):
                await scan.to_table()
            return sizes

    assert asyncio.run(main()) == [7, 7, 7, 7, 7, 5]


def test_wrong_arguments_are_errors_before_anything_is_read(namespace: dlog.blocking.Namespace) -> None:
    with pytest.raises(ValueError, match="no column 'offset'"):
        namespace.scan("orders", columns=["offset"])
    with pytest.raises(ValueError, match="each once"):
        namespace.scan("orders", columns=["txid", "txid"])
    with pytest.raises(ValueError, match="each once"):
        namespace.scan("orders", columns=[])
    with pytest.raises(ValueError, match="a list of names"):
        namespace.scan("orders", columns="txid")
    with pytest.raises(ValueError, match="end=EARLIEST"):
        namespace.scan("orders", end=dlog.EARLIEST)
    with pytest.raises(dlog.LogNotFoundError):
        namespace.scan("none")


@pytest.mark.parametrize("columns", [None, ["payload"], ["key"], ["headers", "txid"]])
def test_encrypted_records_need_their_key(tmp_path: Path, columns: list[str] | None) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("spring " + "ab" * 32 + "\n")
    key = KeyFile(keys)
    config = dlog.NamespaceConfig(
        writer=dlog.WriterConfig(encryption=key), reader=dlog.ReaderConfig(encryption=key)
    )
    uri = (tmp_path / "log").as_uri()
    with dlog.blocking.open_namespace(uri, config=config) as namespace:
        with namespace.open_writer("orders", create=True) as log:
            log.append(b"payload", key=b"key", headers={"a": b"b"})
        row = namespace.scan("orders").to_table().to_pylist()[0]
        assert (row["payload"], row["key"]) == (b"payload", b"key")
    with dlog.blocking.open_namespace(uri) as namespace:
        with pytest.raises(dlog.EncryptionKeyError, match="the record at 1:0:0 is encrypted"):
            namespace.scan("orders", columns=columns).to_table()
        assert namespace.scan("orders", columns=["txid"]).to_table().num_rows == 1


def test_without_pyarrow_the_error_names_the_extra(
    namespace: dlog.blocking.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "dlog.scan.schema", raising=False)
    with pytest.raises(dlog.ConfigError, match=r"pip install '\.\[scan\]'"):
        namespace.scan("orders")
