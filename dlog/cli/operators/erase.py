"""`dlog bookies format|nuke|instance-id`: erase the metadata of a cluster, for a new beginning or for good.

Inside: options, questions and output. Not inside: the work (``bookie.cluster.cluster_removal``).
Always: both commands are refused while a bookie is registered; `nuke` needs the exact root and instance id of
the cluster and asks twice, so that a wrong URI erases nothing.

Source: BookKeeper, MetaFormatCommand.java, NukeExistingClusterCommand.java, InstanceIdCommand.java.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import trio

from bookie.cluster.cluster_removal import format_cluster, nuke_cluster
from bookie.identity.cookie_check import read_instance_id
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run
from dlog.ledgers import UNNAMED
from dlog.settings import load_settings
from ledger.catalog.paths import LAYOUT, LAYOUT_OF_URI_NAME, Layout, decode_layout
from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.service_uri import parse_metadata_service_uri
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.audit import audited_async

_NO_ID = "none"
_uri_argument = click.argument("service_uri", metavar="URI")


@asynccontextmanager
async def open_store(service_uri: str) -> AsyncIterator[MetadataStore]:
    """Open the metadata store of a cluster, which need not have ledgers."""
    from ledger.metadata_store.zookeeper import open_zookeeper_store

    where = parse_metadata_service_uri(service_uri)
    found = await trio.to_thread.run_sync(load_settings, UNNAMED)
    settings = await trio.to_thread.run_sync(found.config, "distributedlog")
    async with open_zookeeper_store(
        where.hosts,
        session_timeout_ms=settings.session_timeout_ms,
        connect_timeout_s=settings.connect_timeout_s,
        security=settings.zookeeper_security,
    ) as store:
        yield store


@click.command("instance-id")
@_uri_argument
@json_option("the id")
def instance_id(service_uri: str, as_json: bool) -> int:
    """Print the instance id of the cluster at URI. Exit code 3 if it has none."""

    async def go() -> str | None:
        async with open_store(service_uri) as store:
            return await read_instance_id(store, parse_metadata_service_uri(service_uri).ledgers_root)

    found = run(go)
    if as_json:
        print_json({"instance_id": found})
    elif found is not None:
        print(found)
    else:
        print_note("dlog: the cluster has no instance id")
    return ExitCode.OK if found is not None else ExitCode.NOT_FOUND


@click.command("format")
@_uri_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the root and the new instance id")
def format_(service_uri: str, yes: bool, as_json: bool) -> None:
    """Delete all ledgers and cookies of the cluster at URI; begin it again with a new instance id.

    All bookies must be stopped (exit code 5). Their disks stay, and each bookie refuses to start until
    `dlog bookie format` has emptied its directories.
    """
    where = parse_metadata_service_uri(service_uri)
    root = where.ledgers_root
    if not yes:
        confirm(f"Delete ALL ledgers of the cluster at {root}?")
    new_id = str(uuid.uuid4())

    async def go() -> None:
        async with open_store(service_uri) as store:
            if where.layout is not None:
                layout = LAYOUT_OF_URI_NAME[where.layout]
            else:
                try:
                    layout = decode_layout((await store.get(f"{root}/{LAYOUT}")).value)
                except NoNodeError:
                    layout = Layout.HIERARCHICAL
            async with audited_async("format cluster", root):
                await format_cluster(store, root, layout, new_id)

    run(go)
    if as_json:
        print_json({"ledgers_root": root, "instance_id": new_id})
    else:
        print_note(f"the cluster at {root} is empty; its instance id is {new_id}")


@click.command("nuke")
@_uri_argument
@click.option("--root", required=True, metavar="PATH", help="The ledgers root, as URI has it.")
@click.option(
    "--instance-id",
    "wanted_id",
    required=True,
    metavar="ID",
    help="The id of the cluster; none if it has none.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the root")
def nuke(service_uri: str, root: str, wanted_id: str, yes: bool, as_json: bool) -> None:
    """Delete the cluster at URI with everything below its root.

    It asks twice. All bookies must be stopped (exit code 5). Nothing is deleted if --root or --instance-id
    is not exactly that of the cluster (2).
    """
    where = parse_metadata_service_uri(service_uri)
    if root != where.ledgers_root:
        raise click.UsageError(f"--root {root}: URI names {where.ledgers_root}")
    if not yes:
        confirm(f"Delete ALL ledgers of the cluster at {root}?")
        confirm(f"Delete the cluster {wanted_id} at {root} for good? No command brings it back")

    async def go() -> None:
        async with open_store(service_uri) as store, audited_async("nuke cluster", root):
            await nuke_cluster(store, root, None if wanted_id == _NO_ID else wanted_id)

    run(go)
    if as_json:
        print_json({"ledgers_root": root})
    else:
        print_note(f"the cluster at {root} is deleted")
