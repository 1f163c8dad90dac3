"""Keys, entries, entry lists, metadata, layouts and service infos, as BookKeeper's classes make them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from ledger.catalog.availability import decode_availability, encode_availability
from ledger.catalog.metadata_codec import decode_metadata, encode_metadata
from ledger.catalog.paths import (
    AVAILABLE,
    LAYOUT,
    READONLY_NAME,
    Layout,
    decode_layout,
    ledger_id_of,
    ledger_path,
)
from ledger.catalog.service_info import Endpoint, ServiceInfo, decode_service_info, encode_service_info
from ledger.digest import DigestType, EntryCodec, mac_key, master_key
from ledger.metadata import LedgerState
from ledger.wire import data_formats_pb2 as stored
from ledger.wire import v2

HERE = Path(__file__).parent
VECTORS = json.loads((HERE / "vectors.json").read_text())
NODES: list[dict[str, Any]] = [
    {**json.loads(line), "file": f"{path.parts[-3]}/{path.stem}"}
    for path in sorted(HERE.glob("*/znodes/*.jsonl"))
    for line in path.read_text().splitlines()
]
BIG_PAYLOAD = bytes((7 * index + 3) % 256 for index in range(20_000))


def data_of(node: dict[str, Any]) -> bytes:
    return bytes.fromhex(node["hex"])


@pytest.mark.parametrize("keys", VECTORS["keys"], ids=lambda keys: keys["password"] or "empty")
def test_keys_are_made_from_the_password(keys: dict[str, str]) -> None:
    password = keys["password"].encode()
    assert master_key(password).hex() == keys["master"]
    assert mac_key(password).hex() == keys["mac"]


ENTRIES = [
    pytest.param(entry, DigestType[name], id=f"{entry['name']}-{name}")
    for entry in VECTORS["entries"]
    for name in entry["digests"]
]


def payload_of(entry: dict[str, Any]) -> bytes:
    return BIG_PAYLOAD if entry["name"] == "C" else bytes.fromhex(entry["payload"])


@pytest.mark.parametrize(("entry", "digest_type"), ENTRIES)
def test_entries_have_javas_bytes(entry: dict[str, Any], digest_type: DigestType) -> None:
    entries = EntryCodec(digest_type, entry["password"].encode())
    payload = payload_of(entry)
    ids = entry["ledger_id"], entry["entry_id"]
    body = entries.pack(*ids, entry["lac"], entry["length_bytes"], payload)
    digest = bytes.fromhex(entry["digests"][digest_type.name])
    assert body == bytes.fromhex(entry["header"]) + digest + payload
    found = entries.unpack(body, *ids)
    assert (found.lac, found.length_bytes, found.payload) == (entry["lac"], entry["length_bytes"], payload)
    assert entries.payloads([body], *ids) == [payload]
    if lengths := entry.get("v2_add_lengths"):
        frame = v2.AddEncoder(ids[0], entries).encode(ids[1], entry["lac"], entry["length_bytes"], payload)
        assert frame[:4].hex() == lengths[digest_type.name]


@pytest.mark.parametrize(("entry", "digest_type"), ENTRIES)
def test_lac_packets_have_javas_bytes(entry: dict[str, Any], digest_type: DigestType) -> None:
    if digest_type.name not in entry["lac_digests"]:
        assert digest_type is DigestType.DUMMY
        return
    entries = EntryCodec(digest_type, entry["password"].encode())
    packet = entries.pack_lac(entry["ledger_id"], entry["lac"])
    ids = entry["ledger_id"].to_bytes(8, "big") + entry["lac"].to_bytes(8, "big", signed=True)
    assert packet == ids + bytes.fromhex(entry["lac_digests"][digest_type.name])
    assert entries.unpack_lac(packet, entry["ledger_id"]) == entry["lac"]


@pytest.mark.parametrize("example", VECTORS["availability"], ids=lambda example: str(example["entries"]))
def test_entry_lists_of_java_are_read(example: dict[str, Any]) -> None:
    data = bytes.fromhex(example["hex"])
    availability = decode_availability(data)
    assert [entry_id for entry_id in range(-1, 20) if entry_id in availability] == example["entries"]
    assert len(availability) == len(example["entries"])
    if "note" not in example:
        assert encode_availability(example["entries"]) == data


@pytest.mark.parametrize("name", VECTORS["metadata"])
def test_metadata_examples_are_read_and_written_alike(name: str) -> None:
    data = bytes.fromhex(VECTORS["metadata"][name])
    metadata = decode_metadata(data)
    assert encode_metadata(metadata) == data
    assert metadata.is_closed == name.startswith("closed")


LEDGER_NODES = [node for node in NODES if data_of(node).startswith(b"BookieMetadataFormatVersion")]


def test_every_ledger_node_is_read_and_written_alike() -> None:
    versions = set()
    states = set()
    for node in LEDGER_NODES:
        metadata = decode_metadata(data_of(node))
        assert encode_metadata(metadata) == data_of(node), node
        versions.add(metadata.format_version)
        states.add(metadata.state)
    assert len(LEDGER_NODES) == 130
    assert versions == {1, 2, 3}
    assert states == set(LedgerState)


def test_our_changes_make_the_bytes_that_javas_made() -> None:
    checked = 0
    for release in ("4.17.3", "4.18.0"):
        lives = [node for node in LEDGER_NODES if node["file"] == f"{release}/ledger-lives"]
        for before, after in itertools.pairwise(lives):
            if before["path"] != after["path"]:
                continue
            old, new = decode_metadata(data_of(before)), decode_metadata(data_of(after))
            changed = old
            if len(new.ensembles) > len(old.ensembles):
                last = new.last_ensemble
                changed = changed.with_ensemble(last.first_entry_id, last.bookies)
            if new.is_closed:
                changed = changed.closed(new.last_entry_id, new.length_bytes)
            elif new.state is not old.state:
                changed = changed.in_recovery()
            assert encode_metadata(changed) == data_of(after), after["what"]
            checked += 1
    assert checked >= 18


def test_every_ledger_node_is_where_its_layout_puts_it() -> None:
    layouts = {
        (node["file"], node["path"].removesuffix(f"/{LAYOUT}")): decode_layout(data_of(node))
        for node in NODES
        if node["path"].endswith(f"/{LAYOUT}") and "underreplication" not in node["path"]
    }
    assert set(layouts.values()) >= {Layout.FLAT, Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL}
    for node in LEDGER_NODES:
        root = "/" + node["path"].split("/")[1]
        ledger_id = ledger_id_of(root, node["path"])
        assert ledger_id is not None
        layout = layouts.get((node["file"], root), Layout.HIERARCHICAL)
        assert ledger_path(root, layout, ledger_id) == node["path"]


def test_every_layout_node_is_read_and_written_alike() -> None:
    seen = 0
    for node in NODES:
        if node["path"].endswith(f"/{LAYOUT}") and "underreplication" not in node["path"]:
            assert decode_layout(data_of(node)).text == data_of(node)
            seen += 1
    assert seen >= 10
    assert Layout.HIERARCHICAL.text.hex() == VECTORS["layout"]


@pytest.mark.parametrize(("ledger_id", "flat", "hierarchical", "long"), VECTORS["paths"])
def test_the_table_of_paths_holds_in_both_directions(
    ledger_id: int, flat: str | None, hierarchical: str, long: str
) -> None:
    expected = {Layout.FLAT: flat, Layout.HIERARCHICAL: hierarchical, Layout.LONG_HIERARCHICAL: long}
    for layout, path in expected.items():
        if path is not None:
            assert ledger_path("/ledgers", layout, ledger_id) == f"/ledgers{path}"
            assert ledger_id_of("/ledgers", f"/ledgers{path}") == ledger_id


def test_every_service_info_is_read_and_written_alike() -> None:
    seen = set()
    for node in NODES:
        parent, name = node["path"].rsplit("/", 1)
        if f"/{AVAILABLE}" in parent and name != READONLY_NAME:
            info = decode_service_info(data_of(node))
            assert encode_service_info(info) == data_of(node)
            assert info.rpc is not None
            seen.add((name, info.rpc.port, info.rpc.extensions))
    assert ("bookie-four", 33184, ("tls",)) in seen
    assert ("127.0.0.1:33181", 33181, ()) in seen


def test_service_info_with_http_has_javas_bytes() -> None:
    info = ServiceInfo(
        (
            Endpoint("bookie", 3181, "192.0.2.10", "bookie-rpc"),
            Endpoint("httpserver", 8080, "0.0.0.0", "http"),
        )
    )
    assert encode_service_info(info).hex() == VECTORS["service_info"]
    assert decode_service_info(bytes.fromhex(VECTORS["service_info"])) == info


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("/cookies/", stored.CookieFormat),
        ("/underreplication/LAYOUT", stored.LedgerRereplicationLayoutFormat),
        ("/underreplication/ledgers/", stored.UnderreplicatedLedgerFormat),
        ("/underreplication/locks/", stored.LockDataFormat),
        ("/auditorelection/V_", stored.AuditorVoteFormat),
    ],
)
def test_the_schemas_of_text_nodes_write_them_alike(where: str, message: Any) -> None:
    seen = 0
    for node in NODES:
        text = data_of(node).decode("latin-1")
        if where in node["path"] and text:
            if where == "/cookies/":
                version, text = text.split("\n", 1)
                assert version == "5"
            if node.get("masked"):
                continue
            assert text_format.MessageToString(text_format.Parse(text, message())) == text
            seen += 1
    assert seen or where == "/underreplication/locks/"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("underreplication_layout", stored.LedgerRereplicationLayoutFormat),
        ("underreplication_mark", stored.UnderreplicatedLedgerFormat),
    ],
)
def test_the_schemas_of_marks_write_the_vectors(name: str, message: Any) -> None:
    text = bytes.fromhex(VECTORS[name]).decode()
    assert text_format.MessageToString(text_format.Parse(text, message())) == text
