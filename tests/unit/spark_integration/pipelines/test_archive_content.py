"""The digest of a segment's rows depends on the rows and on nothing else."""

# covers: spark_integration/pipelines/archives/content.py

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_integration.errors import ArchiveDamagedError
from spark_integration.pipelines.archives.content import SCHEMA, ContentCheck
from spark_integration.pipelines.archives.manifest import Content

Row = tuple[int, int, int, int, int, bytes]
PAYLOADS = st.lists(st.binary(max_size=5), min_size=1, max_size=12)


def rows_of(payloads: list[bytes]) -> list[Row]:
    return [(7, at // 3, at % 3, 100 + at // 2, at, payload) for at, payload in enumerate(payloads)]


def content_of(*batches: list[Row]) -> Content | None:
    check = ContentCheck(7)
    for rows in batches:
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 6
        whole = pa.RecordBatch.from_arrays(
            [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)],
            schema=SCHEMA,
        )
        check.add(whole)
    return check.content


@given(PAYLOADS, st.data())
def test_the_division_into_batches_does_not_matter(payloads: list[bytes], data: st.DataObject) -> None:
    rows = rows_of(payloads)
    cut = data.draw(st.integers(0, len(rows)))
    whole = content_of(rows)
    assert whole is not None
    assert content_of(rows[:cut], rows[cut:]) == whole
    # Slices of one batch, whose buffers are shared.
    columns = [list(column) for column in zip(*rows, strict=True)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
    check = ContentCheck(7)
    check.add(batch[:cut])
    check.add(batch[cut:])
    assert check.content == whole


@given(PAYLOADS, st.data())
def test_every_change_of_a_value_changes_the_digest(payloads: list[bytes], data: st.DataObject) -> None:
    rows = rows_of(payloads)
    at, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.sampled_from([3, 4, 5]))
    row = list(rows[at])
    row[column] = row[column] + b"x" if column == 5 else row[column] + 1000  # type: ignore[operator]
    other = [*rows[:at], tuple(row), *rows[at + 1 :]]
    before, after = content_of(rows), content_of(other)  # type: ignore[arg-type]
    assert before is not None
    assert after is not None
    assert before.sha256 != after.sha256


def test_a_byte_that_moves_to_the_next_payload_changes_the_digest() -> None:
    one, other = content_of(rows_of([b"ab", b"c"])), content_of(rows_of([b"a", b"bc"]))
    assert one is not None
    assert other is not None
    assert one.sha256 != other.sha256


def test_rows_out_of_order_or_of_another_segment_are_an_error() -> None:
    rows = rows_of([b"a", b"b", b"c", b"d"])
    for wrong in ([rows[1], rows[0]], [rows[0], rows[0]], [(8, *rows[0][1:])]):
        with pytest.raises(ArchiveDamagedError):
            content_of(wrong)
        if wrong[0][0] == 7:
            with pytest.raises(ArchiveDamagedError):
                content_of(*([each] for each in wrong))
    assert content_of([]) is None
