"""What a session's owner is told: its state, and that something watched may have changed.

Inside: the state of one session with its waiters, and the events left as watches.
Not inside: finding out what changed (each store does that its own way) and any I/O.
Always: an event left as a watch is set at most once; when the session ends or comes back from a
suspension, every one of them is set, since changes may have been missed.
"""

from __future__ import annotations

import enum
import weakref

import trio

from namespace.errors import ConnectionLostError, SessionExpiredError
from namespace.store import SessionState


class WatchKind(enum.Enum):
    """What a watch waits for."""

    DATA = "data"  # creation, deletion, a write of its data
    CHILDREN = "children"  # a child coming or going, deletion


Watched = tuple[WatchKind, str]


class Session:
    """State and watches of one session; used on the trio loop only."""

    def __init__(self) -> None:
        self.state = SessionState.CONNECTED
        self._changed = trio.Event()
        # Weak: an event nobody can wait for any more needs no watch, and a caller that looks again and
        # again with a new event each time leaves nothing behind.
        self._watches: dict[Watched, weakref.WeakSet[trio.Event]] = {}

    def check(self, path: str) -> None:
        """Raise what every call raises unless the session is connected."""
        if self.state is SessionState.SUSPENDED:
            raise ConnectionLostError(path, "the store is out of reach; nothing was sent")
        if self.state is SessionState.EXPIRED:
            raise SessionExpiredError(path)
        if self.state is SessionState.CLOSED:
            raise SessionExpiredError(path, "the session was closed by this side")

    def change_state(self, state: SessionState) -> None:
        """Move to a state and wake who waits for that; a session that is over stays over."""
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
        """Leave a watch."""
        self._watches.setdefault((kind, path), weakref.WeakSet()).add(event)

    def unwatch(self, kind: WatchKind, path: str, event: trio.Event) -> None:
        """Take a watch back, if it has not fired."""
        events = self._watches.get((kind, path))
        if events is not None:
            events.discard(event)
            if not events:
                del self._watches[kind, path]

    def watched(self) -> list[Watched]:
        """What somebody still waits for."""
        for key in [key for key, events in self._watches.items() if not events]:
            del self._watches[key]
        return list(self._watches)

    def fire(self, kind: WatchKind, path: str) -> None:
        """Set the events of one kind at a path, and forget them."""
        for event in list(self._watches.pop((kind, path), ())):
            event.set()

    def fire_all(self) -> None:
        """Set every event left."""
        watches, self._watches = self._watches, {}
        for events in watches.values():
            for event in list(events):
                event.set()
