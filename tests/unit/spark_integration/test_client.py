"""The client on an embedded log: truncation, and a namespace whose session has ended."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dlog
import dlog.blocking
from dlog.encryption import KeyFile
from namespace.store import SessionState
from spark_integration import client
from spark_integration.batch import DlogBatchReader, RangePartition
from spark_integration.client import NamedLog, namespace
from spark_integration.offsets import BEFORE_EVERYTHING, Position
from spark_integration.options import SecurityFiles, parse_options
from spark_integration.planning import Range

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


def batch_reader(uri: str, **options: str) -> DlogBatchReader:
    given = {"uri": uri, "stream": "log", **options}
    return DlogBatchReader(parse_options(given, streaming=False), NamedLog(uri, "log", 2000))


def payloads(reader: DlogBatchReader, partitions: list[RangePartition]) -> list[bytes]:
    return [
        payload
        for partition in partitions
        for batch in reader.read(partition)
        for payload in batch.column("payload").to_pylist()
    ]


def lose(uri: str) -> dlog.blocking.Namespace:
    """End this process's session with the store, as it may happen between two tasks of a kept worker."""
    lost = namespace(uri)
    lost._loop.call_soon(lost._namespace._store._session.change_state, SessionState.EXPIRED)  # type: ignore[attr-defined]
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

    def unreachable(uri: str, config: dlog.NamespaceConfig) -> dlog.blocking.Namespace:
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
    assert batch_reader(uri).partitions() == []


def test_a_log_without_segments_has_nothing_to_read(uri: str) -> None:
    namespace(uri).create_log("log")
    log = NamedLog(uri, "log", 2000)
    assert (log.earliest(), log.tail()) == (BEFORE_EVERYTHING, BEFORE_EVERYTHING)
    assert batch_reader(uri).partitions() == []


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
    reader = batch_reader(uri, minPartitions="3")
    before = reader.partitions()
    assert payloads(reader, before) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    truncate(uri, first_kept)
    with pytest.raises(dlog.LogTruncatedError):
        payloads(reader, before)
    after = reader.partitions()
    assert payloads(reader, after) == left


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

    def read(files: SecurityFiles) -> list[bytes]:
        return payloads(
            DlogBatchReader(
                parse_options({"uri": uri, "stream": "log"}, streaming=False),
                NamedLog(uri, "log", 2000, files),
            ),
            batch_reader(uri).partitions(),
        )

    assert read(SecurityFiles(keys=str(keys))) == [b"secret"]
    (stored,) = read(SecurityFiles())
    assert b"secret" not in stored
    other = key_file(tmp_path, "others", bytes(32))
    with pytest.raises(dlog.DecryptionError) as wrong:
        read(SecurityFiles(keys=str(other)))
    assert bytes(32).hex() not in str(wrong.value)


def test_the_objects_that_spark_sends_hold_names_of_files_and_no_secret(uri: str, tmp_path: Path) -> None:
    key = bytes(range(32))
    keys = key_file(tmp_path, "keys", key)
    options = parse_options({"uri": uri, "stream": "log", "keyFile": str(keys)}, streaming=False)
    log = NamedLog(uri, "log", 2000, options.files)
    namespace(uri).create_log("log")
    log.tail()
    sent = pickle.dumps(DlogBatchReader(options, log))
    assert str(keys).encode() in sent
    assert key not in sent
    assert key.hex().encode() not in sent
    assert key.hex() not in f"{options!r} {log!r}"


@pytest.mark.parametrize("option", ["keys", "bookies"])
def test_a_file_that_cannot_be_read_is_named(uri: str, option: str) -> None:
    with pytest.raises(dlog.ConfigError, match=r"/nowhere.* cannot be read"):
        NamedLog(uri, "log", 2000, SecurityFiles(**{option: "/nowhere"})).tail()
