"""Nodes and DLSNs captured from Apache DistributedLog (tests/golden/namespace): our formats and transactions
give the same bytes and versions."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from ledger.metadata_store.lock import in_order, member_owner, member_prefix, member_sequence
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.store import MetadataStore
from namespace.binding import Binding, decode_binding, encode_binding, new_binding
from namespace.dlsn import DLSN
from namespace.log_nodes import LogNodes
from namespace.logs import create_log, open_log
from namespace.segment_nodes import (
    complete_segment,
    list_segments,
    record_allocation,
    set_truncation,
    start_segment,
)
from namespace.segments.segment import LogSegment, TruncationStatus, decode_segment, encode_segment
from tests.fakes.log_paths import paths_of
from tests.places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "namespace"


def load(name: str) -> list[dict[str, Any]]:
    rows = json.loads((GOLDEN / name).read_text("utf-8"))
    assert isinstance(rows, list)
    return rows


STEPS = {step["step"]: step["nodes"] for step in load("znodes.json")}
NODES = [node for nodes in STEPS.values() for node in nodes]


@pytest.mark.parametrize("row", load("dlsn.json"), ids=lambda row: row["text"])
def test_dlsns_have_the_bytes_and_the_text_of_java(row: dict[str, Any]) -> None:
    dlsn = DLSN(*row["dlsn"])
    for version in (0, 1):
        assert dlsn.to_bytes(version)[:100].hex() == row[f"v{version}_hex"][:200]
        assert dlsn.to_text(version) == row[f"v{version}_base64"]
        assert DLSN.from_text(row[f"v{version}_base64"]) == dlsn
        assert DLSN.from_bytes(dlsn.to_bytes(version)) == dlsn
    assert dlsn.to_text() == row["default_base64"]
    if max(row["dlsn"]) < 2**63 - 1:  # Java's numbers overflow there
        assert attrs.astuple(dlsn.next_slot()) == tuple(row["next"])
        assert attrs.astuple(dlsn.next_segment()) == tuple(row["next_ledger"])


def bindings() -> list[bytes]:
    return [bytes.fromhex(node["data"]) for node in NODES if (node["text"] or "").startswith("1\nBKDL\n")]


@pytest.mark.parametrize("data", bindings(), ids=range(len(bindings())))
def test_bindings_are_read_and_written_byte_for_byte(data: bytes) -> None:
    assert encode_binding(decode_binding(data)) == data


def test_a_new_binding_has_the_bytes_that_java_writes() -> None:
    plain, federated, region_and_first = [
        node for node in NODES if (node["text"] or "").startswith("1\nBKDL\n")
    ][:3]
    hosts = "127.0.0.1:27181"
    assert encode_binding(new_binding(hosts, "/ledgers")).hex() == plain["data"]
    binding = decode_binding(bytes.fromhex(federated["data"]))
    assert (binding.federated, binding.segment_seqno_first) == (True, 1)
    binding = decode_binding(bytes.fromhex(region_and_first["data"]))
    assert (binding.encode_region_id, binding.segment_seqno_first) == (True, 5)
    assert binding == Binding(
        bk_hosts=hosts,
        ledgers_root="/ledgers",
        encode_region_id=True,
        bk_hosts_for_reader=hosts,
        dl_hosts_for_writer=hosts,
        dl_hosts_for_reader=hosts,
        first_segment_seqno=5,
    )


def segment_nodes() -> list[dict[str, Any]]:
    return [node for node in NODES if "/<default>/ledgers/" in node["path"]]


def test_every_captured_segment_is_read_and_written_byte_for_byte() -> None:
    assert len(segment_nodes()) > 40
    for node in segment_nodes():
        name, data = node["path"].rpartition("/")[2], bytes.fromhex(node["data"])
        segment = decode_segment(data, name)
        assert segment.stored_name is None, "Java's name is ours"
        assert segment.name == name
        assert encode_segment(segment) == data
    assert {decode_segment(bytes.fromhex(node["data"])).version for node in segment_nodes()} == {2, 3, 4, 5}


@pytest.mark.parametrize(
    "row", [row for topic in load("segments.json") for row in topic["segments"]], ids=lambda row: row["data"]
)
def test_segments_have_the_values_that_java_reads(row: dict[str, Any]) -> None:
    segment = decode_segment(row["data"].encode())
    assert segment.in_progress == row["in_progress"]
    assert segment.ledger_id == row["ledger"]
    assert segment.first_txid == row["first_txid"]
    assert segment.last_txid == row["last_txid"]
    assert segment.completed_ms == row["completion"]
    assert segment.record_count == row["records"]
    assert segment.region_id == row["region"]
    assert segment.truncation is TruncationStatus[row["truncation"]]
    assert segment.version == row["version"]
    assert attrs.astuple(segment.last_dlsn) == tuple(row["last_dlsn"])
    assert attrs.astuple(segment.min_active_dlsn) == tuple(row["min_active"])
    assert row["path"].endswith("/" + segment.name)
    if not segment.in_progress:
        assert segment.start_sequence_id == row["start_sequence_id"]


def test_every_captured_lock_member_has_the_name_that_we_give() -> None:
    members = [node for node in NODES if "/member_" in node["path"]]
    assert len(members) > 10
    for node in members:
        name, client_id = node["path"].rpartition("/")[2], bytes.fromhex(node["data"]).decode()
        owner = member_owner(name)
        assert owner is not None
        assert owner[0] == client_id
        assert name == member_prefix(client_id, owner[1]) + f"{member_sequence(name):010d}"
        assert node["ephemeral"]
    names = [
        node["path"].rpartition("/")[2] for node in STEPS["duel: one writer holds the lock, another waits"]
    ]
    assert [member_owner(name)[0] for name in in_order(names) if "member" in name] == [  # type: ignore[index]
        "client-one",
        "client-four",
    ]


async def captured(store: MetadataStore, path: str) -> list[tuple[str, bytes, int, int]]:
    """A node and all nodes below it in the form of the captures, without lock members."""
    node = await store.get(path)
    rows = [(path, node.value, node.stat.version, node.stat.child_version)]
    for name in (await store.children(path)).names:
        rows += await captured(store, f"{path}/{name}")
    return sorted(rows)


def expected(step: str, *, truncations: int = 0) -> list[tuple[str, bytes, int, int]]:
    """The nodes of a captured step; without the lock's child version, as no writers are replayed here.

    Args:
        truncations: So many versions more has the layout's node here: each truncation writes its data again,
            so that two of them cannot be mixed up. Java reads the data alone.
    """
    return sorted(
        (
            node["path"],
            bytes.fromhex(node["data"]),
            node["version"] + (truncations if node["path"].endswith("/version") else 0),
            0 if node["path"].endswith("/lock") else node["cversion"],
        )
        for node in STEPS[step]
        if "/member_" not in node["path"]
    )


async def test_the_life_of_a_log_has_the_nodes_versions_and_bytes_of_java() -> None:
    namespace_path, log_path = "/golden/ns1", "/golden/ns1/life"
    async with open_memory_store(MemoryTree()) as store:
        await store.create(namespace_path, parents=True)
        await create_log(LogNodes(store, namespace_path, "life"))
        metadata = await open_log(LogNodes(store, namespace_path, "life"))
        assert await captured(store, log_path) == expected("life: createLog")

        final = {
            segment.segment_seqno: segment
            for segment in (
                decode_segment(bytes.fromhex(node["data"]))
                for node in STEPS["life: three completed segments and segment 4 in progress"]
                if "/ledgers/" in node["path"]
            )
        }
        stages = {
            (1, "started"): "life: first record buffered: segment 1 in progress",
            (1, "completed"): "life: writer closed: segment 1 completed",
            (3, "completed"): "life: three completed segments (txid 10; 20,22,24; 30,32,34)",
            (4, "started"): "life: three completed segments and segment 4 in progress",
        }
        for seqno in (1, 2, 3, 4):
            done = final[seqno]
            segment = LogSegment(segment_seqno=seqno, ledger_id=done.ledger_id, first_txid=done.first_txid)
            metadata = await record_allocation(metadata, segment.ledger_id)
            metadata = await start_segment(metadata, segment)
            if (seqno, "started") in stages:
                assert await captured(store, log_path) == expected(stages[seqno, "started"])
            if seqno < 4:
                completed = segment.completed(
                    last_txid=done.last_txid,
                    record_count=done.record_count,
                    last_entry_id=done.last_entry_id,
                    last_slot_id=done.last_slot_id,
                    completed_ms=done.completed_ms,
                    start_sequence_id=done.start_sequence_id,
                )
                metadata = await complete_segment(metadata, segment, completed)
            if (seqno, "completed") in stages:
                assert await captured(store, log_path) == expected(stages[seqno, "completed"])

        first, second, third, _ = (await list_segments(LogNodes(store, namespace_path, "life"))).segments
        marked = [first.truncated(), second.partially_truncated(DLSN(2, 0, 2))]
        metadata = await set_truncation(metadata, marked)
        step = "life: after truncate (2,0,2): segment 1 truncated, segment 2 partially"
        assert await captured(store, log_path) == expected(step, truncations=1)
        _, second, third, _ = (await list_segments(LogNodes(store, namespace_path, "life"))).segments
        await set_truncation(metadata, [second.truncated(), third.truncated()])
        step = "life: after truncate (9,0,0): all completed segments truncated, in-progress untouched"
        assert await captured(store, log_path) == expected(step, truncations=2)


def test_paths_are_the_captured_ones() -> None:
    namespace_path, log_name = "/golden/ns1", "life"
    assert {node["path"] for node in STEPS["life: createLog"]} == {
        paths_of(namespace_path, log_name).log_path,
        paths_of(namespace_path, log_name).root_path,
        paths_of(namespace_path, log_name).max_txid_path,
        paths_of(namespace_path, log_name).version_path,
        paths_of(namespace_path, log_name).lock_path,
        paths_of(namespace_path, log_name).read_lock_path,
        paths_of(namespace_path, log_name).segments_path,
        paths_of(namespace_path, log_name).allocation_path,
    }
    step = "subs: plus a reader with lock without subscriber"
    parents = {node["path"].rpartition("/")[0] for node in STEPS[step] if node["ephemeral"]}
    assert parents == {
        paths_of(namespace_path, "subs").read_lock_path,
        paths_of(namespace_path, "subs").subscriber_read_lock_path("subscriber-1"),
    }
