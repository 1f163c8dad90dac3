"""Requests whose reply comes later.

Inside: the compact form of many plain reads, woken long polls, the type of all such requests. Not inside:
the choice of these requests (``session``), the work (``reads``), its time (``deferred_work``).
"""

from __future__ import annotations

import itertools
from struct import Struct

import attrs

from ledger.wire.messages import IncomingRequest, ReadRequest

_IDS = Struct(">qq")  # ledger id, entry id


@attrs.frozen
class PlainReads:
    """Version 2 reads, without flags, of entries that are not in memory, in order of arrival."""

    ids: bytes  # ledger id and entry id of each; in this form many may wait in little memory

    @classmethod
    def of(cls, *entries: tuple[int, int]) -> PlainReads:
        return cls(b"".join(itertools.starmap(_IDS.pack, entries)))

    def __len__(self) -> int:
        return len(self.ids) // _IDS.size

    def __getitem__(self, at: int) -> tuple[int, int]:
        """Ledger id, entry id."""
        ledger_id, entry_id = _IDS.unpack_from(self.ids, at * _IDS.size)
        return ledger_id, entry_id


@attrs.frozen
class WokenPoll:
    """A long poll that gets its reply now: the LAC has grown, the ledger has changed, or its time is over."""

    incoming: IncomingRequest
    request: ReadRequest
    updated_ms: int | None  # when the ledger changed; None: it did not
    more_follow: bool = False  # the long poll continues after this reply


DeferredRequest = PlainReads | IncomingRequest | WokenPoll
"""A request that gets its reply later, or several of them."""


def is_long_poll(deferred: DeferredRequest) -> bool:
    """True if the request waits for a time that the client chooses.

    As for Apache's bookie, a read without ``previous_lac`` is an ordinary one, and its timeout says nothing.
    """
    return (
        isinstance(deferred, IncomingRequest)
        and isinstance(deferred.request, ReadRequest)
        and not deferred.request.fence
        and deferred.request.previous_lac is not None
        and deferred.request.timeout_ms is not None
    )
