"""`dlog bookies init|list|info|format|nuke|instance-id`: the bookies of a cluster, Apache's or ours.

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

from bookie.cluster.cluster_root import create_cluster
from dlog.cli.operators.erase import format_, instance_id, nuke, open_store
from dlog.cli.operators.service import Service, open_ledgers, service_options
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note, print_table
from dlog.cli.terminal.signals import run
from dlog.explain.collecting import racks_of
from ledger.catalog.paths import COOKIES, LAYOUT_OF_URI_NAME, Layout
from ledger.client import BookieSpace
from ledger.deploy import Deployment
from ledger.errors import BookieError
from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.service_uri import parse_metadata_service_uri
from ledger.runtime.audit import audited_async

WRITABLE, READ_ONLY, AWAY = "writable", "read-only", "away"
REQUESTS_AT_ONCE = 16


@attrs.frozen
class BookieState:
    """A bookie of the cluster, and its state."""

    bookie: str
    state: str  # WRITABLE, READ_ONLY, or AWAY: it has a cookie and is not registered
    address: str | None  # of its request port; None if it is not published
    rack: str | None = None  # None: not known


@attrs.frozen
class DiskSpace:
    """A bookie's reply about its disk space, or the reason why there is none."""

    bookie: str
    space: BookieSpace | None
    error: str | None = None


@click.group("bookies", cls=CommandGroup)
def command() -> None:
    """Create, show and erase a cluster of bookies. For Apache's bookies and ours."""


@command.command("init")
@click.argument("service_uri", metavar="URI")
def init(service_uri: str) -> None:
    """Create the metadata of a new cluster with an instance id at URI.

    URI is zk://HOST:PORT/ledgers. The instance id ties the disks of bookies to this cluster: a bookie rejects
    a disk of another cluster, or of an erased one. The layout is hierarchical; zk+longhierarchical:// and
    zk+flat:// choose another one. If URI exists already, nothing is changed.
    """
    where = parse_metadata_service_uri(service_uri)
    layout = Layout.HIERARCHICAL if where.layout is None else LAYOUT_OF_URI_NAME[where.layout]
    instance_id = str(uuid.uuid4())

    async def go() -> None:
        async with (
            open_store(service_uri) as store,
            audited_async("create cluster", service_uri),
        ):
            await create_cluster(store, where.ledgers_root, layout, instance_id)

    run(go)
    print_note(f"created a cluster at {where.ledgers_root} with instance id {instance_id}")


@command.command("list")
@service_options
@click.option("--rw", "only", flag_value=WRITABLE, help="Only writable bookies.")
@click.option("--ro", "only", flag_value=READ_ONLY, help="Only read-only bookies.")
@click.option("--away", "only", flag_value=AWAY, help="Only bookies that are not registered.")
@json_option("the list")
def list_(service: Service, only: str | None, as_json: bool) -> None:
    """List bookies with their state: writable, read-only or away.

    A bookie is away if it has a cookie and is not registered.
    """
    states = [state for state in run(partial(_states, service)) if only in (None, state.state)]
    if as_json:
        print_json([attrs.asdict(state) for state in states])
    else:
        print_table(
            ["bookie", "state", "address", "rack"],
            [[state.bookie, state.state, state.address or "-", state.rack or "-"] for state in states],
        )


@command.command("info")
@service_options
@json_option("the disk space of each bookie and the totals")
def info(service: Service, as_json: bool) -> int:
    """Show the disk space of every registered bookie. Exit code 1 if a bookie does not reply."""
    found = run(partial(_disk_spaces, service))
    spaces = [one.space for one in found if one.space is not None]
    free_bytes = sum(space.free_bytes for space in spaces)
    total_bytes = sum(space.total_bytes for space in spaces)
    if as_json:
        documents = [
            {
                "bookie": one.bookie,
                "free_bytes": None if one.space is None else one.space.free_bytes,
                "total_bytes": None if one.space is None else one.space.total_bytes,
            }
            for one in found
        ]
        print_json({"bookies": documents, "free_bytes": free_bytes, "total_bytes": total_bytes})
    else:
        rows = [
            [one.bookie, *(_shown(one.space.free_bytes, one.space.total_bytes) if one.space else "---")]
            for one in found
        ]
        print_table(
            ["bookie", "free", "total", "free %"], [*rows, ["together", *_shown(free_bytes, total_bytes)]]
        )
    for one in found:
        if one.error is not None:
            print_note(f"dlog: {one.error}")
    return ExitCode.OK if len(spaces) == len(found) else ExitCode.FAILED


async def _states(service: Service) -> list[BookieState]:
    async with open_ledgers(service) as ledgers:
        membership = ledgers.client.membership
        found = [
            *((bookie, WRITABLE) for bookie in membership.writable),
            *((bookie, READ_ONLY) for bookie in membership.readonly),
        ]
        away = await _with_cookies(ledgers) - membership.writable - membership.readonly
        found += [(bookie, AWAY) for bookie in away]
        racks = await racks_of(ledgers.client, membership.writable | membership.readonly)
        return [
            BookieState(
                bookie, state, None if state is AWAY else await _address(ledgers, bookie), racks.get(bookie)
            )
            for bookie, state in sorted(found)
        ]


async def _with_cookies(ledgers: Deployment) -> frozenset[str]:
    try:
        return frozenset((await ledgers.store.children(f"{ledgers.ledgers_root}/{COOKIES}")).names)
    except NoNodeError:
        return frozenset()


async def _address(ledgers: Deployment, bookie: str) -> str | None:
    try:
        address = await ledgers.client.membership.resolve(bookie)
    except BookieError:
        return None
    return f"{address.host}:{address.port}"


async def _disk_spaces(service: Service) -> list[DiskSpace]:
    async with open_ledgers(service) as ledgers:
        membership = ledgers.client.membership
        return await _request_all(ledgers, sorted(membership.writable | membership.readonly))


async def _request_all(ledgers: Deployment, bookies: Collection[str]) -> list[DiskSpace]:
    found: dict[str, DiskSpace] = {}
    limit = trio.CapacityLimiter(REQUESTS_AT_ONCE)

    async def request(bookie: str) -> None:
        async with limit:
            try:
                found[bookie] = DiskSpace(bookie, await ledgers.client.bookie_space(bookie))
            except BookieError as exc:
                found[bookie] = DiskSpace(bookie, None, str(exc))

    async with trio.open_nursery() as nursery:
        for bookie in bookies:
            nursery.start_soon(request, bookie)
    return [found[bookie] for bookie in bookies]


def _shown(free_bytes: int, total_bytes: int) -> Sequence[str]:
    percent = f"{100 * free_bytes / total_bytes:.0f}" if total_bytes else "-"
    return [f"{free_bytes / 1e9:.1f} GB", f"{total_bytes / 1e9:.1f} GB", percent]


# Also with the names of Apache's shell.
command.add_command(format_)
command.add_command(format_, "metaformat")
command.add_command(nuke)
command.add_command(nuke, "nukeexistingcluster")
command.add_command(instance_id)
command.add_command(instance_id, "whatisinstanceid")
