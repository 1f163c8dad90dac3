"""The mark of a ledger: for which log, and for which batch, it was made.

Four pairs of the ledger's custom metadata. A fifth is ``LogMetadata.allocation_stamp``::

    dlog.namespace  /messaging/shop                                    the path of the namespace's node
    dlog.log        orders                                             the name of the log at that time
    dlog.log-id     6f1cbd0e6a0e4f6a9a4e2f7f6c4b7c55                   the log's identity, also after a rename
    dlog.batch      {"series": "import", "number": 7, "token": ""}     only if a batch made it

Inside: the values, both directions. Not inside: the first two pairs, which bookies read, too
(``ledger.policy``); the node with a log's identity (``namespace.log_identity``).
Always: ``LedgerMark.of(mark.custom) == mark``; pairs of other programs are ignored.

Source: our own; docs/metadata.md 10.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import attrs

from ledger.errors import MetadataFormatError
from ledger.policy import LogMark

LOG_ID_KEY, BATCH_KEY = "dlog.log-id", "dlog.batch"
_LOG_ID = re.compile(rb"[0-9a-f]{32}")


@attrs.frozen
class BatchMark:
    """The batch that a ledger was made for."""

    series: str | None
    number: int
    token: str = attrs.field(
        default="", repr=False
    )  # random, of a batch without a series; such batches have no other identity


@attrs.frozen
class LedgerMark:
    """The owner of a ledger, by its custom metadata."""

    namespace: str  # the path of the namespace's node
    log: str  # the name that the log had when the ledger was made
    log_id: str | None = None  # None: made by a release without identities of logs
    batch: BatchMark | None = None

    @property
    def custom(self) -> dict[str, bytes]:
        """The custom metadata of a new ledger."""
        custom = LogMark(self.namespace, self.log).custom
        if self.log_id is not None:
            custom[LOG_ID_KEY] = self.log_id.encode()
        if self.batch is not None:
            custom[BATCH_KEY] = json.dumps(attrs.asdict(self.batch)).encode()
        return custom

    @classmethod
    def of(cls, custom: Mapping[str, bytes]) -> LedgerMark | None:
        """The mark in the custom metadata of a ledger; None if there is none.

        Raises:
            MetadataFormatError: There is a part of a mark, or it does not parse.
        """
        named = LogMark.of(custom)
        log_id, batch = custom.get(LOG_ID_KEY), custom.get(BATCH_KEY)
        if named is None:
            if log_id is not None or batch is not None:
                raise MetadataFormatError(
                    f"custom metadata with {LOG_ID_KEY} or {BATCH_KEY} and without a log"
                )
            return None
        if log_id is not None and not _LOG_ID.fullmatch(log_id):
            raise MetadataFormatError(f"{LOG_ID_KEY} is {log_id[:40]!r}, not 32 hexadecimal digits")
        return cls(
            named.namespace,
            named.log,
            None if log_id is None else log_id.decode(),
            None if batch is None else _decode_batch(batch),
        )


def _decode_batch(data: bytes) -> BatchMark:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise MetadataFormatError(f"{BATCH_KEY} is not JSON: {exc}") from None
    if not isinstance(fields, dict) or set(fields) != {"series", "number", "token"}:
        raise MetadataFormatError(f"{BATCH_KEY} is no object of series, number and token")
    series, number, token = fields["series"], fields["number"], fields["token"]
    if not isinstance(series, str | None) or type(number) is not int or not isinstance(token, str):
        raise MetadataFormatError(f"{BATCH_KEY} has a value of another type")
    return BatchMark(series, number, token)
