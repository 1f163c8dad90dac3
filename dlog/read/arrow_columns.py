"""Columns of records as arrays of Arrow, each made in one step for all records.

Inside: the names and types of the columns, the array of each. Not inside: the batch (``record_batch``).
Always: a payload is copied once; without keys and headers no object is made for a record.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dlog.read.columns import RecordRun

HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
TYPES: dict[str, pa.DataType] = {
    "segment": pa.int64(),
    "entry": pa.int64(),
    "slot": pa.int64(),
    "txid": pa.int64(),
    "sequence_id": pa.int64(),
    "payload": pa.binary(),
    "key": pa.binary(),
    "headers": HEADERS,
    "dlsn": pa.string(),
}


class BatchColumns(Protocol):
    """The columns of a ``RecordBatch``."""

    def __len__(self) -> int: ...
    def keys(self) -> list[bytes | None]: ...
    def headers(self) -> list[Mapping[str, bytes]]: ...
    @property
    def has_attributes(self) -> bool: ...
    @property
    def segment_seqnos(self) -> array[int]: ...
    @property
    def entry_ids(self) -> array[int]: ...
    @property
    def slot_ids(self) -> array[int]: ...
    @property
    def txids(self) -> array[int]: ...
    @property
    def sequence_ids(self) -> array[int]: ...


def arrow_columns(batch: BatchColumns, runs: Sequence[RecordRun], names: Sequence[str]) -> pa.RecordBatch:
    """The columns of a batch, which is made of these runs."""
    schema = schema_of(names)
    arrays = [_payloads(runs) if name == "payload" else _MAKERS[name](batch) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def schema_of(names: Sequence[str]) -> pa.Schema:
    """The schema of these columns.

    Raises:
        ValueError: There is no such column.
    """
    for name in names:
        if name not in TYPES:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(TYPES)}")
    return pa.schema([pa.field(name, TYPES[name]) for name in names])


def _numbers(values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _payloads(runs: Sequence[RecordRun]) -> pa.Array:
    parts: list[bytes] = []
    for each in runs:
        body = each.body
        parts += [body[start:stop] for start, stop in each.payload_ranges()]
    offsets = array("i", [0])
    offsets.extend(accumulate(map(len, parts)))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.binary(), len(parts), buffers)


def _keys(batch: BatchColumns) -> pa.Array:
    if not batch.has_attributes:
        return pa.nulls(len(batch), pa.binary())
    return pa.array(batch.keys(), pa.binary())


def _headers(batch: BatchColumns) -> pa.Array:
    if not batch.has_attributes:
        offsets = pa.py_buffer(bytes(4 * (len(batch) + 1)))
        return pa.Array.from_buffers(
            HEADERS, len(batch), [None, offsets], children=[pa.array([], HEADERS.value_type)]
        )
    return pa.array([list(each.items()) for each in batch.headers()], HEADERS)


def _positions(batch: BatchColumns) -> pa.Array:
    """The texts of the DLSNs."""
    parts = (batch.segment_seqnos, batch.entry_ids, batch.slot_ids)
    return pc.binary_join_element_wise(*(_numbers(each).cast(pa.string()) for each in parts), ":")


_MAKERS: dict[str, Callable[[BatchColumns], pa.Array]] = {
    "segment": lambda batch: _numbers(batch.segment_seqnos),
    "entry": lambda batch: _numbers(batch.entry_ids),
    "slot": lambda batch: _numbers(batch.slot_ids),
    "txid": lambda batch: _numbers(batch.txids),
    "sequence_id": lambda batch: _numbers(batch.sequence_ids),
    "key": _keys,
    "headers": _headers,
    "dlsn": _positions,
}
