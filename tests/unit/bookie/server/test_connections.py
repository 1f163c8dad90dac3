"""Which connection goes, and which newcomer is refused."""

from __future__ import annotations

from bookie.server.connections import PROGRESS_BYTES_MIN, Connections, Peer


class Door:
    """Connections whose closings are recorded."""

    def __init__(self, connections_max: int = 0) -> None:
        self.connections = Connections(connections_max, first_frame_sweeps=3, frame_sweeps=6)
        self.closed: list[Peer] = []

    def connect(self, address: str = "1.1.1.1", *, is_proven: bool = False) -> Peer | None:
        peer = Peer(address, lambda reason: self.closed.append(peer), is_receiving=True)
        if not self.connections.admit(peer):
            return None
        if is_proven:
            self.frame(peer)
        return peer

    def frame(self, peer: Peer) -> None:
        peer.chunks_count += 1
        self.connections.prove(peer)

    def sweep(self, count: int = 1) -> None:
        for _ in range(count):
            self.connections.begin_sweep()
            for peer in self.connections.peers:
                self.connections.check(peer)


def test_the_oldest_stranger_makes_room_for_a_newcomer_and_no_proven_connection_does() -> None:
    door = Door(3)
    client = door.connect(is_proven=True)
    strangers = [door.connect() for _ in range(10)]
    assert door.closed == strangers[:8]
    assert len(door.connections) == 3
    assert client in door.connections.peers


def test_a_newcomer_is_refused_if_all_places_belong_to_proven_connections_of_its_own_address() -> None:
    door = Door(3)
    for _ in range(3):
        door.connect(is_proven=True)
    door.sweep(100)
    assert door.connect() is None
    assert door.closed == []


def test_an_address_that_holds_most_places_gives_an_idle_one_to_another_address() -> None:
    door = Door(8)
    hoard = [door.connect("6.6.6.6", is_proven=True) for _ in range(8)]
    assert door.connect("1.1.1.1") is None, "none of them has been idle for a while"
    door.sweep(2)
    for peer in hoard[:5]:
        assert peer is not None
        door.frame(peer)
    door.sweep()
    newcomer = door.connect("1.1.1.1", is_proven=True)
    assert newcomer is not None
    assert door.closed == [hoard[5]], "the first of those that are idle for longest"
    assert door.connect("6.6.6.6") is None
    others = [door.connect("1.1.1.1", is_proven=True) for _ in range(4)]
    assert others.count(None) == 3, "one address may not take all from the other either"


def test_a_connection_without_a_whole_first_frame_is_closed() -> None:
    door = Door()
    silent, half = door.connect(), door.connect()
    assert half is not None
    half.held_bytes = 40
    door.sweep(2)
    assert door.closed == []
    door.sweep()
    assert door.closed == [silent, half]
    assert len(door.connections) == 0


def test_a_frame_that_stops_half_way_closes_a_proven_connection_and_idleness_does_not() -> None:
    door = Door()
    half, idle = door.connect(is_proven=True), door.connect(is_proven=True)
    door.sweep()
    assert half is not None
    half.held_bytes = 5
    door.sweep(6)
    assert door.closed == [half]
    door.sweep(10_000)
    assert door.closed == [half]
    assert door.connections.peers == [idle]


def test_progress_within_a_frame_counts_and_a_byte_now_and_then_does_not() -> None:
    door = Door()
    slow, loris = door.connect(), door.connect()
    assert slow is not None
    assert loris is not None
    for _ in range(20):
        slow.held_bytes += PROGRESS_BYTES_MIN
        loris.held_bytes += 1
        door.sweep(2)
    assert door.closed == [loris]


def test_a_peer_is_not_overdue_while_the_bookie_does_not_receive() -> None:
    door = Door()
    waiting = door.connect()
    assert waiting is not None
    waiting.held_bytes, waiting.is_receiving = 100, False
    door.sweep(100)
    waiting.is_receiving = True
    door.sweep(2)
    assert door.closed == []
    door.sweep()
    assert door.closed == [waiting]


def test_a_connection_that_begins_tls_must_prove_itself_again() -> None:
    door = Door(2)
    upgraded, client = door.connect(is_proven=True), door.connect(is_proven=True)
    assert upgraded is not None
    door.sweep()
    door.connections.unprove(upgraded)
    door.sweep(3)
    assert door.closed == [upgraded]
    assert door.connections.peers == [client]


def test_shedding_closes_strangers_only() -> None:
    door = Door()
    client = door.connect(is_proven=True)
    strangers = [door.connect() for _ in range(5)]
    assert door.connections.shed(3) == 3
    assert door.closed == strangers[:3]
    assert door.connections.shed(9) == 2
    assert door.connections.peers == [client]


def test_leaving_twice_is_harmless() -> None:
    door = Door(1)
    first = door.connect()
    assert first is not None
    door.connect()  # closes the first
    door.connections.leave(first)
    assert len(door.connections) == 1
