"""Fields of JSON payloads as arrays, by Arrow's own parser.

Inside: the types of fields, said by the caller or found in a sample; the arrays; which payload does not fit.
Not inside: records, typed ones too (``schema``).
Always: one row for each payload. A field that is missing or null is null; a value of another type is an error
and never null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from ledger.pickling import PicklableError

Fields = Mapping[str, pa.DataType]
_OF_PYTHON: dict[object, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
}
_WHITESPACE = " \t\r\n"
_NEWLINE = re.compile(b"\n")
BLOCK_BYTES = 1 << 18  # that the parser takes at once: what stays in a cache of the processor


class UnfitError(PicklableError):
    """The payload at this index does not fit."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index, self.problem = index, problem


def type_of(name: str, given: Any) -> pa.DataType:
    """The type of a field: one of Arrow, its name as a text, or int, float, str or bool.

    Raises:
        ValueError: It is none, or JSON cannot give it.
    """
    found = _OF_PYTHON.get(given) if isinstance(given, type) else given
    if isinstance(found, str):
        try:
            found = pa.type_for_alias(found)
        except ValueError:
            raise ValueError(f"field {name!r}: there is no type {given!r}; one is int64 or string") from None
    if not isinstance(found, pa.DataType):
        raise ValueError(f"field {name!r}: {given!r} is no type of Arrow")
    try:
        _read(b"{}", {name: found})
    except pa.ArrowNotImplementedError:
        raise ValueError(f"field {name!r}: a payload of JSON cannot hold {found}") from None
    return found


def found_fields(objects: Sequence[bytes]) -> dict[str, pa.DataType]:
    """The fields of a sample, in the order of their first appearance, with the types that hold all values.

    Text stays text, also that of a moment. A field that is always null is text.

    Raises:
        ValueError: The values of a field have no type in common.
    """
    if not objects:
        return {}
    try:
        schema = _read(b"\n".join(objects), None).schema
    except pa.ArrowInvalid as exc:
        raise ValueError(str(exc)) from None
    return {field.name: _kept(field.type) for field in schema}


def _kept(found: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(found) or pa.types.is_null(found):
        return pa.string()
    if pa.types.is_list(found):
        return pa.list_(_kept(found.value_type))
    if pa.types.is_struct(found):
        return pa.struct([field.with_type(_kept(field.type)) for field in found])
    return found


def arrays_of(payloads: pa.Array, fields: Fields) -> dict[str, pa.Array]:
    """The arrays of the fields, one element for each payload.

    Raises:
        UnfitError: A payload is no JSON object, or a value has another type. It is the first such one.
    """
    try:
        return _arrays_of(payloads, fields)
    except (pa.ArrowInvalid, UnicodeDecodeError) as exc:
        error: Exception = exc
    first, stop = 0, len(payloads)
    while stop - first > 1:  # those before ``first`` fit, one before ``stop`` does not
        middle = (first + stop) // 2
        try:
            _arrays_of(payloads[first:middle], fields)
            first = middle
        except (pa.ArrowInvalid, UnicodeDecodeError) as exc:
            stop, error = middle, exc
    try:
        _arrays_of(payloads[first:stop], fields)
    except (pa.ArrowInvalid, UnicodeDecodeError) as exc:
        error = exc
    raise UnfitError(first, str(error).removesuffix(" in row 0").removeprefix("JSON parse error: "))


def _arrays_of(payloads: pa.Array, fields: Fields) -> dict[str, pa.Array]:
    count = len(payloads)
    if not count or not fields:
        return {name: pa.nulls(count, kind) for name, kind in fields.items()}
    text = payloads.cast(pa.string())
    if not _are_braced(text):
        text = pc.utf8_trim(text, _WHITESPACE)
        if not _are_braced(text):
            raise pa.ArrowInvalid("it is no JSON object")
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), text), "\n")
    size = pc.binary_length(lines)[0].as_py()
    # The buffer may hold more payloads than these; a newline in another one only costs time.
    has_newlines = _NEWLINE.search(memoryview(text.buffers()[2] or b"")) is not None
    table = _read(
        lines.buffers()[2].slice(0, size),
        fields,
        newlines=has_newlines,
        row_bytes_max=pc.max(pc.binary_length(text)).as_py(),
    )
    # Each payload begins and ends an object, and JSON joins no two of them: with this many rows each is one.
    if table.num_rows != count:
        raise pa.ArrowInvalid("it is more than one JSON object")
    return {name: table[name].combine_chunks() for name in fields}


def _are_braced(text: pa.Array) -> bool:
    braced = pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))
    return bool(pc.all(braced).as_py())


def _read(
    lines: Any, fields: Fields | None, *, newlines: bool = False, row_bytes_max: int | None = None
) -> pa.Table:
    options = pa.json.ParseOptions(
        explicit_schema=None if fields is None else pa.schema(list(fields.items())),
        unexpected_field_behavior="infer" if fields is None else "ignore",
        newlines_in_values=newlines,
    )
    row_bytes_max = len(lines) if row_bytes_max is None else row_bytes_max
    block_size = max(BLOCK_BYTES, row_bytes_max + 2)  # a row may not be longer than a block
    reading = pa.json.ReadOptions(use_threads=False, block_size=block_size)
    return pa.json.read_json(pa.BufferReader(lines), read_options=reading, parse_options=options)
