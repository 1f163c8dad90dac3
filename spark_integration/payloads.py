"""Payloads in the format of the query: bytes, text, or the columns of JSON objects.

Always: the result has one value for each payload, in order. A payload of another format is an error with its
place, or null, never a value of another payload. No Python object is made for a record, unless payloads
are broken.

A JSON payload is parsed as ``{"p":PAYLOAD}`` in a line of its own. So an empty payload is an error and not a
missing line, and a payload with two objects makes one line too many, which is seen by the count.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spark_integration.errors import PayloadFormatError

Decode = Callable[[pa.Array], pa.Array]


def decoded(
    payloads: pa.Array, decode: Decode, *, null_on_error: bool, place: Callable[[int], str]
) -> pa.Array:
    """The payloads decoded.

    Args:
        null_on_error: A payload of another format becomes null.
        place: Describes where a payload was, by its index, for the error.

    Raises:
        PayloadFormatError: A payload is of another format; without ``null_on_error``.
    """
    try:
        return decode(payloads)
    except pa.ArrowInvalid as exc:
        if len(payloads) == 1:
            if not null_on_error:
                what = (
                    "is JSON that payloadSchema does not fit"
                    if _is_json(payloads)
                    else "is of another format"
                )
                raise PayloadFormatError(
                    f"{place(0)}: the payload {what}: {_first_line(exc)}; correct payloadFormat or"
                    " payloadSchema, or read such payloads as null with payloadErrors=null"
                ) from None
            return decode(pa.nulls(1, payloads.type))
    # One of them is broken: each half is decoded by itself.
    half = len(payloads) // 2
    parts = [
        decoded(
            payloads[first : first + half if not first else None],
            decode,
            null_on_error=null_on_error,
            place=lambda index, first=first: place(first + index),  # type: ignore[misc]
        )
        for first in (0, half)
    ]
    return pa.concat_arrays(parts)


def as_text(payloads: pa.Array) -> pa.Array:
    """UTF-8 as strings.

    Raises:
        pyarrow.ArrowInvalid: A payload is no UTF-8.
    """
    return pc.cast(payloads, pa.string())


def json_decoder(fields: pa.StructType) -> Decode:
    """The decoder of JSON objects with these fields. Other fields are left out, missing ones are null.

    Raises:
        pyarrow.ArrowNotImplementedError: JSON cannot be read as a field's type, such as a map or a date.
    """
    _check(fields)
    schema = pa.schema([pa.field("p", fields)])
    parse = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    def decode(payloads: pa.Array) -> pa.Array:
        if not len(payloads):
            return pa.array([], fields)
        as_text(payloads)  # the parser would take other bytes, and Spark no such string
        # A line feed in JSON is only white space: inside of a string it is escaped.
        lines = pc.replace_substring(pc.fill_null(payloads, b"null"), b"\n", b" ")
        lines = pc.binary_join_element_wise(b'{"p":', lines, b"}\n", b"")
        text = lines.buffers()[2]
        offset, stop = _ends(lines)
        text = text.slice(offset, stop - offset)
        read = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = pj.read_json(pa.BufferReader(text), read_options=read, parse_options=parse)
        if table.num_rows != len(payloads):
            raise pa.ArrowInvalid("the payload is more than one JSON value")
        column = table.column("p").combine_chunks()
        return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)

    decode(pa.array([b"null"]))
    return decode


def _check(kind: pa.DataType) -> None:
    if pa.types.is_date(kind):  # Arrow would read a number of days, and no text
        raise pa.ArrowNotImplementedError("JSON conversion to a date is not supported")
    for index in range(kind.num_fields):
        _check(kind.field(index).type)


def _ends(lines: pa.Array) -> tuple[int, int]:
    """Where the bytes of an array of binary values begin and end in its buffer."""
    offsets = pa.Array.from_buffers(
        pa.int32(), len(lines) + 1, [None, lines.buffers()[1]], offset=lines.offset
    )
    return offsets[0].as_py(), offsets[-1].as_py()


def _is_json(payloads: pa.Array) -> bool:
    try:
        json.loads(payloads[0].as_py())
    except (ValueError, RecursionError, TypeError):
        return False
    return True


def _first_line(exc: Exception) -> str:
    return str(exc).splitlines()[0] if str(exc) else type(exc).__name__
