"""The errors of sharded logs, beside those of ``dlog.errors``."""

from __future__ import annotations

from collections.abc import Sequence

from dlog.errors import DLogError, LogMetadataError


class NotShardedError(DLogError):
    """There is no sharded log with this name. Create it with ``create_sharded_log``."""

    def __init__(self, name: str, evidence: str) -> None:
        super().__init__(
            f"{name!r} is no sharded log: {evidence}; create it with `dlog log create {name} --shards N`"
        )
        self.name, self.evidence = name, evidence


class ShardCountError(DLogError):
    """The sharded log exists with another number of shards. The number never changes; nothing was changed."""

    def __init__(self, name: str, count: int, wanted: int) -> None:
        super().__init__(
            f"sharded log {name!r} has {count} shards, not {wanted}, and the number cannot change: the"
            " records of a key would be in two shards; use its number, or another name"
        )
        self.name, self.count, self.wanted = name, count, wanted


class ShardsMissingError(LogMetadataError):
    """Shards of the sharded log do not exist, so that it is not opened. Nothing was changed."""

    def __init__(self, name: str, missing: Sequence[str], *, is_complete: bool, count: int) -> None:
        if is_complete:
            remedy = (
                "they were deleted, with their records; to go on with empty ones, create them with `dlog log"
                f" create {missing[0]}`"
            )
        else:
            remedy = (
                "its creation was interrupted; finish it with `dlog log create"
                f" {name} --shards {count} --exist-ok`"
            )
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        super().__init__(f"sharded log {name!r}: missing {shown or 'the mark of completion'}: {remedy}")
        self.name, self.missing, self.is_complete = name, tuple(missing), is_complete
