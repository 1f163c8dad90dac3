"""The state and the watches of one session with a metadata store.

Inside: the state with its waiters, and the events of watches.
Not inside: detecting changes (each store has its own way) and any I/O.
Always: the event of a watch is set at most once; when the session ends or a suspension ends, every event is
set, since the session may have missed changes.
"""

from __future__ import annotations

import enum
import weakref

import trio

from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError
from ledger.metadata_store.store import SessionState


class WatchKind(enum.Enum):
    """The changes of a node that a watch waits for."""

    DATA = "data"  # its creation, its deletion, a write of its data
    CHILDREN = "children"  # the creation or deletion of a child, its own deletion


Watched = tuple[WatchKind, str]


class Session:
    """The state and the watches of one session; for the trio loop only."""

    def __init__(self) -> None:
        self.state = SessionState.CONNECTED
        self._changed = trio.Event()
        # Weak: a caller that reads again and again with a new event each time must not leave a watch behind
        # each time.
        self._watches: dict[Watched, weakref.WeakSet[trio.Event]] = {}

    def check(self, path: str) -> None:
        """Raise the error of a call unless the session is connected."""
        if self.state is SessionState.SUSPENDED:
            raise ConnectionLostError(path, "the store is out of reach; the request was not sent")
        if self.state is SessionState.EXPIRED:
            raise SessionExpiredError(path)
        if self.state is SessionState.CLOSED:
            raise SessionExpiredError(path, "this client has closed the session")

    def change_state(self, state: SessionState) -> None:
        """Change the state and wake its waiters. A session that is over stays over."""
        if state is self.state or self.state in (SessionState.EXPIRED, SessionState.CLOSED):
            return
        self.state = state
        self._changed.set()
        self._changed = trio.Event()
        if state is not SessionState.SUSPENDED:
            self.fire_all()

    async def wait_state_change(self, seen: SessionState) -> SessionState:
        """Return the state as soon as it differs from ``seen``."""
        while self.state is seen:
            await self._changed.wait()
        return self.state

    def watch(self, kind: WatchKind, path: str, event: trio.Event) -> None:
        """Add a watch."""
        self._watches.setdefault((kind, path), weakref.WeakSet()).add(event)

    def unwatch(self, kind: WatchKind, path: str, event: trio.Event) -> None:
        """Remove a watch that has not fired."""
        events = self._watches.get((kind, path))
        if events is not None:
            events.discard(event)
            if not events:
                del self._watches[kind, path]

    def watched(self) -> list[Watched]:
        """The watches that have not fired and whose events are still referenced."""
        for key in [key for key, events in self._watches.items() if not events]:
            del self._watches[key]
        return list(self._watches)

    def fire(self, kind: WatchKind, path: str) -> None:
        """Set the events of one kind at a path, and remove them."""
        for event in list(self._watches.pop((kind, path), ())):
            event.set()

    def fire_all(self) -> None:
        """Set all events, and remove them."""
        watches, self._watches = self._watches, {}
        for events in watches.values():
            for event in list(events):
                event.set()
