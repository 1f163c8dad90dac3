"""Fields of JSON payloads: types, values, and which payload does not fit; beside a twin in plain Python."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.scan.json_fields import BLOCK_BYTES, UnfitError, arrays_of, found_fields, type_of

FIELDS = {"i": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "s": pa.string()}
integers = st.integers(-(2**63), 2**63 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
values = {"i": integers, "f": numbers, "b": st.booleans(), "s": texts, "other": texts | integers}
objects = st.fixed_dictionaries({}, optional={name: each | st.none() for name, each in values.items()})
spaces = st.text(" \t\r\n", max_size=2)
anything = st.binary(max_size=6) | texts.map(str.encode) | objects.map(json.dumps).map(str.encode)
documents = st.builds(
    lambda one, before, after, indent: (before + json.dumps(one, indent=indent) + after).encode(),
    objects,
    spaces,
    spaces,
    st.sampled_from([None, 1]),
)


def row(payload: bytes) -> dict[str, Any]:
    """The fields of a payload, as a plain program takes them."""
    found = json.loads(payload)
    assert isinstance(found, dict)
    return {name: found.get(name) for name in FIELDS}


@given(st.lists(documents, max_size=12))
def test_fields_are_those_that_python_finds(payloads: list[bytes]) -> None:
    arrays = arrays_of(pa.array(payloads, pa.binary()), FIELDS)
    assert list(arrays) == list(FIELDS)
    for name, kind in FIELDS.items():
        assert arrays[name].type == kind
        assert arrays[name].to_pylist() == [row(payload)[name] for payload in payloads]


BAD = [
    b"",
    b" ",
    b"1",
    b"[1]",
    b"null",
    b"{",
    b"}",
    b'{"i":1}{"i":2}',
    b'{"i":1} {"i":2}',
    b'{"i":1}\n{"i":2}',
    b'{"i":1},{}',
    b'{"i":1.5}',
    b'{"i":"1"}',
    b'{"i":9223372036854775808}',
    b'{"f":"1"}',
    b'{"b":1}',
    b'{"s":1}',
    b'{"s":{}}',
    b'{"s":"\xff"}',
    b'{"s":"',
    b'{"s":"}',
    b'{"x":{}',
    b',"s":"x"}{}',
]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("others", [(0, 0), (1, 0), (0, 1), (1, 1), (5, 8)])
def test_the_first_payload_that_does_not_fit_is_an_error_with_its_index(
    bad: bytes, others: tuple[int, int]
) -> None:
    good = b'{"i":1,"s":"x"}'
    payloads = [good] * others[0] + [bad] + [good] * others[1] + [b"again"]
    with pytest.raises(UnfitError) as caught:
        arrays_of(pa.array(payloads, pa.binary()), FIELDS)
    assert caught.value.index == others[0]


@given(st.lists(documents | anything | st.sampled_from(BAD), max_size=8))
def test_what_is_taken_is_one_object_for_each_payload(payloads: list[bytes]) -> None:
    try:
        arrays = arrays_of(pa.array(payloads, pa.binary()), FIELDS)
    except UnfitError as exc:
        arrays_of(pa.array(payloads[: exc.index], pa.binary()), FIELDS)
        return
    for at, payload in enumerate(payloads):
        assert {name: each[at].as_py() for name, each in arrays.items()} == row(payload)


def test_the_fields_of_a_sample_have_the_types_that_hold_its_values() -> None:
    sample = [
        {"id": 1, "amount": 2, "when": "2026-11-01", "none": None, "tags": ["2026-11-01"]},
        {"amount": 2.5, "ok": True, "customer": {"name": "x", "since": "2026-11-01T00:00:00"}},
    ]
    assert found_fields([json.dumps(each).encode() for each in sample]) == {
        "id": pa.int64(),
        "amount": pa.float64(),
        "when": pa.string(),
        "none": pa.string(),
        "tags": pa.list_(pa.string()),
        "ok": pa.bool_(),
        "customer": pa.struct([("name", pa.string()), ("since", pa.string())]),
    }
    assert found_fields([]) == {}
    with pytest.raises(ValueError, match="changed from number to string"):
        found_fields([b'{"a":1}', b'{"a":"x"}'])


def test_types_are_those_of_arrow_their_names_or_those_of_python() -> None:
    assert [type_of("a", each) for each in (int, float, bool, str, "int32", pa.date32())] == [
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
        pa.int32(),
        pa.date32(),
    ]
    for wrong in ("number", list, None, 7, pa.large_list(pa.int64())):
        with pytest.raises(ValueError, match="field 'a'"):
            type_of("a", wrong)


def test_nested_fields_and_moments_are_parsed_into_the_types_that_are_named() -> None:
    fields = {
        "when": pa.timestamp("s"),
        "tags": pa.list_(pa.string()),
        "who": pa.struct([("id", pa.int64())]),
    }
    payload = b'{"when":"2026-11-01T12:00:00","tags":["a","b"],"who":{"id":7,"x":1}}'
    arrays = arrays_of(pa.array([payload, b"{}"], pa.binary()), fields)
    assert str(arrays["when"][0]) == "2026-11-01 12:00:00"
    assert arrays["tags"].to_pylist() == [["a", "b"], None]
    assert arrays["who"].to_pylist() == [{"id": 7}, None]


@pytest.mark.parametrize("end", [b"}", b"\n}"])
def test_payloads_may_be_longer_than_what_the_parser_takes_at_once(end: bytes) -> None:
    sizes = [10, BLOCK_BYTES - 20, 10, 3 * BLOCK_BYTES, 0, BLOCK_BYTES]
    payloads = [b'{"s":"%s"' % (b"x" * size) + end for size in sizes]
    arrays = arrays_of(pa.array(payloads, pa.binary()), FIELDS)
    assert [len(each.as_py()) for each in arrays["s"]] == sizes
