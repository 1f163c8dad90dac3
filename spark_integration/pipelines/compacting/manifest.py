"""The manifest of a snapshot: of which log it is, up to where, and by which key.

A snapshot log has it as the property ``dlog.snapshot``, which the transaction stores that attaches the
records. A snapshot of Parquet files has it in the file ``manifest.json``::

    {"v": 1, "source": "distributedlog://a:2181/ns", "log": "prices", "position": [7, 1041, 3], "ledger": 812,
     "sequence": 90210, "key": "get_json_object(text, '$.id')", "rows": 1200, "tombstones": true,
     "base": null}

``position`` is the DLSN of the last record of the source that the snapshot covers, ``ledger`` the ledger of
its segment, ``sequence`` the number of records of the source through it. ``tombstones`` is true if keys whose
last payload is empty were left out.

Pure. Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

import json

import attrs

from spark_integration.errors import PipelineError
from spark_integration.offsets import position_from_list
from spark_integration.pipelines.marks import ReadMark

PROPERTY = "dlog.snapshot"
SERIES = "compact"  # of the one batch of a snapshot log
VERSION = 1


@attrs.frozen(kw_only=True)
class SnapshotManifest:
    """The source and the rules of a snapshot."""

    mark: ReadMark  # up to where it covers its source
    key: str
    drops_tombstones: bool
    base: str | None  # the snapshot that it was made from, with later records of the source
    rows: int

    def encode(self) -> str:
        """The stored text."""
        mark = self.mark
        return json.dumps(
            {
                "v": VERSION,
                "source": mark.source,
                "log": mark.log,
                "position": [mark.position.segment, mark.position.entry, mark.position.slot],
                "ledger": mark.ledger_id,
                "sequence": mark.sequence,
                "key": self.key,
                "rows": self.rows,
                "tombstones": self.drops_tombstones,
                "base": self.base,
            }
        )

    def check_same(self, name: str, *, source: str, log: str, key: str, drops_tombstones: bool) -> None:
        """Raise unless it is of the same log, by the same key.

        Args:
            name: Of the snapshot, for the message.

        Raises:
            PipelineError
        """
        mine = (self.mark.source, self.mark.log, self.key, self.drops_tombstones)
        if mine != (source, log, key, drops_tombstones):
            raise PipelineError(
                f"{name!r} is a snapshot of {self.mark.log!r} in {self.mark.source} by the key {self.key!r}"
                f" {'without' if self.drops_tombstones else 'with'} empty records, and not of {log!r} in"
                f" {source} by {key!r} {'without' if drops_tombstones else 'with'} them. Nothing was written;"
                " give it another name"
            )


def decode_manifest(name: str, text: str) -> SnapshotManifest:
    """Read a stored manifest.

    Args:
        name: Of the snapshot, for the message.

    Raises:
        PipelineError: The text is no manifest of a version that this release knows.
    """
    try:
        found = json.loads(text)
        if found["v"] != VERSION:
            raise ValueError(f"version {found['v']!r}")
        numbers = [found[each] for each in ("ledger", "sequence", "rows")]
        if not all(type(number) is int for number in numbers):
            raise ValueError("a number is no number")
        ledger_id, sequence, rows = numbers
        return SnapshotManifest(
            mark=ReadMark(
                source=str(found["source"]),
                log=str(found["log"]),
                position=position_from_list(found["position"]),
                ledger_id=ledger_id,
                sequence=sequence,
            ),
            key=str(found["key"]),
            drops_tombstones=found["tombstones"] is True,
            base=None if found["base"] is None else str(found["base"]),
            rows=rows,
        )
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise PipelineError(
            f"{name!r}: this is no manifest of a snapshot: {exc!r}. A newer release may have written it"
        ) from exc
