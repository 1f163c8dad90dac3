"""`dlog bookies init|list|info`: the storage servers of a cluster, Apache's or ours.

Source: BookKeeper, InitNewCluster.java, ListBookiesCommand.java, InfoCommand.java (``initnewcluster``,
``listbookies``, ``bookieinfo``).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from functools import partial

import attrs
import click
import trio

from bookie.cluster_root import create_cluster
from dlog.cli.exit_codes import ExitCode
from dlog.cli.output import print_json, print_table, tell
from dlog.cli.running import run
from dlog.cli.service import LAYOUT_OF, Ledgers, Service, open_ledgers, service_options
from dlog.cli.target import json_option
from ledger.client import BookieSpace
from ledger.errors import BookieError
from ledger.paths import COOKIES, Layout
from namespace.errors import NoNodeError
from namespace.uri import parse_metadata_service_uri

WRITABLE, READ_ONLY, AWAY = "writable", "read-only", "away"
ASKED_AT_ONCE = 16


@attrs.frozen
class BookieState:
    """A bookie of the cluster, and whether it takes part now."""

    bookie: str
    state: str  # WRITABLE, READ_ONLY or AWAY: it has a cookie and is not registered
    address: str | None  # where it takes requests; None: nobody knows now


@attrs.frozen
class BookieRoom:
    """What a bookie said of its disks, or why it did not."""

    bookie: str
    space: BookieSpace | None
    error: str | None = None


@click.group("bookies")
def command() -> None:
    """Look at the storage servers (bookies) of a cluster, Apache's or ours."""


@command.command("init")
@click.argument("service_uri", metavar="URI")
def init(service_uri: str) -> None:
    """Create the metadata of a new cluster at URI (zk://HOST:PORT/ledgers), with an instance id.

    The instance id ties the bookies' disks to this cluster: disks of another one, or of one that was wiped,
    are refused. zk+longhierarchical:// or zk+flat:// choose another layout than zk+hierarchical://. If
    something is there already, nothing is changed.
    """
    where = parse_metadata_service_uri(service_uri)
    layout = Layout.HIERARCHICAL if where.layout is None else LAYOUT_OF[where.layout]
    instance_id = str(uuid.uuid4())

    async def go() -> None:
        from namespace.zookeeper import open_zookeeper_store

        async with open_zookeeper_store(where.hosts) as store:
            await create_cluster(store, where.ledgers_root, layout, instance_id)

    run(go)
    tell(f"created {where.ledgers_root}, instance id {instance_id}")


@command.command("list")
@service_options
@click.option("--rw", "only", flag_value=WRITABLE, help="Only those that take writes.")
@click.option("--ro", "only", flag_value=READ_ONLY, help="Only those that only serve reads.")
@click.option("--away", "only", flag_value=AWAY, help="Only those that are not registered now.")
@json_option("the list")
def list_(service: Service, only: str | None, as_json: bool) -> None:
    """List bookies: writable, read-only, and away (known by their cookie, but not registered now)."""
    states = [state for state in run(partial(_states, service)) if only in (None, state.state)]
    if as_json:
        print_json([attrs.asdict(state) for state in states])
    else:
        print_table(
            ["bookie", "state", "address"],
            [[state.bookie, state.state, state.address or "-"] for state in states],
        )


@command.command("info")
@service_options
@json_option("what they answer")
def info(service: Service, as_json: bool) -> int:
    """Ask every registered bookie how much room its disks have. Exit code 1 if one does not answer."""
    rooms = run(partial(_rooms, service))
    spaces = [room.space for room in rooms if room.space is not None]
    free_bytes = sum(space.free_bytes for space in spaces)
    total_bytes = sum(space.total_bytes for space in spaces)
    if as_json:
        documents = [
            {
                "bookie": room.bookie,
                "free_bytes": None if room.space is None else room.space.free_bytes,
                "total_bytes": None if room.space is None else room.space.total_bytes,
            }
            for room in rooms
        ]
        print_json({"bookies": documents, "free_bytes": free_bytes, "total_bytes": total_bytes})
    else:
        rows = [
            [room.bookie, *(_shown(room.space.free_bytes, room.space.total_bytes) if room.space else "---")]
            for room in rooms
        ]
        print_table(
            ["bookie", "free", "total", "free %"], [*rows, ["together", *_shown(free_bytes, total_bytes)]]
        )
    for room in rooms:
        if room.error is not None:
            tell(f"dlog: {room.error}")
    return ExitCode.OK if len(spaces) == len(rooms) else ExitCode.FAILED


async def _states(service: Service) -> list[BookieState]:
    async with open_ledgers(service) as ledgers:
        membership = ledgers.client.membership
        found = [
            *((bookie, WRITABLE) for bookie in membership.writable),
            *((bookie, READ_ONLY) for bookie in membership.readonly),
        ]
        away = await _with_cookies(ledgers) - membership.writable - membership.readonly
        found += [(bookie, AWAY) for bookie in away]
        return [
            BookieState(bookie, state, None if state is AWAY else await _address(ledgers, bookie))
            for bookie, state in sorted(found)
        ]


async def _with_cookies(ledgers: Ledgers) -> frozenset[str]:
    try:
        return frozenset((await ledgers.store.children(f"{ledgers.root}/{COOKIES}")).names)
    except NoNodeError:
        return frozenset()


async def _address(ledgers: Ledgers, bookie: str) -> str | None:
    try:
        address = await ledgers.client.membership.resolve(bookie)
    except BookieError:
        return None
    return f"{address.host}:{address.port}"


async def _rooms(service: Service) -> list[BookieRoom]:
    async with open_ledgers(service) as ledgers:
        membership = ledgers.client.membership
        return await _ask_all(ledgers, sorted(membership.writable | membership.readonly))


async def _ask_all(ledgers: Ledgers, bookies: Collection[str]) -> list[BookieRoom]:
    rooms: dict[str, BookieRoom] = {}
    limit = trio.CapacityLimiter(ASKED_AT_ONCE)

    async def ask(bookie: str) -> None:
        async with limit:
            try:
                rooms[bookie] = BookieRoom(bookie, await ledgers.client.bookie_space(bookie))
            except BookieError as exc:
                rooms[bookie] = BookieRoom(bookie, None, str(exc))

    async with trio.open_nursery() as nursery:
        for bookie in bookies:
            nursery.start_soon(ask, bookie)
    return [rooms[bookie] for bookie in bookies]


def _shown(free_bytes: int, total_bytes: int) -> Sequence[str]:
    percent = f"{100 * free_bytes / total_bytes:.0f}" if total_bytes else "-"
    return [f"{free_bytes / 1e9:.1f} GB", f"{total_bytes / 1e9:.1f} GB", percent]
