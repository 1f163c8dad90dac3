"""The hash chain and ``verify``: what an attacker with the disk can do to a log, and what is found."""

# covers: dlog/cli/logs/verify.py
# covers: dlog/format/hash_chain.py
# covers: dlog/read/chain_end.py
# covers: dlog/read/verifier.py

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
from crc32c import crc32c

import dlog
import dlog.blocking
from dlog.cli.main import main
from dlog.format.compression import Compression
from dlog.format.envelope import open_envelope, seal_envelope
from dlog.format.hash_chain import (
    CHAIN_RECORD_BYTES,
    ChainValue,
    chain_start,
    chain_value_in,
    encode_chain_record,
    parse_head,
)
from dlog.format.record import decode_records, encode_records
from dlog.read.verifier import LogVerification, verify_log
from dlog.write.batcher import Batch
from dlog.write.segment_lifecycle import SegmentLifecycle
from dlog.write.segment_writer import SegmentWriter
from namespace.dlsn import DLSN
from namespace.segments.segment import TruncationStatus
from tests.fakes.log_by_hand import LOG, Log, open_log

CHAINED = dlog.WriterConfig(hash_chain=True)


def batch(*payloads: bytes, txid: int = 5) -> Batch:
    found = Batch()
    found.payloads, found.txids = list(payloads), [txid] * len(payloads)
    return found


def chained_entries(
    payloads: list[bytes],
    *,
    seqno: int = 1,
    chain: ChainValue | None = None,
    codec: Compression = Compression.NONE,
) -> list[bytes]:
    """A segment's entries as a writer sends them: two records each, then a control record."""
    writer = SegmentWriter(seqno, 10, 0, codec, chain or chain_start(LOG))
    entries: list[bytes] = []
    for at in range(0, len(payloads) + 1, 2):
        each = batch(*payloads[at : at + 2])
        entries.append(writer.encode(each))
        writer.sent(each, len(entries) - 1, 100)
    writer.confirmed(len(entries) - 1)
    assert writer.durable_chain is not None
    assert value_of(entries[-1]) == writer.durable_chain
    return entries


def value_of(entry: bytes) -> ChainValue | None:
    return chain_value_in(*open_envelope(entry))


@asynccontextmanager
async def closed_log(entries: list[bytes], count: int) -> AsyncIterator[Log]:
    async with open_log() as log:
        await log.complete(await log.begin(1, 10, entries, lac=len(entries) - 1), count)
        yield log


async def verified(entries: list[bytes], count: int, expect_head: str | None = None) -> LogVerification:
    async with closed_log(entries, count) as log:
        return await verify_log(log.read_only, expect_head)


PAYLOADS = [b"pay %d" % n for n in range(8)]


@pytest.mark.parametrize("codec", list(Compression))
async def test_an_untouched_log_is_sound_and_its_records_are_read_as_ever(codec: Compression) -> None:
    entries = chained_entries([each * 20 for each in PAYLOADS], codec=codec)
    async with closed_log(entries, 8) as log:
        found = await verify_log(log.read_only)
        async with log.reader(follow=False) as reader:
            assert [record.payload async for record in reader] == [each * 20 for each in PAYLOADS]
    assert found.is_sound
    assert (found.records, found.chained_records, found.entries) == (8, 8, 5)
    assert found.head == str(value_of(entries[-1]))


# Attacks. The attacker recomputes digests and checksums; the entries here are behind them.


def change_a_byte(entries: list[bytes]) -> None:
    entries[1] = entries[1].replace(b"pay 2", b"pay 9")


def drop_a_record(entries: list[bytes]) -> None:
    """The entry keeps its chain record; positions after it are written again."""
    body, start, stop = open_envelope(entries[1])
    _, (_, position, txid, kept), _ = decode_records(body, start, stop)
    entries[1] = seal_envelope(encode_records([kept], [txid], position - 1) + body[-CHAIN_RECORD_BYTES:])


def reorder_records(entries: list[bytes]) -> None:
    body, start, stop = open_envelope(entries[1])
    first, second, _ = decode_records(body, start, stop)
    swapped = encode_records([second[3], first[3]], [first[2], second[2]], first[1])
    entries[1] = seal_envelope(swapped + body[-CHAIN_RECORD_BYTES:])


def swap_entries(entries: list[bytes]) -> None:
    entries[1], entries[2] = entries[2], entries[1]


def drop_an_entry(entries: list[bytes]) -> None:
    del entries[1]


def strip_the_chain(entries: list[bytes]) -> None:
    """From here on as a writer without a chain would write."""
    for at in range(1, len(entries)):
        body, start, stop = open_envelope(entries[at])
        entries[at] = seal_envelope(body[start : stop - CHAIN_RECORD_BYTES])


@pytest.mark.parametrize(
    "attack",
    [change_a_byte, drop_a_record, reorder_records, swap_entries, drop_an_entry, strip_the_chain],
)
@pytest.mark.parametrize("check_positions", [True, False])
async def test_an_attack_is_found_at_its_entry(
    attack: Callable[[list[bytes]], None], check_positions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without the check of positions: an attacker can write them as they should be."""
    entries = chained_entries(PAYLOADS)
    head = str(value_of(entries[-1]))
    assert (await verified(entries, 8, head)).is_sound
    attack(entries)
    if not check_positions:
        monkeypatch.setattr("dlog.read.segment_reader.SegmentReader._gap", lambda *arguments: None)
    found = await verified(entries, 8)
    assert found.problem is not None
    assert found.problem.dlsn == DLSN(1, 1, 0)
    if not check_positions:
        assert "chain" in found.problem.evidence


async def test_a_log_cut_short_with_its_metadata_is_found_by_the_head() -> None:
    entries = chained_entries(PAYLOADS)
    head = str(value_of(entries[-1]))
    cut = entries[:2]
    assert (await verified(cut, 4)).is_sound, "nothing inside the log says that it was longer"
    found = await verified(cut, 4, head)
    assert found.problem is not None
    assert f"does not hold the expected head {head}" in found.problem.evidence


async def test_a_chain_written_again_is_found_by_the_head() -> None:
    head = str(value_of(chained_entries(PAYLOADS)[-1]))
    forged = chained_entries([b"pay 9", *PAYLOADS[1:]])
    assert (await verified(forged, 8)).is_sound, "anyone can compute a chain"
    found = await verified(forged, 8, head)
    assert found.problem is not None
    assert "the chain was written again" in found.problem.evidence


async def test_a_head_noted_early_holds_for_a_log_that_has_grown() -> None:
    entries = chained_entries(PAYLOADS)
    for entry in entries:
        assert (await verified(entries, 8, str(value_of(entry)))).is_sound


async def test_metadata_that_counts_other_records_is_found() -> None:
    found = await verified(chained_entries(PAYLOADS), 9)
    assert found.problem is not None
    assert "counts 9 records, the ledger has 8" in found.problem.evidence


async def test_txids_that_decrease_are_found_without_a_chain() -> None:
    entry = seal_envelope(encode_records([b"a", b"b"], [7, 6], 1))
    found = await verified([entry], 2)
    assert found.problem is not None
    assert (found.problem.dlsn, found.problem.evidence) == (DLSN(1, 0, 1), "txid 6 after txid 7")


async def test_the_chain_goes_on_over_segments_and_after_truncation_begins_at_what_is_left() -> None:
    first = chained_entries(PAYLOADS)
    second = chained_entries(PAYLOADS, seqno=2, chain=value_of(first[-1]))
    async with open_log() as log:
        done = await log.complete(await log.begin(1, 10, first, lac=4), 8)
        await log.complete(await log.begin(2, 20, second, lac=4), 8, start=8)
        found = await verify_log(log.read_only)
        assert found.is_sound
        assert (found.chained_records, found.records_before) == (16, 0)
        await log.remove(done)
        found = await verify_log(log.read_only, str(value_of(second[0])))
        assert found.is_sound
        assert (found.chained_records, found.records_before) == (8, 8)
        found = await verify_log(log.read_only, str(value_of(first[1])))
        assert found.problem is not None
        assert "before the first record that is left" in found.problem.evidence


@pytest.mark.parametrize("first_left", [1, 3, 4, 5])
async def test_a_segment_truncated_in_part_is_checked_from_what_is_left(first_left: int) -> None:
    entries = chained_entries(PAYLOADS)
    async with open_log() as log:
        done = await log.complete(await log.begin(1, 10, entries, lac=4), 8)
        await log.remove(done)
        partly = attrs.evolve(
            done, truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_active_entry_id=first_left
        )
        await log.put(partly)
        found = await verify_log(log.read_only)
        assert found.problem is None
        assert found.entries == 5 - first_left
        assert found.records_before == (2 * first_left if first_left < 5 else 0)
        entries[3] = entries[3].replace(b"pay 6", b"pay 9")
        log.ledgers[10].entries = entries
        found = await verify_log(log.read_only)
        assert found.is_sound == (first_left >= 3), "the first entry left is believed: nothing is before it"


async def test_records_missing_at_the_front_are_no_truncation() -> None:
    """The metadata says that the log begins here, and the chain says that records were before."""
    second = chained_entries(PAYLOADS, chain=ChainValue(8, bytes(32)))
    found = await verified(second, 8)
    assert found.problem is not None
    assert found.problem.dlsn == DLSN(1, 0, 0)


# Writers.


def test_a_segment_that_fails_hands_on_the_chain_of_what_is_durable() -> None:
    writer = SegmentWriter(1, 10, 0, Compression.NONE, chain_start(LOG))
    sent = [batch(b"%d" % n) for n in range(4)]
    entries = []
    for number, each in enumerate(sent):
        entries.append(writer.encode(each))
        writer.encode(each)  # a batch that the ledger did not take is encoded again
        writer.sent(each, number, 10)
    writer.confirmed(0)
    assert writer.durable_chain == value_of(entries[0])
    _, left = writer.resolve(1)
    assert left == sent[2:]
    assert writer.durable_chain == value_of(entries[1])


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
@pytest.mark.slow
async def test_the_chain_survives_restarts_rolls_and_large_records(
    tmp_path: Path, compression: Compression
) -> None:
    uri = f"file://{tmp_path / 'log'}"
    config = dlog.NamespaceConfig(
        compression=compression,
        writer=attrs.evolve(CHAINED, segment_bytes_max=3_000, entry_bytes_target=400),
    )
    heads: list[str] = []
    for start in range(3):
        async with dlog.open_namespace(uri, config=config) as namespace:
            async with namespace.open_writer("orders", create=True) as writer:
                for number in range(40):
                    await writer.append(b"%d %d" % (start, number) * 20)
                await writer.append_many([bytes(dlog.PAYLOAD_BYTES_MAX), b"small", b""])
            found = await namespace.repair.verify("orders")
            assert found.problem is None
            assert found.chained_records == found.records == 43 * (start + 1)
            heads.append(found.head or "")
    async with dlog.open_namespace(uri, config=config) as namespace:
        assert len(await namespace.segments("orders")) > 5
        for head in heads:
            assert (await namespace.repair.verify("orders", expect_head=head)).is_sound
        async with namespace.open_reader("orders", follow=False) as reader:
            assert [record.sequence_id async for record in reader] == list(range(129))


@pytest.mark.slow
async def test_a_log_remembers_that_it_has_a_chain(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path / 'log'}") as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"before the chain")
        async with namespace.open_writer("orders", config=CHAINED) as writer:
            await writer.append(b"in the chain")
        identity = await namespace.log_identity("orders")
        await namespace.rename_log("orders", "sold")
    async with dlog.open_namespace(f"file://{tmp_path / 'log'}") as namespace:
        async with namespace.open_writer("sold") as writer:
            await writer.append(b"in the chain, though this writer was not told")
            await writer.append(bytes(writer.payload_bytes_max))
        found = await namespace.repair.verify("sold")
        assert (found.is_sound, found.records, found.chained_records) == (True, 4, 3)
        assert await namespace.log_identity("sold") == identity


@pytest.mark.slow
async def test_records_of_a_writer_that_keeps_no_chain_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's writers keep none."""

    async def forget(lifecycle: SegmentLifecycle, wanted: bool) -> bool:
        return wanted

    async with dlog.open_namespace(f"file://{tmp_path / 'log'}") as namespace:
        async with namespace.open_writer("orders", create=True, config=CHAINED) as writer:
            await writer.append(b"in the chain")
        monkeypatch.setattr(SegmentLifecycle, "keep_chain", forget)
        async with namespace.open_writer("orders") as writer:
            await writer.append(b"without")
        found = await namespace.repair.verify("orders")
    assert found.problem is not None
    assert found.problem.evidence == "records without a hash chain behind records with one"


# The disk.


def flip_payload_in_entry_logs(directory: Path, old: bytes, new: bytes) -> int:
    """Replace bytes in the entry logs and journals, with digests that fit: CRC32C has no key."""
    changed = 0
    for path in (each for each in directory.rglob("*") if each.is_file() and each.suffix in (".log", ".txn")):
        data = bytearray(path.read_bytes())
        at = data.find(old)
        while at >= 0:
            # The envelope's header is 13 bytes in front of the first record, the digest 4 in front of that.
            body = at - 20
            digest = body - 13 - 4
            length = int.from_bytes(data[body - 4 : body], "big") + 13
            data[at : at + len(old)] = new
            end = body - 13 + length
            value = crc32c(data[body - 13 : end], crc32c(data[digest - 32 : digest]))
            data[digest : digest + 4] = value.to_bytes(4, "big")
            changed += 1
            at = data.find(old, at + 1)
        path.write_bytes(data)
    return changed


@pytest.mark.slow
def test_a_payload_changed_on_the_disk_with_a_new_digest_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"file://{tmp_path / 'log'}"
    config = dlog.NamespaceConfig(writer=CHAINED)
    with dlog.blocking.open_namespace(uri, config=config) as namespace:
        with namespace.open_writer("orders", create=True) as writer:
            writer.append(b"first")
            where = writer.append(b"pay 1 to Alice")
            writer.append(b"last")
        head = namespace.repair.verify("orders").head
    assert main(["verify", "orders", "--uri", uri, "--json", "--expect-head", head or ""]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["is_sound"], document["head"], document["records"]) == (True, head, 3)
    assert flip_payload_in_entry_logs(tmp_path / "log", b"pay 1 to Alice", b"pay 9 to Mally") >= 1
    with (
        dlog.blocking.open_namespace(uri) as namespace,
        namespace.open_reader("orders", follow=False) as reader,
    ):
        assert [record.payload for record in reader][1] == b"pay 9 to Mally", "no digest shows it"
    assert main(["verify", "orders", "--uri", uri, "--json"]) == 7
    document = json.loads(capsys.readouterr().out)
    assert document["problem"]["dlsn"] == f"{where.segment_seqno}:{where.entry_id}:0"
    assert "the hash chain does not match" in document["problem"]["evidence"]
    assert main(["verify", "orders", "--uri", uri]) == 7
    assert "the hash chain does not match" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_the_command_write_keeps_a_chain_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri, lines = f"file://{tmp_path / 'log'}", tmp_path / "lines"
    lines.write_bytes(b"one\ntwo\n")
    for _ in range(2):
        assert main(["write", "orders", str(lines), "--create", "--hash-chain", "--uri", uri]) == 0
    capsys.readouterr()
    assert main(["verify", "orders", "--uri", uri, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["records"], document["chained_records"]) == (4, 4)
    assert document["head"].startswith("4:")


def test_the_command_refuses_what_is_no_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "orders", "--uri", f"file://{tmp_path}", "--expect-head", "abc"]) == 2
    assert "COUNT:HEX" in capsys.readouterr().err


# The format.


def test_a_head_is_text_and_back() -> None:
    value = ChainValue(7, bytes(range(32)))
    assert parse_head(str(value)) == value
    for text in (
        "",
        "7",
        "7:ab",
        f"-1:{'0' * 64}",
        f"7:{'g' * 64}",
        f"²:{'0' * 64}",
        f"{'9' * 30}:{'0' * 64}",
    ):
        with pytest.raises(ValueError, match="no head of a chain"):
            parse_head(text)


def test_the_bytes_of_the_chain_are_these() -> None:
    start = chain_start("orders")
    value = start.after(1, 0, encode_records([b"hello"], [10], 1), 1)
    first = hashlib.sha256(b"dlog hash chain 1orders").digest()
    entry = "0000000000010000000000000000000a0000000568656c6c6f"
    place = "00000000000000010000000000000000"
    assert start == ChainValue(0, first)
    assert str(value) == f"1:{hashlib.sha256(first + bytes.fromhex(place + entry)).hexdigest()}"
    record = encode_chain_record(value, 1, 10)
    assert len(record) == CHAIN_RECORD_BYTES == 65
    assert record[:33].hex() == "0000000000010001000000000000000a0000002d" + "444c484301" + "0000000000000001"
    assert chain_value_in(record, 0, len(record)) == value


def test_other_records_are_no_chain_and_another_version_is_refused() -> None:
    body = encode_records([b"x" * 45], [10], 1)
    assert chain_value_in(body, 0, len(body)) is None
    assert chain_value_in(b"", 0, 0) is None
    record = bytearray(encode_chain_record(chain_start("orders"), 1, 10))
    record[24] = 2
    with pytest.raises(dlog.EntryFormatError, match="hash chain of version 2"):
        chain_value_in(bytes(record), 0, len(record))
