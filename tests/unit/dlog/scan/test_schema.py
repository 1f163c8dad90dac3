"""Payloads of JSON and typed records as columns of a scan."""

# covers: dlog/scan/errors.py

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import duckdb
import pyarrow as pa
import pytest

import dlog
import dlog.blocking
from dlog.scan import PayloadFieldsError
from dlog.scan import scan as scan_module
from dlog.typed import Registry


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[dlog.blocking.Namespace]:
    with dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace:
        yield namespace


def write(
    namespace: dlog.blocking.Namespace,
    *payloads: bytes,
    headers: Sequence[Mapping[str, bytes] | None] | None = None,
) -> None:
    with namespace.open_writer("log", create=True) as log:
        log.append_many(payloads, txids=range(len(payloads)), headers=headers)


def test_fields_of_json_payloads_are_columns_in_the_place_of_the_payload(
    namespace: dlog.blocking.Namespace,
) -> None:
    write(namespace, b'{"id":1,"name":"a","x":[]}', b' {"name":null,\n"id":2} ', b"{}")
    scan = namespace.scan("log", json={"id": int, "name": "string", "tags": pa.list_(pa.int32())})
    assert "payload" not in scan.schema.names
    assert scan.schema.names[-3:] == ["id", "name", "tags"]
    assert scan.to_table().select(["txid", "id", "name", "tags"]).to_pylist() == [
        {"txid": 0, "id": 1, "name": "a", "tags": None},
        {"txid": 1, "id": 2, "name": None, "tags": None},
        {"txid": 2, "id": None, "name": None, "tags": None},
    ]
    only = namespace.scan("log", columns=[], json={"id": "int64"})
    assert only.to_table().to_pylist() == [{"id": 1}, {"id": 2}, {"id": None}]
    with_payload = namespace.scan("log", columns=["payload"], json={"id": "int64"})
    assert with_payload.to_table().to_pylist()[2] == {"payload": b"{}", "id": None}


def test_fields_are_found_in_the_first_records(
    namespace: dlog.blocking.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "SAMPLE_RECORDS", 2)
    write(namespace, b'{"id":1}', b'{"price":1.5,"id":2}', b'{"price":2,"late":true}')
    scan = namespace.scan("log", columns=[], json=True)
    assert scan.schema == pa.schema([("id", pa.int64()), ("price", pa.float64())])
    assert scan.to_table()["price"].to_pylist() == [None, 1.5, 2.0]
    with duckdb.connect() as database:
        database.register("log", scan)
        assert database.execute("SELECT sum(price) FROM log").fetchall() == [(3.5,)]


def test_a_log_without_records_has_no_fields(namespace: dlog.blocking.Namespace) -> None:
    namespace.create_log("log")
    scan = namespace.scan("log", columns=["txid"], json=True)
    assert scan.schema.names == ["txid"]
    assert scan.to_table().num_rows == 0


def test_a_field_with_the_name_of_a_column_gets_another_one(namespace: dlog.blocking.Namespace) -> None:
    write(namespace, b'{"key":"k","txid":7}')
    scan = namespace.scan("log", columns=["txid"], json=True)
    assert scan.to_table().to_pylist() == [{"txid": 0, "key": "k", "payload_txid": 7}]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b'{"id":"x"}', "number to string"),
        (b"text", "it is no JSON object"),
        (b"", "it is no JSON object"),
        (b'{"id":1.5}', "couldn't parse:1.5"),
    ],
)
def test_a_payload_that_does_not_fit_is_an_error_with_its_position(
    namespace: dlog.blocking.Namespace, bad: bytes, problem: str
) -> None:
    write(namespace, b'{"id":1}', b'{"id":2}', bad, b'{"id":3}')
    with pytest.raises(
        PayloadFieldsError, match=r"record at 1:0:2: .*id: int64.*json=\{NAME: TYPE\}"
    ) as caught:
        namespace.scan("log", json={"id": int}).to_table()
    assert problem in str(caught.value)
    assert caught.value.dlsn == dlog.DLSN(1, 0, 2)
    with pytest.raises(pa.ArrowInvalid, match="record at 1:0:2"):
        pa.table(namespace.scan("log", json={"id": int}))
    assert namespace.scan("log", end=1, json={"id": int}).to_table().num_rows == 2


def test_a_sample_without_common_types_is_an_error(namespace: dlog.blocking.Namespace) -> None:
    write(namespace, b'{"id":1}', b'{"id":"x"}')
    with pytest.raises(PayloadFieldsError, match=r"in the first 2 records, .*number to string") as caught:
        namespace.scan("log", json=True)
    assert caught.value.dlsn is None


def test_a_sample_that_is_no_json_is_an_error_with_its_position(namespace: dlog.blocking.Namespace) -> None:
    write(namespace, b"{}", b"text")
    with pytest.raises(PayloadFieldsError, match="record at 1:0:1: its payload is no JSON object"):
        namespace.scan("log", json=True)


registry = Registry()


@registry.register("order", version=2)
@attrs.frozen
class Order:
    id: int
    amount: float


@registry.register("person")
@attrs.frozen
class Person:
    name: str


def test_typed_records_are_columns_with_their_schema(namespace: dlog.blocking.Namespace) -> None:
    with namespace.open_writer("log", create=True) as log:
        registry.append(log, Order(7, 12.5), key=b"k", headers={"source": b"web"})
        registry.append(log, Person("Anna"))
        # As an older program wrote it, without headers, and as another one did: the fields alone.
        log.append(b'{"type":"order","version":1,"data":{"id":6}}')
        log.append(b'{"id":5,"amount":1}', headers={"schema": b"order", "schema-version": b"2"})
    wanted: list[dict[str, Any]] = [
        {"key": b"k", "schema": "order", "schema_version": 2, "id": 7, "amount": 12.5, "name": None},
        {"key": None, "schema": "person", "schema_version": 1, "id": None, "amount": None, "name": "Anna"},
        {"key": None, "schema": "order", "schema_version": 1, "id": 6, "amount": None, "name": None},
        {"key": None, "schema": "order", "schema_version": 2, "id": 5, "amount": 1.0, "name": None},
    ]
    assert namespace.scan("log", columns=["key"], typed=True).to_table().to_pylist() == wanted
    some = namespace.scan("log", columns=[], json={"id": int}, typed=True).to_table().to_pylist()
    names = ("schema", "schema_version", "id")
    assert some == [{name: one[name] for name in names} for one in wanted]


@pytest.mark.parametrize(
    ("payload", "headers", "problem"),
    [
        (b'{"id":1}', {}, "no typed record"),
        (b'{"type":"order","version":1,"data":null}', {}, "no typed record"),
        (b'{"type":"order","version":"1","data":{"id":1}}', {}, "no JSON object with the fields"),
        (
            b'{"type":"order","version":1,"data":{"id":1}}',
            {"schema": b"order", "schema-version": b"2"},
            "its headers say type 'order', version 2, but its payload says type 'order', version 1",
        ),
        (b'{"id":"x"}', {"schema": b"order", "schema-version": b"2"}, "no JSON object with the fields id"),
    ],
)
def test_what_is_no_typed_record_is_an_error_with_its_position(
    namespace: dlog.blocking.Namespace, payload: bytes, headers: dict[str, bytes], problem: str
) -> None:
    good = b'{"type":"order","version":2,"data":{"id":1}}'
    write(namespace, good, payload, headers=[None, headers])
    with pytest.raises(PayloadFieldsError, match=problem) as caught:
        namespace.scan("log", json={"id": int}, typed=True).to_table()
    assert caught.value.dlsn == dlog.DLSN(1, 0, 1)


def test_wrong_fields_are_errors_before_anything_is_read(namespace: dlog.blocking.Namespace) -> None:
    for fields in ({"id": "number"}, {"id": list}, {"txid": int, "payload_txid": int}):
        with pytest.raises(ValueError, match=r"type|same name"):
            namespace.scan("log", json=fields)
