"""The bytes of the under-replication nodes are those that Apache's processes wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger.errors import MetadataFormatError
from ledger.replication import node_format
from ledger.replication.node_format import Mark
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
            assert node_format.encode_mark(node_format.decode_mark(data)) == data
        elif "/locks/" in name and data:
            assert node_format.encode_lock("127.0.0.1") == data
        elif name.endswith("underreplication/LAYOUT"):
            assert data == node_format.REREPLICATION_LAYOUT
            node_format.check_layout(data)
        elif "auditorelection" in name:
            assert node_format.encode_vote(node_format.decode_vote(data)) == data
        elif name.endswith("lostBookieRecoveryDelay"):
            assert node_format.encode_delay(node_format.decode_delay(data)) == data
        elif name.endswith("checkallledgersctime"):
            epoch_ms = node_format.decode_check_time(data)
            assert epoch_ms is not None
            assert node_format.encode_check_time(epoch_ms) == data
        else:
            continue
        compared += 1
    assert compared


def test_a_mark_is_a_line_for_each_replica_and_its_time() -> None:
    data = b'replica: "bk2.example.com:3181"\nctime: 1700000000000\n'
    assert node_format.decode_mark(data) == Mark(("bk2.example.com:3181",), 1_700_000_000_000)
    assert node_format.decode_mark(b"") == Mark(())
    assert node_format.decode_mark(b'later_field: 7 replica: "b"') == Mark(("b",))
    assert node_format.encode_mark(Mark(("b",))) == b'replica: "b"\n'


def test_a_mark_that_names_the_bookies_already_is_not_changed() -> None:
    mark = Mark(("a", "b"), 5)
    assert mark.with_replicas(("b", "a"), 9) is None
    assert mark.with_replicas(("c", "b", "c"), 9) == Mark(("a", "b", "c"), 9)


@pytest.mark.parametrize(
    "decode_it",
    [
        lambda: node_format.decode_mark(b"replica: 7 {"),
        lambda: node_format.decode_mark(b"\xff\xfe"),
        lambda: node_format.decode_vote(b""),
        lambda: node_format.check_layout(b'type: "BASIC"\nversion: 2\n'),
        lambda: node_format.decode_delay(b"soon"),
        lambda: node_format.decode_delay(b"-1"),
        lambda: node_format.decode_check_time(b"\x08"),
    ],
)
def test_data_that_do_not_parse_are_an_error(decode_it: object) -> None:
    assert callable(decode_it)
    with pytest.raises(MetadataFormatError):
        decode_it()
