"""Keys and headers of records, from a writer to a reader: each way to append, failures, encryption."""

# covers: dlog/format/attributes.py

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

import dlog
import dlog.aio
import dlog.blocking
from dlog import PAYLOAD_BYTES_MAX
from dlog.cli.main import main
from dlog.encryption import PayloadOpener, PayloadSealer
from dlog.errors import ConfigError, DecryptionError, RecordTooLongError, TxidReusedError
from dlog.format.attributes import encode_attributes
from dlog.format.record import Record, RecordWithAttributes, RecordWithSealedAttributes
from dlog.write.batcher import Batcher
from dlog.write.segment_writer import SegmentWriter

Attributes = tuple[bytes | None, dict[str, bytes]]
Found = tuple[bytes, bytes | None, dict[str, bytes]]
HERE = dlog.DLSN(1, 0, 0)


class OneKey:
    def current(self) -> tuple[str, bytes]:
        return "2026", bytes(32)

    def key(self, key_id: str) -> bytes:
        return bytes(32)


ENCRYPTED = dlog.NamespaceConfig(
    writer=dlog.WriterConfig(encryption=OneKey(), hash_chain=True, record_bytes_max=8 * 2**20),
    reader=dlog.ReaderConfig(encryption=OneKey()),
)


async def read(namespace: dlog.Namespace, **options: Any) -> list[Found]:
    async with namespace.open_reader("log", follow=False, **options) as reader:
        return [(each.payload, each.key, dict(each.headers)) async for each in reader]


@pytest.mark.parametrize("config", [dlog.NamespaceConfig(), ENCRYPTED], ids=["clear", "encrypted"])
async def test_every_way_to_append_keeps_key_and_headers(
    tmp_path: Path, config: dlog.NamespaceConfig
) -> None:
    one: dict[str, bytes] = {"b": b"1", "a": b"2"}
    async with dlog.open_namespace(f"file://{tmp_path}", config=config) as namespace:
        async with namespace.open_writer("log", create=True) as log:
            await log.append(b"0", txid=1, key=b"k0", headers=one)
            await log.append(b"1", txid=2)
            await log.submit(b"2", txid=3, key=b"", headers={})
            dlsn = await log.append_once(b"3", txid=4, headers=one)
            assert await log.append_once(b"3", txid=4, headers=one) == dlsn
            for other in (None, {"b": b"1"}):
                with pytest.raises(TxidReusedError):
                    await log.append_once(b"3", txid=4, headers=other)
            dlsn = await log.append_after(b"4", dlsn, key=b"k4")
            await log.append_many([b"5", b"6"], keys=[None, b"k6"], headers=[one, None])
            *_, dlsn = await log.append_many([b"7", b"8"], atomic=True, keys=[b"k7", None])
            await log.append_many_after([b"9"], dlsn, headers=[one])
            with pytest.raises(ValueError, match="one key"):
                await log.append_many([b"x", b"y"], keys=[b"k"])
        expected: list[Attributes] = [
            (b"k0", one),
            (None, {}),
            (b"", {}),
            (None, one),
            (b"k4", {}),
            (None, one),
            (b"k6", {}),
            (b"k7", {}),
            (None, {}),
            (None, one),
        ]
        found = [(str(at).encode(), *each) for at, each in enumerate(expected)]
        assert await read(namespace) == found
        assert list((await read(namespace))[0][2]) == ["b", "a"], "their order"
        assert await read(namespace, start=4) == found[3:]
        async with namespace.open_reader("log", follow=False) as reader:
            batch = await reader.read_batch(100)
        assert batch is not None
        assert [(each.key, dict(each.headers)) for each in batch] == expected
        assert [(each.key, dict(each.headers)) for each in batch[3:7]] == expected[3:7]
        assert batch[0].key == b"k0"
        assert (await namespace.repair.verify("log")).problem is None


def test_the_faces_without_trio_take_key_and_headers(tmp_path: Path) -> None:
    with dlog.blocking.open_namespace(f"file://{tmp_path}/1") as blocking:
        with blocking.open_writer("log", create=True) as log:
            log.append(b"0", key=b"k", headers={"a": b"1"})
            log.submit(b"1", headers={"a": bytearray(b"2")}).result()
            log.append_many([b"2"], keys=[b"k"], headers=[{"a": b"3"}])
        with blocking.open_reader("log", follow=False) as reader:
            found = [(each.key, dict(each.headers)) for each in reader]
    assert found == [(b"k", {"a": b"1"}), (None, {"a": b"2"}), (b"k", {"a": b"3"})]

    async def in_asyncio() -> list[tuple[bytes | None, dict[str, bytes]]]:
        async with dlog.aio.open_namespace(f"file://{tmp_path}/2") as namespace:
            async with namespace.open_writer("log", create=True) as log:
                await log.append(b"0", key=b"k", headers={"a": b"1"})
                await log.submit(b"1", headers={"a": b"2"})
                await log.append_many([b"2"], keys=[b"k"], headers=[{"a": b"3"}])
            async with namespace.open_reader("log", follow=False) as reader:
                return [(each.key, dict(each.headers)) async for each in reader]

    assert asyncio.run(in_asyncio()) == found


async def test_a_namespace_shared_with_java_refuses_them_unless_chosen(tmp_path: Path) -> None:
    shared = dlog.NamespaceConfig(shared_with_java=True)
    async with dlog.open_namespace(f"file://{tmp_path}", config=shared) as namespace:
        async with namespace.open_writer("log", create=True) as log:
            with pytest.raises(ConfigError, match="keys_and_headers=True"):
                await log.append(b"0", key=b"k")
            with pytest.raises(ConfigError):
                log.submit(b"0", headers={"a": b""})
            await log.append(b"0", headers={})
        chosen = dlog.WriterConfig(keys_and_headers=True)
        async with namespace.open_writer("log", config=chosen) as log:
            await log.append(b"1", key=b"k")
        assert await read(namespace) == [(b"0", None, {}), (b"1", b"k", {})]


async def test_a_record_and_its_attributes_share_the_limits_of_records_and_entries(tmp_path: Path) -> None:
    config = dlog.WriterConfig(entry_bytes_target=2**20 - 5000, hash_chain=True)
    async with dlog.open_namespace(f"file://{tmp_path}") as namespace:
        async with namespace.open_writer("log", create=True, config=config) as log:
            room = PAYLOAD_BYTES_MAX - len(encode_attributes(b"k" * 30_000, None) or b"")
            with pytest.raises(RecordTooLongError):
                await log.append(bytes(room + 1), key=b"k" * 30_000)
            await log.append(bytes(room), key=b"k" * 30_000)
            await log.append_many([b""] * 100, keys=[b"k" * 30_000] * 100)
            pending = [log.submit(bytes(500_000), key=bytes(20_000)) for _ in range(4)]
            for each in pending:
                await each
            with pytest.raises(dlog.BatchTooLongError):
                await log.append_many([b""] * 35, keys=[b"k" * 30_000] * 35, atomic=True)
            await log.append_many([b""] * 34, keys=[b"k" * 30_000] * 34, atomic=True)
        assert [len(key or b"") for _, key, _ in await read(namespace)] == [30_000] * 101 + [20_000] * 4 + [
            30_000
        ] * 34


@pytest.mark.parametrize("config", [dlog.NamespaceConfig(), ENCRYPTED], ids=["clear", "encrypted"])
async def test_a_large_record_keeps_key_and_headers(tmp_path: Path, config: dlog.NamespaceConfig) -> None:
    payloads = [random.Random(1).randbytes(size) for size in (PAYLOAD_BYTES_MAX - 5, 2 * PAYLOAD_BYTES_MAX)]
    writer = dlog.WriterConfig(record_bytes_max=8 * 2**20)
    async with dlog.open_namespace(f"file://{tmp_path}", config=config) as namespace:
        async with namespace.open_writer("log", create=True, config=writer) as log:
            dlsns = [
                await log.append(each, txid=txid, key=b"k" * 20_000) for txid, each in enumerate(payloads, 1)
            ]
            assert await log.append_once(payloads[1], txid=2, key=b"k" * 20_000) == dlsns[1]
        assert await read(namespace) == [(each, b"k" * 20_000, {}) for each in payloads]
        assert await read(namespace, start=dlsns[1]) == [(payloads[1], b"k" * 20_000, {})]


def sealed(payload: bytes, attributes: bytes | None) -> Record:
    sealer = PayloadSealer("log", OneKey())
    if attributes is None:
        return Record(HERE, 1, sealer.seal(payload, 1), 0)
    stored, other = sealer.seal_with_attributes(payload, 1, attributes)
    return RecordWithSealedAttributes(HERE, 1, stored, 0, other)


def test_attributes_that_were_moved_changed_added_or_dropped_do_not_decrypt() -> None:
    opener = PayloadOpener("log", OneKey())
    key = encode_attributes(b"k", None)
    assert key is not None
    one, other, plain = sealed(b"one", key), sealed(b"other", key), sealed(b"plain", None)
    assert isinstance(one, RecordWithSealedAttributes)
    assert isinstance(other, RecordWithSealedAttributes)
    assert opener.open_record(one) == RecordWithAttributes(HERE, 1, b"one", 0, b"k", ())
    changed = one.sealed[:-1] + bytes((one.sealed[-1] ^ 1,))
    attacks = [
        RecordWithSealedAttributes(HERE, 1, one.payload, 0, other.sealed),
        RecordWithSealedAttributes(HERE, 1, one.payload, 0, changed),
        RecordWithSealedAttributes(HERE, 1, plain.payload, 0, one.sealed),
        RecordWithSealedAttributes(HERE, 1, one.sealed, 0, one.payload),
        RecordWithAttributes(HERE, 1, plain.payload, 0, b"k", ()),
        RecordWithAttributes(HERE, 1, one.payload, 0, b"k", ()),
        Record(HERE, 1, one.payload, 0),
        Record(HERE, 1, one.sealed, 0),
    ]
    for attack in attacks:
        with pytest.raises(DecryptionError):
            opener.open_record(attack)


def stored_in(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in path.rglob("*") if each.is_file())


async def test_a_reader_without_the_keys_gets_neither_key_nor_headers(tmp_path: Path) -> None:
    async with (
        dlog.open_namespace(f"file://{tmp_path}", config=ENCRYPTED) as namespace,
        namespace.open_writer("log", create=True) as log,
    ):
        await log.append(b"payload", key=b"secret key", headers={"secret name": b"secret value"})
    assert b"secret" not in stored_in(tmp_path)
    async with dlog.open_namespace(f"file://{tmp_path}") as namespace:
        ((payload, key, headers),) = await read(namespace)
    assert (key, headers) == (None, {})
    assert payload.startswith(b"DLE")


async def test_a_detached_segment_keeps_keys_and_headers(tmp_path: Path) -> None:
    large = 2 * PAYLOAD_BYTES_MAX
    config = dlog.NamespaceConfig(writer=dlog.WriterConfig(record_bytes_max=8 * 2**20))
    async with dlog.open_namespace(f"file://{tmp_path}", config=config) as namespace:
        await namespace.create_log("log")
        plan = await namespace.batches.begin(["log"])
        assert plan is not None
        async with namespace.batches.open_segment(plan, "log") as segment:
            with pytest.raises(ValueError, match="one key"):
                await segment.append_many([b"0"], keys=[])
            await segment.append_many([b"0", b"1"], keys=[None, b"k1"], headers=[{"a": b"0"}, None])
            await segment.append_many([b"2", bytes(large)], keys=[None, b"k3"])
            await segment.append_many([b"4"])
        assert segment.result is not None
        await namespace.batches.attach(plan, [segment.result])
        assert await read(namespace) == [
            (b"0", None, {"a": b"0"}),
            (b"1", b"k1", {}),
            (b"2", None, {}),
            (bytes(large), b"k3", {}),
            (b"4", None, {}),
        ]
        async with namespace.open_reader("log", follow=False) as reader:
            batch = dlog.RecordBatch.joined([each async for each in reader.batches()])
    assert batch.has_attributes
    assert batch.keys() == [None, b"k1", None, b"k3", None]
    assert [dict(each) for each in batch.headers()] == [{"a": b"0"}, {}, {}, {}, {}]
    assert not batch[4:].has_attributes


async def test_a_detached_segment_of_a_shared_namespace_refuses_them_unless_chosen(tmp_path: Path) -> None:
    config = dlog.NamespaceConfig(shared_with_java=True)
    async with dlog.open_namespace(f"file://{tmp_path}", config=config) as namespace:
        await namespace.create_log("log")
        plan = await namespace.batches.begin(["log"])
        assert plan is not None
        async with namespace.batches.open_segment(plan, "log") as segment:
            with pytest.raises(ConfigError, match="keys_and_headers=True"):
                await segment.append_many([b"0"], keys=[b"k"])


def test_the_command_line_writes_and_prints_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\ntwo\n")
    uri = f"file://{tmp_path}/log"
    options = ["--key", "k", "--header", "a=1=2", "--header", "b=", "--create", "--uri", uri]
    assert main(["write", "log", str(lines), *options]) in (0, None)
    assert main(["read", "log", "--json", "--uri", uri]) in (0, None)
    documents = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert [(each["payload"], each["key"], each["headers"]) for each in documents] == [
        (payload, "k", [{"name": "a", "value": "1=2"}, {"name": "b", "value": ""}])
        for payload in ("one", "two")
    ]


def test_records_that_a_failed_segment_does_not_hold_keep_theirs_in_the_next_one() -> None:
    batcher = Batcher(entry_bytes_target=1000)
    attributes = encode_attributes(b"k", {"a": b"1"})
    assert attributes is not None
    batcher.add(b"without", 1)
    batcher.add_with(b"with", 2, attributes)
    first, second = (SegmentWriter(seqno, 7, 1, dlog.Compression.NONE) for seqno in (1, 2))
    batch = batcher.take(idle=True)
    assert batch is not None
    entry = first.encode(batch)
    assert attributes in entry
    first.sent(batch, 0, len(entry))
    _, left = first.resolve(-1)
    batcher.put_back(left)
    again = batcher.take(idle=True)
    assert again is batch
    assert second.encode(again) == entry
