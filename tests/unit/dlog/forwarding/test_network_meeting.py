"""The port of an owner in a cluster: who gets in, and what strangers cannot do there."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import pytest
import trio

from dlog.cluster.ports import free_ports
from dlog.errors import AccessDeniedError, ConfigError, LogUnavailableError
from dlog.forwarding.network_meeting import NetworkMeeting
from dlog.forwarding.shared_shell import NoMeetingError
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.transport.bookie_security import BookieSecurity
from namespace.log_nodes import LogNodes, policy_path
from namespace.owner_address import OwnerPlace, parse_listen_at, parse_owner_place
from namespace.owner_node import read_owner
from tests.fakes.certificates import TestAuthority, make_authority

pytestmark = pytest.mark.slow
TEST_TIMEOUT_S = 60


@attrs.define
class Door:
    """An owner that greets each program it serves."""

    meeting: NetworkMeeting
    nodes: LogNodes
    place: OwnerPlace
    served: int = 0

    async def serve(self, stream: trio.abc.Stream, name: str | None) -> None:
        self.served += 1
        await stream.send_all(b"welcome")
        while await stream.receive_some():
            pass

    async def knock(self, shown: bytes) -> bytes:
        """What a stranger gets that sends these bytes, to the end of its connection."""
        async with await trio.open_tcp_stream(self.place.host, self.place.port) as stream:
            try:
                await stream.send_all(shown)
                return b"".join([bytes(chunk) async for chunk in stream])
            except trio.BrokenResourceError:
                return b""

    async def is_open(self) -> bool:
        """True if a program that has read the node is served."""
        async with self.meeting.connected(str(self.place)) as stream:
            return stream is not None and await stream.receive_some() == b"welcome"


@pytest.fixture
async def nodes() -> AsyncIterator[LogNodes]:
    async with open_memory_store(MemoryTree()) as store:
        nodes = LogNodes(store, "/ns", "log")
        await store.create(nodes.root_path, b"", parents=True)
        with trio.fail_after(TEST_TIMEOUT_S):
            yield nodes


@pytest.fixture
async def door(nodes: LogNodes) -> AsyncIterator[Door]:
    meeting = NetworkMeeting(parse_listen_at("127.0.0.1"), nodes)
    door = Door(meeting, nodes, OwnerPlace("", 0, b""))
    async with meeting.opened(door.serve):
        owner = await read_owner(nodes)
        place = None if owner is None else parse_owner_place(owner.address)
        assert place is not None
        door.place = place
        yield door


async def test_a_program_that_shows_the_key_of_the_node_is_served_and_counted(door: Door) -> None:
    assert await door.meeting.address(trio.Event()) == str(door.place)
    async with door.meeting.connected(str(door.place)) as stream:
        assert stream is not None
        assert await stream.receive_some() == b"welcome"
        changed = trio.Event()
        while (owner := await read_owner(door.nodes, changed)) is None or owner.forwarders != 1:
            await changed.wait()
            changed = trio.Event()


async def test_when_the_owner_leaves_its_node_goes_and_nobody_is_there(nodes: LogNodes) -> None:
    meeting = NetworkMeeting(parse_listen_at("127.0.0.1"), nodes)
    door = Door(meeting, nodes, OwnerPlace("", 0, b""))
    async with meeting.opened(door.serve):
        address = await meeting.address(trio.Event())
    assert await meeting.address(trio.Event()) is None
    assert address is not None
    async with meeting.connected(address) as stream:
        assert stream is None


@pytest.mark.parametrize(
    "shown", [b"\0" * 16, b"\0" * 100_000, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 9]
)
async def test_a_stranger_without_the_key_is_not_served_and_keeps_nobody_out(
    door: Door, shown: bytes
) -> None:
    assert await door.knock(shown) == b""
    assert door.served == 0
    assert await door.is_open()


async def test_a_program_with_the_key_of_an_owner_of_yesterday_is_not_served(door: Door) -> None:
    yesterday = attrs.evolve(door.place, key=b"y" * 16)
    async with door.meeting.connected(str(yesterday)) as stream:
        assert stream is None
    assert door.served == 0


async def test_strangers_that_say_nothing_are_closed_and_hold_few_places(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.forwarding.network_meeting.STRANGERS_MAX", 2)
    monkeypatch.setattr("dlog.forwarding.network_meeting.GREETING_S", 0.2)
    async with trio.open_nursery() as nursery:
        ends: list[bytes] = []

        async def say_nothing() -> None:
            ends.append(await door.knock(b""))

        for _ in range(9):
            nursery.start_soon(say_nothing)
    assert ends == [b""] * 9
    assert door.served == 0
    assert await door.is_open()


async def test_an_owner_takes_the_first_free_port_of_its_range(nodes: LogNodes) -> None:
    first, second = sorted(free_ports(2, random.Random(), host="127.0.0.1"))
    with socket.create_server(("127.0.0.1", first)):
        meeting = NetworkMeeting(parse_listen_at(f"127.0.0.1:{first}-{second}"), nodes)
        async with meeting.opened(Door(meeting, nodes, OwnerPlace("", 0, b"")).serve):
            place = parse_owner_place(str(await meeting.address(trio.Event())))
            assert place is not None
            assert first < place.port <= second


async def test_an_owner_without_a_free_port_may_be_one_later(nodes: LogNodes) -> None:
    (port,) = free_ports(1, random.Random(), host="127.0.0.1")
    meeting = NetworkMeeting(parse_listen_at(f"127.0.0.1:{port}"), nodes)
    door = Door(meeting, nodes, OwnerPlace("", 0, b""))
    with socket.create_server(("127.0.0.1", port)), pytest.raises(LogUnavailableError, match="no port of"):
        async with meeting.opened(door.serve):
            raise AssertionError("it listens")
    async with meeting.opened(door.serve):
        assert await meeting.address(trio.Event()) is not None


async def test_an_error_of_the_store_comes_out_as_it_is_so_that_the_writer_tries_again(
    nodes: LogNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object, **__: object) -> None:
        raise ConnectionLostError("the store is away")

    meeting = NetworkMeeting(parse_listen_at("127.0.0.1"), nodes)
    monkeypatch.setattr(nodes.store, "create", lost)
    with pytest.raises(ConnectionLostError, match="the store is away"):
        async with meeting.opened(Door(meeting, nodes, OwnerPlace("", 0, b"")).serve):
            raise AssertionError("it is published")


async def test_an_address_of_another_machine_is_an_error_of_the_configuration(nodes: LogNodes) -> None:
    meeting = NetworkMeeting(parse_listen_at("192.0.2.1"), nodes)
    with pytest.raises(
        NoMeetingError, match=r"owner_address: this program cannot listen at 192\.0\.2\.1"
    ) as caught:
        async with meeting.opened(Door(meeting, nodes, OwnerPlace("", 0, b"")).serve):
            raise AssertionError("it listens")
    assert isinstance(caught.value.problem, ConfigError)


# With certificates.


@attrs.frozen
class Programs:
    """Programs with certificates of one authority, and one of another."""

    home: Path
    nodes: LogNodes
    authority: TestAuthority = attrs.field(factory=make_authority)
    stranger: TestAuthority = attrs.field(factory=make_authority)

    def named(self, name: str, authority: TestAuthority | None = None) -> NetworkMeeting:
        security = BookieSecurity(
            tls=True,
            tls_authorities=self.authority.write_pem(self.home / "authority.pem"),
            tls_certificate=(authority or self.authority).sign(name).write_pem(self.home / f"{name}.pem"),
        )
        return NetworkMeeting(parse_listen_at("127.0.0.1"), self.nodes, security)

    async def allow_writing(self, *names: str) -> None:
        """Give these names the right to write, and no others."""
        rules = [{"principal": name, "logs": "*", "rights": ["write"]} for name in names]
        rules.append({"principal": "CN=operator", "logs": "*", "rights": ["admin"]})
        text = json.dumps({"version": 1, "rules": rules})
        await self.nodes.store.create(policy_path(self.nodes.namespace_path), text.encode())

    @asynccontextmanager
    async def owned_by(self, owner: NetworkMeeting) -> AsyncIterator[tuple[str, list[str | None]]]:
        """The address of an owner, and the names that it has served."""
        names: list[str | None] = []

        async def serve(stream: trio.abc.Stream, name: str | None) -> None:
            names.append(name)
            await stream.send_all(b"welcome")
            await stream.receive_some()

        async with owner.opened(serve):
            yield str(await owner.address(trio.Event())), names


@pytest.fixture
def programs(tmp_path: Path, nodes: LogNodes) -> Programs:
    return Programs(tmp_path, nodes)


async def test_over_tls_the_owner_learns_the_name_of_each_program(programs: Programs) -> None:
    await programs.allow_writing("CN=shop")
    async with programs.owned_by(programs.named("shop")) as (address, names):
        async with programs.named("billing").connected(address) as stream:
            assert stream is not None
            assert await stream.receive_some() == b"welcome"
        assert names == ["CN=billing"]


async def test_a_program_of_another_authority_learns_why_it_is_refused(programs: Programs) -> None:
    async with programs.owned_by(programs.named("shop")) as (address, names):
        with pytest.raises(NoMeetingError, match="the program that owns its writer, at 127") as caught:
            async with programs.named("billing", programs.stranger).connected(address):
                raise AssertionError("it is connected")
        assert isinstance(caught.value.problem, AccessDeniedError)
        assert names == []


async def test_a_program_in_clear_text_is_not_served_by_an_owner_with_tls(programs: Programs) -> None:
    plain = NetworkMeeting(parse_listen_at("127.0.0.1"), programs.nodes)
    async with programs.owned_by(programs.named("shop")) as (address, names):
        with suppress(LogUnavailableError, NoMeetingError):
            async with plain.connected(address) as stream:
                assert stream is None
        assert names == []


async def test_records_go_only_to_an_owner_whose_name_may_write_the_log(programs: Programs) -> None:
    await programs.allow_writing("CN=billing")
    async with programs.owned_by(programs.named("shop")) as (address, _):
        with pytest.raises(LogUnavailableError, match="'CN=shop' no right to write"):
            async with programs.named("billing").connected(address):
                raise AssertionError("it is connected")


async def test_a_file_that_cannot_be_read_is_an_error_of_the_configuration(programs: Programs) -> None:
    async with programs.owned_by(programs.named("shop")) as (address, _):
        billing = programs.named("billing")
        (programs.home / "billing.pem").unlink()
        with pytest.raises(NoMeetingError, match="tls_certificate") as caught:
            async with billing.connected(address):
                raise AssertionError("it is connected")
        assert isinstance(caught.value.problem, ConfigError)
