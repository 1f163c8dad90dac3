"""Payloads are decoded each for itself: a broken one never shifts the others."""

# covers: spark_integration/arrow.py

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from dlog import DLSN, Record, RecordBatch
from dlog.format.record import RecordWithAttributes
from spark_integration.arrow import HEADERS, ArrowRows, ddl_of, payload_type
from spark_integration.errors import OptionError, PayloadFormatError
from spark_integration.options import Columns
from spark_integration.payloads import as_text, decoded, json_decoder

FIELDS = pa.struct([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
DECODE = json_decoder(FIELDS)
BROKEN = [
    b"",
    b" ",
    b"{",
    b'{"id": 1}{"id": 2}',
    b'{"id": 1}}\n{"p":{"id": 2}',
    b"[1]",
    b"5",
    b'{"id": "x"}',
    b"\xff",
]

objects = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        "tags": st.none() | st.lists(st.text("ab\n{}\"'", max_size=3), max_size=3),
    }
)


@given(st.lists(objects | st.none(), max_size=8), st.booleans())
def test_json_comes_back_as_it_was_written(values: list[object], indented: bool) -> None:
    payloads = [json.dumps(value, indent=1 if indented else None).encode() for value in values]
    found = decoded(pa.array(payloads, pa.binary()), DECODE, null_on_error=False, place=str)
    assert found.type == FIELDS
    assert found.to_pylist() == values


@given(st.lists(st.one_of(st.integers(0, 9), st.sampled_from(BROKEN)), max_size=9))
def test_a_broken_payload_is_null_and_moves_no_other(payloads: list[int | bytes]) -> None:
    written = [b'{"id": %d}' % each if isinstance(each, int) else each for each in payloads]
    found = decoded(pa.array(written, pa.binary()), DECODE, null_on_error=True, place=str)
    ids = [None if each is None else each["id"] for each in found.to_pylist()]
    assert ids == [each if isinstance(each, int) else None for each in payloads]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_payload_is_an_error_with_its_place(broken: bytes) -> None:
    payloads = pa.array([b'{"id": 1}', b'{"id": 2}', broken, b'{"id": 3}'], pa.binary())
    with pytest.raises(PayloadFormatError, match=r"^record 2: "):
        decoded(payloads, DECODE, null_on_error=False, place=lambda index: f"record {index}")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b'{"id": "x"}', "is JSON that payloadSchema does not fit: .*number to string"),
        (b"[1]", "is JSON that payloadSchema does not fit"),
        (b'{"id": 1', "is of another format"),
        (b'{"name": "\xff"}', "is of another format"),  # an invalid string would get into Spark
    ],
)
def test_json_of_another_shape_is_not_called_broken(payload: bytes, message: str) -> None:
    with pytest.raises(PayloadFormatError, match=message):
        decoded(pa.array([payload], pa.binary()), DECODE, null_on_error=False, place=str)


def test_text_is_checked() -> None:
    payloads = pa.array(["é".encode(), b"\xff", b""], pa.binary())
    assert decoded(payloads, as_text, null_on_error=True, place=str).to_pylist() == ["é", None, ""]
    with pytest.raises(PayloadFormatError, match=r"^1: "):
        decoded(payloads, as_text, null_on_error=False, place=str)


def batch_of(*txids: int) -> RecordBatch:
    return RecordBatch.of(
        [Record(DLSN(1, 0, slot), txid, b"x%d" % slot, slot + 7) for slot, txid in enumerate(txids)]
    )


def test_columns_on_request_are_behind_the_others() -> None:
    rows = ArrowRows(Columns(timestamp=True, sequence=True, payload_format="utf8"), StringType())
    batch = rows.batch("orders", batch_of(1000, 2001, 2**62))
    assert batch.schema.names == [
        *("stream", "segment", "entry", "slot", "txid"),
        *("payload", "timestamp", "sequence"),
    ]
    assert batch["payload"].to_pylist() == ["x0", "x1", "x2"]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [1_000_000, 2_001_000, None]
    assert batch["sequence"].to_pylist() == [7, 8, 9]


def test_the_key_and_the_headers_are_the_last_columns_on_request() -> None:
    columns = Columns(headers=True)
    more = StructField("key", BinaryType()), StructField("headers", HEADERS)
    kinds = spark_schema(BinaryType(), *more)
    assert ddl_of(columns).endswith(", key BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    assert payload_type(kinds, columns) == BinaryType()
    records = [
        RecordWithAttributes(DLSN(1, 0, 0), 1, b"x", 0, b"k", (("a", b"1"), ("b", b""))),
        Record(DLSN(1, 0, 1), 2, b"y", 1),
    ]
    batch = ArrowRows(columns, BinaryType()).batch("orders", RecordBatch.of(records))
    assert batch.schema.names == [each.name for each in kinds.fields]
    assert batch["key"].to_pylist() == [b"k", None]
    assert batch["headers"].to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}],
        [],
    ]


def spark_schema(payload: object, *more: StructField) -> StructType:
    fields = [
        ("stream", StringType()),
        *((each, LongType()) for each in ("segment", "entry", "slot", "txid")),
    ]
    return StructType([StructField(*each) for each in [*fields, ("payload", payload)]] + list(more))  # type: ignore[arg-type]


def test_a_schema_of_the_program_is_refused() -> None:
    assert payload_type(spark_schema(BinaryType()), Columns()) == BinaryType()
    wrong = [
        StructType([StructField(each.name, each.dataType, False) for each in spark_schema(BinaryType())]),
        spark_schema(StringType()),
        spark_schema(BinaryType(), StructField("sequence", LongType())),
        StructType([StructField("payload", BinaryType())]),
    ]
    for schema in wrong:
        with pytest.raises(OptionError, match=r"remove \.schema"):
            payload_type(schema, Columns())


@pytest.mark.parametrize("kind", [MapType(StringType(), LongType()), DateType(), ArrayType(DateType())])
def test_types_that_json_cannot_be_read_as_are_refused(kind: object) -> None:
    columns = Columns(payload_format="json", payload_schema="a ...")
    with pytest.raises(OptionError, match=r"payloadSchema.*not supported"):
        ArrowRows(columns, StructType([StructField("a", kind)]))  # type: ignore[arg-type]


def test_the_schema_of_json_is_the_programs() -> None:
    columns = Columns(payload_format="json", payload_schema="id BIGINT, n STRING")
    assert "payload STRUCT<id BIGINT, n STRING>" in ddl_of(columns)
