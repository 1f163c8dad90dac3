"""How far a copy is: a note among the properties of the copied log.

The property ``dlog.copy`` holds JSON. The transaction that attaches copied records stores it too, so the note
and the records never disagree::

    {"v": 1, "source": "distributedlog://a:2181/ns", "log": "orders", "batch": 3, "position": [7, 1041, -1],
     "ledger": 812, "sequence": 90210, "records": 90000}

``position`` is the offset of the source through which all records are copied (``spark_integration.offsets``),
``ledger`` the ledger of its segment, ``sequence`` the number of records of the source through it, ``records``
those of them that were copied.

Pure. Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from spark_integration.errors import PipelineError
from spark_integration.offsets import Position, position_from_list
from spark_integration.pipelines.marks import ReadMark

PROPERTY = "dlog.copy"
SERIES = "copy"  # of the batches of a copied log
VERSION = 1


@attrs.frozen(kw_only=True)
class CopyNote:
    """The state of one copied log."""

    source: str  # the name of the namespace that the records come from
    log: str
    batch: int  # the number of the batch that stored the note
    position: Position
    ledger_id: int
    sequence: int
    records: int

    def encode(self) -> str:
        """The text of the property."""
        at = self.position
        return json.dumps(
            {
                "v": VERSION,
                "source": self.source,
                "log": self.log,
                "batch": self.batch,
                "position": [at.segment, at.entry, at.slot],
                "ledger": self.ledger_id,
                "sequence": self.sequence,
                "records": self.records,
            }
        )

    @property
    def mark(self) -> ReadMark:
        """Up to where the source is copied."""
        return ReadMark(
            source=self.source,
            log=self.log,
            position=self.position,
            ledger_id=self.ledger_id,
            sequence=self.sequence,
        )

    def check_source(self, into: str, source: str, log: str) -> None:
        """Raise unless the note is of a copy of this log.

        Raises:
            PipelineError: The log is a copy of another one.
        """
        if (self.source, self.log) != (source, log):
            raise PipelineError(
                f"log {into!r} is a copy of {self.log!r} in {self.source}, not of {log!r} in {source}."
                " Nothing was copied; give the copies a prefix, or, if both are one namespace under two URIs,"
                " the source name of the first copy"
            )


def decode_note(into: str, properties: Mapping[str, str]) -> CopyNote | None:
    """The note among the properties of a log; None if the log is no copy.

    Raises:
        PipelineError: There is a note that does not parse.
    """
    text = properties.get(PROPERTY)
    if text is None:
        return None
    try:
        found = json.loads(text)
        if found["v"] != VERSION:
            raise ValueError(f"version {found['v']!r}")
        numbers = [found[name] for name in ("batch", "ledger", "sequence", "records")]
        if not all(type(number) is int for number in numbers):
            raise ValueError("a number is no number")
        batch, ledger_id, sequence, records = numbers
        return CopyNote(
            source=str(found["source"]),
            log=str(found["log"]),
            batch=batch,
            position=position_from_list(found["position"]),
            ledger_id=ledger_id,
            sequence=sequence,
            records=records,
        )
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise PipelineError(
            f"log {into!r}: the property {PROPERTY!r} is no note of a copy: {exc!r}. Nothing was copied;"
            " a newer release may have written it"
        ) from exc
