"""The bytes of the under-replication nodes are those that Apache's processes wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger.catalog import replication_nodes
from ledger.catalog.replication_nodes import Mark
from ledger.errors import MetadataFormatError
from tests.places import GOLDEN_FILES

SEEN = sorted((GOLDEN_FILES / "bookkeeper").glob("4.*/znodes/underreplication-*.jsonl"))


def nodes(path: Path) -> list[tuple[str, bytes]]:
    lines = map(json.loads, path.read_text().splitlines())
    return [(line["path"], bytes.fromhex(line["hex"])) for line in lines]


@pytest.mark.parametrize("path", SEEN, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_each_node_that_apache_wrote_is_written_alike(path: Path) -> None:
    compared = 0
    for name, data in nodes(path):
        if "/urL" in name and "/locks/" not in name:
            assert replication_nodes.encode_mark(replication_nodes.decode_mark(data)) == data
        elif "/locks/" in name and data:
            assert replication_nodes.encode_lock("127.0.0.1") == data
        elif name.endswith("underreplication/LAYOUT"):
            assert data == replication_nodes.REREPLICATION_LAYOUT
            replication_nodes.check_layout(data)
        elif "auditorelection" in name:
            assert replication_nodes.encode_vote(replication_nodes.decode_vote(data)) == data
        elif name.endswith("lostBookieRecoveryDelay"):
            assert replication_nodes.encode_delay(replication_nodes.decode_delay(data)) == data
        elif name.endswith("checkallledgersctime"):
            epoch_ms = replication_nodes.decode_check_time(data)
            assert epoch_ms is not None
            assert replication_nodes.encode_check_time(epoch_ms) == data
        else:
            continue
        compared += 1
    assert compared


def test_a_mark_is_a_line_for_each_replica_and_its_time() -> None:
    data = b'replica: "bk2.example.com:3181"\nctime: 1700000000000\n'
    assert replication_nodes.decode_mark(data) == Mark(("bk2.example.com:3181",), 1_700_000_000_000)
    assert replication_nodes.decode_mark(b"") == Mark(())
    assert replication_nodes.decode_mark(b'later_field: 7 replica: "b"') == Mark(("b",))
    assert replication_nodes.encode_mark(Mark(("b",))) == b'replica: "b"\n'


def test_a_mark_that_names_the_bookies_already_is_not_changed() -> None:
    mark = Mark(("a", "b"), 5)
    assert mark.with_replicas(("b", "a"), 9) is None
    assert mark.with_replicas(("c", "b", "c"), 9) == Mark(("a", "b", "c"), 9)


@pytest.mark.parametrize(
    "decode_it",
    [
        lambda: replication_nodes.decode_mark(b"replica: 7 {"),
        lambda: replication_nodes.decode_mark(b"\xff\xfe"),
        lambda: replication_nodes.decode_vote(b""),
        lambda: replication_nodes.check_layout(b'type: "BASIC"\nversion: 2\n'),
        lambda: replication_nodes.decode_delay(b"soon"),
        lambda: replication_nodes.decode_delay(b"-1"),
        lambda: replication_nodes.decode_check_time(b"\x08"),
    ],
)
def test_data_that_do_not_parse_are_an_error(decode_it: object) -> None:
    assert callable(decode_it)
    with pytest.raises(MetadataFormatError):
        decode_it()
