"""Which peers are connected, which of them must go, and which newcomer is refused.

A connection is *proven* once a whole frame has come over it. Strangers that connect and wait, or begin a
frame and stop, never prove a connection.

Inside: the limit on connections, the choice of the one that makes room, the times for the first frame and for
progress within a frame. Not inside: sockets and tasks (``connection``), accepting and the clock (``server``).
Always: a proven connection that is idle between two frames is never overdue; a connection is not overdue
while the bookie itself receives nothing from it. Time counts in sweeps of the server. A bookie that was
stopped for a while has made none, so it blames no peer for that time.

Source: docs/security.md, "Connections and descriptors". Apache's bookie has no such limits.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

PROGRESS_BYTES_MIN = 4096  # of an incomplete frame, in each timeout; fewer bytes are no progress
_IDLE_SWEEPS = 2  # a proven connection must be idle this long before a newcomer may take its place
_CANDIDATES_MAX = 64  # connections looked at for one newcomer


@attrs.define(eq=False)
class Peer:
    """One connection, as ``Connections`` sees it. The receiving task keeps the first fields up to date."""

    address: str  # without port; peers with the same address share a fate when places are short
    close: Callable[[str], None]  # called with the reason; must not raise
    chunks_count: int = 0  # received chunks that completed a frame
    held_bytes: int = 0  # of an incomplete frame
    is_receiving: bool = False  # False while the bookie itself does not receive
    is_proven: bool = False
    # Of ``Connections``:
    seen_chunks: int = 0
    seen_bytes: int = 0
    progress_sweep: int = 0  # the last sweep that saw progress, or nothing to wait for
    active_sweep: int = 0  # the last sweep that saw a new frame


class Connections:
    """See the module. On the loop."""

    def __init__(self, connections_max: int, *, first_frame_sweeps: int, frame_sweeps: int) -> None:
        """
        Args:
            connections_max: 0: no limit.
            first_frame_sweeps: Sweeps without progress after which an unproven connection is closed.
            frame_sweeps: Sweeps without progress after which a proven connection with half a frame is closed.
        """
        self._connections_max = connections_max
        self._first_frame_sweeps = first_frame_sweeps
        self._frame_sweeps = frame_sweeps
        self._peers: dict[Peer, None] = {}
        self._unproven: dict[Peer, None] = {}  # oldest first
        self._of_address: dict[str, dict[Peer, None]] = {}
        self._sweep = 0
        self._largest: tuple[int, str] = (-1, "")  # the sweep in which it was found, and the address

    def __len__(self) -> int:
        return len(self._peers)

    def __repr__(self) -> str:
        return f"<Connections, {len(self._peers)} of {self._connections_max}, {len(self._unproven)} unproven>"

    @property
    def is_full(self) -> bool:
        return 0 < self._connections_max <= len(self._peers)

    @property
    def peers(self) -> list[Peer]:
        return list(self._peers)

    def admit(self, peer: Peer) -> bool:
        """Add a new connection. False if there is no place for it: close it.

        When all places are taken, the oldest unproven connection is closed for the new one. If all are
        proven, an idle one is closed whose address has more than twice the connections of the new one's.
        """
        if self.is_full and not self._make_room(peer.address):
            return False
        peer.progress_sweep = peer.active_sweep = self._sweep
        self._peers[peer] = self._unproven[peer] = None
        self._of_address.setdefault(peer.address, {})[peer] = None
        return True

    def leave(self, peer: Peer) -> None:
        """The connection has ended. No error if it was closed by this object."""
        if peer not in self._peers:
            return
        del self._peers[peer]
        self._unproven.pop(peer, None)
        of_address = self._of_address[peer.address]
        del of_address[peer]
        if not of_address:
            del self._of_address[peer.address]

    def prove(self, peer: Peer) -> None:
        """A whole frame has come over the connection."""
        peer.is_proven = True
        self._unproven.pop(peer, None)

    def unprove(self, peer: Peer) -> None:
        """The connection begins again, as one that uses TLS."""
        peer.is_proven = False
        peer.progress_sweep = self._sweep
        if peer in self._peers:
            self._unproven[peer] = None

    def shed(self, count: int) -> int:
        """Close up to ``count`` unproven connections, oldest first; return how many."""
        closed = 0
        while closed < count and self._unproven:
            self._close(next(iter(self._unproven)), "descriptors are short, and it has sent no whole frame")
            closed += 1
        return closed

    def begin_sweep(self) -> None:
        """A sweep begins: ``check`` is to be called for each of ``peers``."""
        self._sweep += 1

    def check(self, peer: Peer) -> bool:
        """Close the connection if its peer is overdue; True if it was."""
        sweep = self._sweep
        held_bytes = peer.held_bytes
        if peer.chunks_count != peer.seen_chunks:
            peer.seen_chunks = peer.chunks_count
            peer.active_sweep = peer.progress_sweep = sweep
            peer.seen_bytes = held_bytes
        elif not peer.is_receiving or held_bytes - peer.seen_bytes >= PROGRESS_BYTES_MIN:
            peer.progress_sweep = sweep
            peer.seen_bytes = held_bytes
        elif peer.is_proven and not held_bytes:
            peer.progress_sweep = sweep
        elif peer in self._peers:
            sweeps = self._frame_sweeps if peer.is_proven else self._first_frame_sweeps
            if sweep - peer.progress_sweep >= sweeps:
                self._close(
                    peer,
                    f"it has begun a frame ({held_bytes} bytes) and stopped sending"
                    if held_bytes
                    else "it has sent no whole frame in time",
                )
                return True
        return False

    def _make_room(self, address: str) -> bool:
        if self._unproven:
            self._close(
                next(iter(self._unproven)), "all places are taken, and it has sent no whole frame for longest"
            )
            return True
        if self._largest[0] != self._sweep or self._largest[1] not in self._of_address:
            largest = max(self._of_address, key=lambda one: len(self._of_address[one]))
            self._largest = (self._sweep, largest)
        rivals = self._of_address[self._largest[1]]
        if len(rivals) <= 2 * (len(self._of_address.get(address, ())) + 1):
            return False
        candidates = [peer for _, peer in zip(range(_CANDIDATES_MAX), rivals, strict=False)]
        idlest = min(candidates, key=lambda peer: peer.active_sweep)
        if self._sweep - idlest.active_sweep < _IDLE_SWEEPS:
            return False
        self._close(idlest, "all places are taken, and its address has most of them")
        return True

    def _close(self, peer: Peer, reason: str) -> None:
        self.leave(peer)
        peer.close(reason)
