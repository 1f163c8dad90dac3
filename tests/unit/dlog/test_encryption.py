"""Encrypted payloads: attacks on what is stored, rotation, wrong keys, and logs end to end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from pathlib import Path

import attrs
import pytest

import dlog
import dlog.blocking
from dlog.cli.main import main
from dlog.encryption import (
    KEY_ID_BYTES_MAX,
    OVERHEAD_BYTES_MAX,
    KeyFile,
    KeyProvider,
    PayloadOpener,
    PayloadSealer,
    load_key_provider,
)
from dlog.read.log_reader import open_log_reader
from ledger.metadata_store.errors import ConnectionLostError
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.dict_namespace import CONFIG, open_on, read_all, write_segments
from tests.fakes.log_by_hand import entries_of, open_log

HERE = dlog.DLSN(1, 2, 3)
OLD, NEW = bytes(range(32)), bytes(range(32, 64))


class Keys:
    """A provider in memory."""

    def __init__(self, **keys: bytes) -> None:
        self.keys = keys

    def current(self) -> tuple[str, bytes]:
        return list(self.keys.items())[-1]

    def key(self, key_id: str) -> bytes:
        return self.keys[key_id]


def config(keys: KeyProvider | None) -> dlog.NamespaceConfig:
    return dlog.NamespaceConfig(
        writer=dlog.WriterConfig(encryption=keys), reader=dlog.ReaderConfig(encryption=keys)
    )


@asynccontextmanager
async def writing(uri: str, keys: KeyProvider | None) -> AsyncIterator[dlog.LogWriter]:
    async with (
        dlog.open_namespace(uri, config=config(keys)) as namespace,
        namespace.open_writer("orders", create=True) as writer,
    ):
        yield writer


@asynccontextmanager
async def reading(
    uri: str, keys: KeyProvider | None, start: dlog.DLSN | int | dlog.Start = dlog.EARLIEST
) -> AsyncIterator[dlog.LogReader]:
    async with (
        dlog.open_namespace(uri, config=config(keys)) as namespace,
        namespace.open_reader("orders", start=start, follow=False) as reader,
    ):
        yield reader


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f"# ours\n2025 {OLD.hex()}\n")
    return path


# Bytes


@pytest.mark.parametrize("payload", [b"", b"hello", bytes(100_000)])
def test_a_payload_comes_back_and_is_not_to_be_seen(payload: bytes) -> None:
    sealer, opener = PayloadSealer("orders", Keys(a=OLD)), PayloadOpener("orders", Keys(a=OLD))
    stored = sealer.seal(payload, 7)
    assert len(stored) <= len(payload) + OVERHEAD_BYTES_MAX
    assert stored[:6] == b"DLE\x01\x01a"
    assert not payload or payload[:50] not in stored
    assert opener.open(stored, 7, HERE) == payload


def test_the_longest_key_id_stays_within_the_overhead() -> None:
    name = "k" * KEY_ID_BYTES_MAX
    assert len(PayloadSealer("orders", Keys(**{name: OLD})).seal(b"", 0)) == OVERHEAD_BYTES_MAX


def test_equal_payloads_are_stored_differently_by_one_writer_and_by_two() -> None:
    first, second = PayloadSealer("orders", Keys(a=OLD)), PayloadSealer("orders", Keys(a=OLD))
    stored = [sealer.seal(b"same", 1) for sealer in (first, first, second, second)]
    assert len(set(stored)) == 4
    assert len({each[6:30] for each in stored}) == 4, "salt and counter never repeat"


def test_a_payload_is_bound_to_its_log_and_transaction_id() -> None:
    stored = PayloadSealer("orders", Keys(a=OLD)).seal(b"pay 5", 7)
    for log, txid in (("invoices", 7), ("orders", 8)):
        with pytest.raises(dlog.DecryptionError, match="moved from another log or transaction id"):
            PayloadOpener(log, Keys(a=OLD)).open(stored, txid, HERE)


def test_every_changed_byte_is_found() -> None:
    opener = PayloadOpener("orders", Keys(a=OLD))
    stored = PayloadSealer("orders", Keys(a=OLD)).seal(b"hello", 7)
    for at in range(len(stored)):
        changed = bytearray(stored)
        changed[at] ^= 1
        with pytest.raises((dlog.DecryptionError, dlog.EncryptionKeyError)):
            opener.open(bytes(changed), 7, HERE)
    for end in range(len(stored)):
        with pytest.raises(dlog.DecryptionError):
            opener.open(stored[:end], 7, HERE)


def test_errors_name_the_key_and_never_show_it() -> None:
    stored = PayloadSealer("orders", Keys(a=OLD)).seal(b"hello", 7)
    with pytest.raises(dlog.DecryptionError, match="key 'a'") as wrong:
        PayloadOpener("orders", Keys(a=NEW)).open(stored, 7, HERE)
    assert (wrong.value.key_id, wrong.value.dlsn, wrong.value.log) == ("a", HERE, "orders")
    with pytest.raises(dlog.EncryptionKeyError, match="no key with this id") as missing:
        PayloadOpener("orders", Keys(b=NEW)).open(stored, 7, HERE)
    assert missing.value.key_id == "a"
    with pytest.raises(dlog.EncryptionKeyError, match="the key has 5 bytes") as short:
        PayloadSealer("orders", Keys(a=b"short"))
    for error in (wrong, missing, short):
        text = f"{error.value} {error.value!r}"
        for key in (OLD, NEW, b"short"):
            assert key.hex() not in text
            assert repr(key)[2:-1] not in text


def test_a_reader_keeps_a_bounded_number_of_derived_keys() -> None:
    keys = Keys(a=OLD)
    opener = PayloadOpener("orders", keys)
    stored = [PayloadSealer("orders", keys).seal(b"%d" % n, 1) for n in range(100)]
    assert [opener.open(each, 1, HERE) for each in stored] == [b"%d" % n for n in range(100)]
    assert len(opener._ciphers) == 64
    assert opener.open(stored[0], 1, HERE) == b"0"


# Key files and other providers


def test_a_key_file_gives_its_last_key_and_all_others(key_file: Path) -> None:
    keys = KeyFile(key_file)
    assert keys.current() == ("2025", OLD)
    with key_file.open("a") as file:
        file.write("2026 ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=\n")
    assert keys.key("2026") == NEW, "a running reader finds a new key"
    assert keys.current() == ("2026", NEW)
    assert keys.key("2025") == OLD
    assert OLD.hex() not in repr(keys)
    with pytest.raises(KeyError):
        keys.key("1999")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no key"),
        ("# nothing\n", "has no key"),
        ("2025\n", "line 1: expected an id"),
        (f"2025 {OLD.hex()}00\n", "line 1: expected an id"),
        (f"2025 {OLD.hex()} more\n", "line 1: expected an id"),
        (f"a {OLD.hex()}\na {NEW.hex()}\n", "line 2: a second key 'a'"),
        (f"{'k' * 65} {OLD.hex()}\n", "1 to 64 bytes"),
    ],
)
def test_a_key_file_that_does_not_parse_is_refused_without_a_key_in_the_error(
    key_file: Path, text: str, reason: str
) -> None:
    key_file.write_text(text)
    with pytest.raises(dlog.ConfigError, match=reason) as caught:
        KeyFile(key_file)
    assert OLD.hex() not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_file_that_others_may_read_is_refused(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(dlog.ConfigError, match="chmod 600"):
        KeyFile(key_file)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(dlog.ConfigError, match="cannot be read"):
        KeyFile(tmp_path / "none")


def test_providers_are_named_by_text(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_key_provider(f"file:{key_file}").current() == ("2025", OLD)
    with pytest.raises(dlog.ConfigError, match="no key provider 'vault'"):
        load_key_provider("vault:secret/dlog")
    point = EntryPoint("vault", "tests.unit.dlog.test_encryption:from_vault", "dlog.key_providers")
    monkeypatch.setattr("dlog.encryption.entry_points", lambda group: [point])
    assert load_key_provider("vault:secret/dlog").current() == ("secret/dlog", NEW)
    broken = EntryPoint("vault", "builtins:str", "dlog.key_providers")
    monkeypatch.setattr("dlog.encryption.entry_points", lambda group: [broken])
    with pytest.raises(dlog.ConfigError, match="no methods"):
        load_key_provider("vault:x")


def from_vault(argument: str) -> Keys:
    return Keys(**{argument: NEW})


# Logs


@pytest.mark.slow
async def test_a_log_is_encrypted_on_disk_and_rotation_keeps_it_readable(tmp_path: Path) -> None:
    uri = f"file://{tmp_path / 'log'}"
    secrets = [b"the secret %d" % n for n in range(6)]
    async with writing(uri, Keys(a=OLD)) as writer:
        await writer.append(secrets[0], txid=5)
        await writer.append_many(secrets[1:3], txids=[5, 6])
        await writer.submit(bytearray(secrets[3]), txid=9)
    async with dlog.open_namespace(uri, config=config(Keys(a=OLD, b=NEW))) as namespace:
        async with namespace.open_writer("orders") as writer:
            await writer.append_many(secrets[4:])
        async with namespace.open_reader("orders", follow=False) as reader:
            assert [record.payload async for record in reader] == secrets
        async with namespace.open_reader("orders", start=6, follow=False) as reader:
            assert [record.payload async for record in reader] == secrets[2:]
    async with dlog.open_namespace(uri) as namespace, namespace.open_reader("orders", follow=False) as reader:
        stored = [record.payload async for record in reader]
    assert [each[:6] for each in stored] == [b"DLE\x01\x01a"] * 4 + [b"DLE\x01\x01b"] * 2
    for file in (tmp_path / "log").rglob("*"):
        assert not file.is_file() or b"the secret" not in file.read_bytes()


@pytest.mark.slow
async def test_a_reader_stops_before_the_record_that_it_cannot_decrypt(tmp_path: Path) -> None:
    uri = f"file://{tmp_path / 'log'}"
    for keys in (Keys(a=OLD), Keys(a=OLD, b=NEW)):
        async with writing(uri, keys) as writer:
            await writer.append_many([b"1", b"2"])
    async with reading(uri, Keys(a=OLD)) as reader:
        assert [(await anext(reader)).payload for _ in range(2)] == [b"1", b"2"]
        for _ in range(2):
            with pytest.raises(dlog.EncryptionKeyError, match="'b'"):
                await anext(reader)
        position = reader.position
    async with reading(uri, Keys(a=OLD, b=NEW), position or dlog.EARLIEST) as reader:
        assert [record.payload async for record in reader] == [b"1", b"2"]


@pytest.mark.slow
async def test_a_plain_record_is_no_record_of_an_encrypted_log(tmp_path: Path) -> None:
    """Someone with access to the disk or the bookies writes a record without a key."""
    uri = f"file://{tmp_path / 'log'}"
    async with writing(uri, Keys(a=OLD)) as writer:
        await writer.append(b"good")
    async with dlog.open_namespace(uri) as namespace, namespace.open_writer("orders") as writer:
        await writer.append(b"forged")
    async with reading(uri, Keys(a=OLD)) as reader:
        assert (await anext(reader)).payload == b"good"
        with pytest.raises(dlog.DecryptionError, match="is not encrypted") as caught:
            await anext(reader)
    assert caught.value.dlsn == dlog.DLSN(2, 0, 0)


@pytest.mark.slow
async def test_limits_count_what_encryption_adds(tmp_path: Path) -> None:
    most = dlog.PAYLOAD_BYTES_MAX - OVERHEAD_BYTES_MAX
    async with writing(f"file://{tmp_path / 'log'}", Keys(a=OLD)) as writer:
        with pytest.raises(dlog.RecordTooLongError, match=str(most)):
            await writer.append(bytes(most + 1))
        with pytest.raises(dlog.RecordTooLongError, match=str(most)):
            await writer.append_many([bytes(most + 1)])
        await writer.append(bytes(most))


@pytest.mark.slow
async def test_a_writer_without_a_usable_key_is_not_opened(tmp_path: Path) -> None:
    async with dlog.open_namespace(
        f"file://{tmp_path / 'log'}", config=config(Keys(a=b"short"))
    ) as namespace:
        with pytest.raises(dlog.EncryptionKeyError):
            async with namespace.open_writer("orders", create=True):
                pass


@pytest.mark.slow
def test_the_blocking_api_encrypts_too(tmp_path: Path) -> None:
    uri = f"file://{tmp_path / 'log'}"
    with dlog.blocking.open_namespace(uri, config=config(Keys(a=OLD))) as namespace:
        with namespace.open_writer("orders", create=True) as writer:
            writer.append(b"secret")
        with namespace.open_reader("orders", follow=False) as reader:
            assert [record.payload for record in reader] == [b"secret"]


@pytest.mark.slow
def test_commands_take_a_key_file(
    tmp_path: Path, key_file: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    uri, lines = f"file://{tmp_path / 'log'}", tmp_path / "lines"
    lines.write_bytes(b"one\ntwo\n")
    with_keys = ["--uri", uri, "--key-file", str(key_file)]
    assert run_command("write", "orders", str(lines), "--create", *with_keys) == 0
    capfdbinary.readouterr()
    assert run_command("read", "orders", *with_keys) == 0
    assert capfdbinary.readouterr().out == b"one\ntwo\n"
    assert run_command("tail", "orders", "--from", "earliest", "--count", "1", *with_keys) == 0
    assert capfdbinary.readouterr().out == b"one\n"
    os.chmod(key_file, 0o644)
    assert run_command("read", "orders", *with_keys) == 2
    assert b"chmod 600" in capfdbinary.readouterr().err


def run_command(*arguments: str) -> int:
    try:
        return main(list(arguments)) or 0
    except SystemExit as exc:
        return int(exc.code or 0)


async def test_a_reader_that_opens_while_the_store_is_away_waits_for_the_name_of_its_key(
    autojump_clock: object,
) -> None:
    keys = Keys(a=OLD)
    secret = attrs.evolve(
        CONFIG,
        writer=attrs.evolve(CONFIG.writer, encryption=keys),
        reader=attrs.evolve(CONFIG.reader, encryption=keys),
    )
    async with open_cluster() as cluster, open_on(cluster, config=secret) as opened:
        await write_segments(opened.namespace, "log", 1)
        losses = [1, 2, 3]

        async def lose(_kind: str, path: str) -> None:
            if path.endswith("/dlog-origin") and losses:
                losses.pop()
                raise ConnectionLostError(path, "for a moment")

        opened.store.before = lose
        assert await read_all(opened.namespace, "log") == [b"0"]
        assert not losses


async def test_the_error_is_raised_again_and_the_position_stays(autojump_clock: object) -> None:
    async with open_log() as log:
        await log.begin(1, 10, entries_of(0, 3), lac=2)
        opened = dlog.ReaderConfig(encryption=Keys(a=OLD))
        async with open_log_reader(log.read_only, opened, start=dlog.EARLIEST, follow=False) as reader:
            for _ in range(3):
                with pytest.raises(dlog.DecryptionError, match="not encrypted"):
                    await anext(reader)
                assert reader.position == dlog.DLSN(1, 0, 0)
