"""The health of a namespace, from what this program knows without asking anyone.

Inside: values, and what of them is a problem. Not inside: the session (``ledger.metadata_store``), the
bookies (``ledger.placement``), the writers (``dlog.write``).
Always: no request is sent, nothing is waited for.

Source: our own.
"""

from __future__ import annotations

from typing import Any

import attrs

from dlog.context import NamespaceContext
from dlog.write.health import WriterHealth, WriterState
from ledger.metadata_store.service_uri import without_user_info
from ledger.metadata_store.store import SessionState

_WRITING = (WriterState.OPEN, WriterState.CLOSING, WriterState.CLOSED)


@attrs.frozen
class NamespaceHealth:
    """The state of a namespace at one moment, as its program knows it. ``Namespace.health`` makes it."""

    uri: str
    session: str
    """Of the metadata: ``connected``, ``suspended`` (out of reach), ``expired`` (for good) or ``closed``."""
    bookies: tuple[str, ...]
    """Those that take new segments, by their ids, sorted."""
    readonly_bookies: tuple[str, ...]
    suspect_bookies: tuple[str, ...]
    """Those that failed this program within the last minute."""
    writers: tuple[WriterHealth, ...]
    """Those that are open, in the order of opening."""
    problems: tuple[str, ...]
    """What hinders this program now, each a sentence; empty if nothing does."""

    @property
    def ok(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The same, of texts, numbers, tuples and dicts, for JSON."""

        def plain(_: object, __: object, value: object) -> object:
            return value.value if isinstance(value, WriterState) else value

        return {"ok": self.ok, **attrs.asdict(self, value_serializer=plain)}


def health_of(context: NamespaceContext, pending_s_max: float) -> NamespaceHealth:
    """See ``Namespace.health``."""
    session, membership = context.store.state, context.client.membership
    writers = tuple(writer.health() for writer in context.writers)
    bookies = tuple(sorted(membership.writable))
    problems = []
    if context.is_over:
        problems.append("the namespace is closed")
    elif session is SessionState.SUSPENDED:
        problems.append("the metadata are out of reach")
    elif session is SessionState.EXPIRED:
        problems.append("the metadata are gone: open the namespace again")
    config = context.config
    needed = config.ack_quorum if config.writer.degraded_ensemble else config.ensemble_size
    if len(bookies) < needed and not context.read_only and not context.is_over:
        problems.append(f"{len(bookies)} bookies are writable, and a new segment needs {needed}")
    for each in writers:
        if each.state not in _WRITING:
            why = "" if each.reason is None else f": {each.reason}"
            problems.append(f"the writer of log {each.log!r} is {each.state.value}{why}")
        if each.oldest_pending_s > pending_s_max:
            problems.append(f"log {each.log!r}: a record has waited for {each.oldest_pending_s:.1f} s")
    return NamespaceHealth(
        uri=without_user_info(context.uri),
        session=session.value,
        bookies=bookies,
        readonly_bookies=tuple(sorted(membership.readonly)),
        suspect_bookies=tuple(sorted(membership.suspects)),
        writers=writers,
        problems=tuple(problems),
    )
