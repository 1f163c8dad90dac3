"""The client on an embedded log: truncation, and a namespace whose session has ended."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import dlog
import dlog.blocking
from dlog import shards
from dlog.encryption import KeyFile
from ledger.metadata_store.errors import StoreReplacedError
from spark_integration import client
from spark_integration.client import NamedLog, NamedStreams, namespace
from spark_integration.errors import DataLossError
from spark_integration.offsets import BEFORE_EVERYTHING, Position, just_before
from spark_integration.options import ClientOptions, Selection, parse_options
from spark_integration.planning import Range
from spark_integration.ranges import RangePartition
from spark_integration.source import DlogBatchReader
from tests.fakes.list_streams import batch_reader

pytestmark = pytest.mark.slow


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    yield f"file://{tmp_path}"
    while client._opened:
        client._opened.popitem()[1].close()


def write(uri: str, *segments: list[bytes]) -> None:
    for payloads in segments:
        with namespace(uri).open_writer("log", create=True) as writer:
            writer.append_many(payloads)


def truncate(uri: str, first_kept: dlog.DLSN) -> None:
    with namespace(uri).open_writer("log") as writer:
        writer.truncate(first_kept)


def batch_reader_of(uri: str, **options: str) -> DlogBatchReader:
    given = {"uri": uri, "stream": "log", **options}
    parsed = parse_options(given, streaming=False)
    return batch_reader(NamedStreams(uri, parsed.selection, 2000, parsed.client), given)


def payloads(reader: DlogBatchReader, partitions: list[RangePartition]) -> list[bytes]:
    return [
        payload
        for partition in partitions
        for batch in reader.read(partition)
        for payload in batch.column("payload").to_pylist()
    ]


def lose(uri: str) -> dlog.blocking.Namespace:
    """Lose the store of this process's namespace for good, as may happen between two tasks of a kept worker.

    That is so if its session ends and the file of the metadata is another one now.
    """
    lost = namespace(uri)
    lost._inner.context.store._replaced = StoreReplacedError("/", "it is another file now")  # type: ignore[attr-defined]
    with pytest.raises(dlog.NamespaceLostError):
        lost.list_logs()
    return lost


LAST = Position(1, 0, 1)
CALLS: list[Callable[[NamedLog], object]] = [
    lambda log: log.tail() == LAST,
    lambda log: log.earliest() == Position(1, -1, -1),
    lambda log: [extent.segment for extent in log.extents()] == [1],
    lambda log: len(next(log.read_range(Range(Position(1, -1, -1), LAST), records_max=9))) == 2,
]


@pytest.mark.parametrize("call", CALLS)
def test_a_namespace_whose_session_is_over_is_replaced(uri: str, call: Callable[[NamedLog], object]) -> None:
    write(uri, [b"0", b"1"])
    lost = lose(uri)
    log = NamedLog(uri, "log", 2000)
    assert call(log)
    replaced = namespace(uri)
    assert replaced is not lost
    assert call(log)
    assert namespace(uri) is replaced, "a working namespace is kept"


def test_a_closed_namespace_is_replaced(uri: str) -> None:
    write(uri, [b"0", b"1"])
    namespace(uri).close()
    assert NamedLog(uri, "log", 2000).tail() == LAST


def test_a_failed_replacement_is_tried_again_by_the_next_call(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(uri, [b"0", b"1"])
    lose(uri)
    log = NamedLog(uri, "log", 2000)

    def unreachable(uri: str, **_: object) -> dlog.blocking.Namespace:
        raise dlog.LogUnavailableError(f"{uri}: not now")

    with monkeypatch.context() as patched:
        patched.setattr(dlog.blocking, "open_namespace", unreachable)
        with pytest.raises(dlog.LogUnavailableError, match="not now"):
            log.tail()
    assert log.tail() == LAST


def test_another_error_is_raised_at_once_and_keeps_the_namespace(uri: str) -> None:
    write(uri, [b"0"])
    kept = namespace(uri)
    with pytest.raises(dlog.LogNotFoundError):
        NamedLog(uri, "other", 2000).tail()
    assert namespace(uri) is kept


def test_a_log_whose_records_are_all_truncated_has_nothing_to_read(uri: str) -> None:
    write(uri, [b"0"])
    truncate(uri, dlog.DLSN(2, 0, 0))
    assert batch_reader_of(uri).partitions() == []


def test_a_log_without_segments_has_nothing_to_read(uri: str) -> None:
    namespace(uri).create_log("log")
    log = NamedLog(uri, "log", 2000)
    assert (log.earliest(), log.tail()) == (BEFORE_EVERYTHING, BEFORE_EVERYTHING)
    assert batch_reader_of(uri).partitions() == []


@pytest.mark.parametrize(
    ("first_kept", "left"),
    [
        (dlog.DLSN(1, 0, 2), [b"2", b"3", b"4", b"5"]),
        (dlog.DLSN(2, 0, 0), [b"3", b"4", b"5"]),
        (dlog.DLSN(3, 0, 1), [b"5"]),
    ],
)
def test_tasks_planned_at_earliest_give_the_same_records_or_an_exception(
    uri: str, first_kept: dlog.DLSN, left: list[bytes]
) -> None:
    write(uri, [b"0", b"1", b"2"], [b"3"], [b"4", b"5"])
    reader = batch_reader_of(uri, minPartitions="3")
    before = reader.partitions()
    assert payloads(reader, before) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    truncate(uri, first_kept)
    with pytest.raises(DataLossError):
        payloads(reader, before)
    with pytest.raises(DataLossError):
        payloads(reader, reader.partitions())  # another action on the same DataFrame
    later = batch_reader_of(uri)
    assert payloads(later, later.partitions()) == left


def streams_of(uri: str, **chosen: Any) -> NamedStreams:
    return NamedStreams(uri, Selection(**chosen), 2000)


def test_streams_are_found_by_name_pattern_and_shards(uri: str) -> None:
    for name in ("eu-a", "eu-b", "us"):
        namespace(uri).create_log(name)

    async def create() -> None:
        async with dlog.open_namespace(uri) as opened:
            await shards.create_sharded_log(opened, "clicks", shards=2)

    namespace(uri).close()
    trio.run(create)
    assert streams_of(uri, names=("us", "gone")).names() == ["us", "gone"]
    assert streams_of(uri, pattern="eu-*").names() == ["eu-a", "eu-b"]
    assert streams_of(uri, sharded="clicks").names() == ["clicks/shard-00000", "clicks/shard-00001"]
    with pytest.raises(shards.NotShardedError):
        streams_of(uri, sharded="us").names()
    namespace(uri).delete_log("clicks/shard-00001")
    with pytest.raises(shards.ShardsMissingError):
        streams_of(uri, sharded="clicks").names()


def test_the_tails_of_streams_tell_which_are_gone(uri: str) -> None:
    write(uri, [b"0", b"1"])
    namespace(uri).create_log("empty")
    streams = streams_of(uri, names=("log",))
    assert streams.tails(["empty", "gone", "log"]) == {"empty": BEFORE_EVERYTHING, "gone": None, "log": LAST}
    assert streams.tails(["gone"]) == {"gone": None}


def test_places_of_ids_and_cursors_are_before_their_record(uri: str) -> None:
    with namespace(uri).open_writer("log", create=True) as writer:
        first, second, third = writer.append_many([b"0", b"1", b"2"], txids=[10, 20, 20])
    log = NamedLog(uri, "log", 2000)

    def before(dlsn: dlog.DLSN) -> Position:
        return just_before(dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id)

    found = [log.before_txid(txid) for txid in (0, 10, 11, 21)]
    assert found == [before(first), before(first), before(second), None]
    assert log.cursor("billing") is None
    namespace(uri).cursors("log").set("billing", third)
    assert log.cursor("billing") == before(third)


def test_the_slots_of_an_entry_are_those_of_its_records_and_none_when_they_are_gone(uri: str) -> None:
    write(uri, [b"first"], [b"second"])
    with namespace(uri).open_writer("log") as writer:
        writer.append_many([b"a", b"b", b"c"], keys=[b"k", None, None])
    with namespace(uri).open_reader("log", follow=False) as reader:
        records = list(reader)
    log = NamedLog(uri, "log", 2000)
    entries = {(each.dlsn.segment, each.dlsn.entry) for each in records}
    assert {entry: log.slots(*entry) for entry in entries} == {
        entry: [each.dlsn.slot for each in records if (each.dlsn.segment, each.dlsn.entry) == entry]
        for entry in entries
    }
    assert log.slots(3, 10**6) == []
    truncate(uri, records[2].dlsn)
    assert log.slots(1, 0) == []


def test_records_that_are_gone_are_left_out_only_on_request(uri: str) -> None:
    write(uri, [b"0", b"1", b"2"], [b"3"], [b"4", b"5"])
    log = NamedLog(uri, "log", 2000)
    ranges = {
        Range(just_before(1, 0, 0), log.tail()): [b"3", b"4", b"5"],
        Range(just_before(1, 0, 0), Position(1, 0, 1)): [],
    }

    def read(part: Range, *, skip_lost: bool) -> list[bytes]:
        batches = log.read_range(part, records_max=10, skip_lost=skip_lost)
        return [record.payload for batch in batches for record in batch]

    assert [len(read(part, skip_lost=True)) for part in ranges] == [6, 2]
    truncate(uri, dlog.DLSN(2, 0, 0))
    for part, left in ranges.items():
        assert read(part, skip_lost=True) == left
        with pytest.raises(dlog.LogTruncatedError):
            read(part, skip_lost=False)


def key_file(tmp_path: Path, name: str, key: bytes) -> Path:
    path = tmp_path / name
    path.touch(0o600)
    path.write_text(f"1 {key.hex()}\n")
    return path


def test_payloads_are_decrypted_with_the_keys_of_the_own_query_only(uri: str, tmp_path: Path) -> None:
    keys = key_file(tmp_path, "keys", bytes(range(32)))
    config = dlog.NamespaceConfig(writer=dlog.WriterConfig(encryption=KeyFile(keys)))
    with (
        dlog.blocking.open_namespace(uri, config=config) as writing,
        writing.open_writer("log", create=True) as writer,
    ):
        writer.append(b"secret")

    def read(files: ClientOptions) -> list[bytes]:
        streams = NamedStreams(uri, Selection(names=("log",)), 2000, files)
        reader = batch_reader(streams, {"uri": uri, "stream": "log"})
        return payloads(reader, reader.partitions())

    assert read(ClientOptions(keys=str(keys))) == [b"secret"]
    (stored,) = read(ClientOptions())
    assert b"secret" not in stored
    other = key_file(tmp_path, "others", bytes(32))
    with pytest.raises(dlog.DecryptionError) as wrong:
        read(ClientOptions(keys=str(other)))
    assert bytes(32).hex() not in str(wrong.value)


def test_the_objects_that_spark_sends_hold_names_of_files_and_no_secret(uri: str, tmp_path: Path) -> None:
    key = bytes(range(32))
    keys = key_file(tmp_path, "keys", key)
    options = parse_options({"uri": uri, "stream": "log", "keyFile": str(keys)}, streaming=False)
    log = NamedLog(uri, "log", 2000, options.client)
    namespace(uri).create_log("log")
    log.tail()
    sent = pickle.dumps(batch_reader_of(uri, keyFile=str(keys)))
    assert str(keys).encode() in sent
    assert key not in sent
    assert key.hex().encode() not in sent
    assert key.hex() not in f"{options!r} {log!r}"


def test_settings_of_a_query_reach_its_namespace_and_no_other(uri: str, tmp_path: Path) -> None:
    file = tmp_path / "dlog.toml"
    file.write_text("[reader]\nread_bytes_max = 4096\nretry_timeout_s = 7\n")
    options = parse_options(
        {"uri": uri, "stream": "log", "configFile": str(file), "client.reader.retry_timeout_s": "3"},
        streaming=False,
    ).client
    reader = namespace(uri, options)._inner.config.reader
    assert (reader.read_bytes_max, reader.retry_timeout_s) == (4096, 3)
    assert namespace(uri)._inner.config.reader == dlog.ReaderConfig()


@pytest.mark.parametrize(
    "options",
    [
        ClientOptions(keys="/nowhere"),
        ClientOptions(bookies="/nowhere"),
        ClientOptions(config_file="/nowhere"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(uri: str, options: ClientOptions) -> None:
    with pytest.raises(dlog.ConfigError, match=r"/nowhere.* cannot be read"):
        NamedLog(uri, "log", 2000, options).tail()


def test_a_read_only_query_writes_nothing_and_sees_what_was_written_before_each_request(
    uri: str, tmp_path: Path
) -> None:
    def everything() -> dict[Path, tuple[bytes, int]]:
        return {
            path: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
            for path in (tmp_path, *tmp_path.rglob("*"))
        }

    def written(*payloads: bytes) -> None:
        with (
            dlog.blocking.open_namespace(uri) as writing,
            writing.open_writer("log", create=True) as writer,
        ):
            writer.append_many(payloads)

    def found() -> list[bytes]:
        given = {"uri": uri, "stream": "log", "readOnly": "true"}
        options = parse_options(given, streaming=False)
        reader = batch_reader(NamedStreams(uri, options.selection, 2000, options.client), given)
        return payloads(reader, list(reader.partitions()))

    written(b"first", b"second")
    before = everything()
    assert found() == [b"first", b"second"]
    assert everything() == before
    assert not client._opened
    written(b"third")
    assert found() == [b"first", b"second", b"third"]
