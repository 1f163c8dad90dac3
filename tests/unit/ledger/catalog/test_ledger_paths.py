# covers: ledger/catalog/paths.py

from __future__ import annotations

import pytest

from ledger.catalog import paths
from ledger.catalog.paths import Layout, decode_layout, is_ledger_parent, ledger_id_of, ledger_path
from ledger.errors import LedgerMetadataError, MetadataFormatError

CLASS = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"


@pytest.mark.parametrize("layout", Layout)
def test_a_layout_survives_encoding_and_decoding(layout: Layout) -> None:
    assert decode_layout(layout.text) is layout
    shaded = layout.text.replace(b"\norg", b"\ndlshade.org")
    assert decode_layout(shaded) is layout


def test_layouts_of_version_1_are_read_by_their_type_name() -> None:
    assert decode_layout(b"1\nflat:1") is Layout.FLAT
    assert decode_layout(b"1\nhierarchical:1") is Layout.HIERARCHICAL


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2",
        f"3\n{CLASS}:1".encode(),
        f"2\n{CLASS}".encode(),
        f"2\n{CLASS}:2".encode(),
        f"2\n{CLASS}:1:1".encode(),
        f"2\nx{CLASS}:1".encode(),
        b"2\nflat:1",
        b"1\nmade-up:1",
        b"2\n\xff\xfe:1",
    ],
)
def test_an_unknown_layout_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="LAYOUT"):
        decode_layout(data)


def test_the_long_tree_begins_at_javas_largest_int() -> None:
    last_short = ledger_path("/ledgers", Layout.HIERARCHICAL, 2**31 - 2)
    first_long = ledger_path("/ledgers", Layout.HIERARCHICAL, 2**31 - 1)
    assert (last_short, first_long) == ("/ledgers/21/4748/L3646", "/ledgers/000/0000/0021/4748/L3647")


@pytest.mark.parametrize(
    ("layout", "ledger_id"),
    [
        (Layout.HIERARCHICAL, -1),
        (Layout.LONG_HIERARCHICAL, 2**63),
        (Layout.FLAT, 10**10),
        (Layout.LEGACY_HIERARCHICAL, 10**10),
    ],
)
def test_an_id_that_a_layout_cannot_hold_is_refused(layout: Layout, ledger_id: int) -> None:
    with pytest.raises(LedgerMetadataError, match=str(ledger_id)):
        ledger_path("/ledgers", layout, ledger_id)


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers",
        "/ledgers/available",
        "/ledgers/00/0000",
        "/ledgers/00/0000/0000",
        "/ledgers/00/0000/L00000",
        "/ledgers/L123",
        "/ledgers/000/0000/0000/0000/X0000",
        "/ledgers/999/9999/9999/9999/L9999",
        "/ledgers/\u0660\u0660/0000/L0000",
        "/other/00/0000/L0000",
        "/ledgersx/00/0000/L0000",
    ],
)
def test_a_path_that_no_layout_produces_has_no_ledger(path: str) -> None:
    assert ledger_id_of("/ledgers", path) is None


def test_the_parents_of_ledgers_are_recognised_by_their_names() -> None:
    names = ["00", "000", "0000", "L0000000001", "L1", "available", "idgen", "ID-0000000001", "\u0660\u0660"]
    found = {layout: [name for name in names if is_ledger_parent(layout, name)] for layout in Layout}
    assert found == {
        Layout.FLAT: ["L0000000001"],
        Layout.LEGACY_HIERARCHICAL: ["00"],
        Layout.HIERARCHICAL: ["00", "000"],
        Layout.LONG_HIERARCHICAL: ["000"],
    }


@pytest.mark.parametrize("bookie", ["192.0.2.1:3181", "bk1.example.com:3181", "uuid-1_2", "a[b]\\^;<=>?@"])
def test_bookie_ids_that_java_takes(bookie: str) -> None:
    paths.check_bookie_id(bookie)


@pytest.mark.parametrize("bookie", ["", "a/b", "readonly", "ReadOnly", "a b", "ä", "a\n"])
def test_bookie_ids_that_java_refuses(bookie: str) -> None:
    with pytest.raises(LedgerMetadataError):
        paths.check_bookie_id(bookie)


@pytest.mark.parametrize(
    ("ledger_id", "below"),
    [
        (0, "/0000/0000/0000/0000/urL0000000000"),
        (12345, "/0000/0000/0000/3039/urL0000012345"),
        (2147483647, "/0000/0000/7fff/ffff/urL2147483647"),
        (8589934599, "/0000/0002/0000/0007/urL8589934599"),
    ],
)
def test_under_replication_marks_have_the_paths_of_java(ledger_id: int, below: str) -> None:
    assert paths.underreplicated_path("/ledgers", ledger_id) == f"/ledgers/underreplication/ledgers{below}"
    name = below.rsplit("/", 1)[1]
    assert paths.underreplicated_id_of(name) == ledger_id
    assert paths.underreplicated_lock_path("/r", ledger_id) == f"/r/underreplication/locks/{name}"
    assert paths.underreplicated_id_of(f"x{name}") is None


def test_nodes_of_bookies_and_ids() -> None:
    assert paths.available_path("/r", "b:1") == "/r/available/b:1"
    assert paths.readonly_path("/r", "b:1") == "/r/available/readonly/b:1"
    assert paths.cookie_path("/r", "b:1") == "/r/cookies/b:1"
    assert paths.id_prefix("/r", Layout.FLAT) == "/r/ID-"
    assert paths.id_prefix("/r", Layout.HIERARCHICAL) == "/r/idgen/ID-"
    assert paths.long_id_prefix("/r", 1) == "/r/idgen-long/HOB-0000000001/ID-"


def test_names_of_layouts_in_uris() -> None:
    assert [layout.uri_name for layout in Layout] == ["flat", None, "hierarchical", "longhierarchical"]


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("HOB-0000000000", 0),
        ("HOB-2147483647", 2**31 - 1),
        ("HOB-2147483648", None),
        ("HOB-9999999999", None),
        ("HOB-00000000012", None),
        ("HOB-12", None),
        ("HOB-000000000²", None),
        ("HOB-000000000\u0667", None),
        ("HOB-", None),
        ("0000000007", None),
        ("ID-0000000007", None),
    ],
)
def test_a_name_stands_for_a_series_of_ids_or_for_none(name: str, series: int | None) -> None:
    assert paths.id_series_of(name) == series
