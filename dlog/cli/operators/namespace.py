"""`dlog namespace bind`: connect a namespace of logs with the cluster of its ledgers.

Inside: options and output. Not inside: the nodes (``namespace.bindings``).
Always: a path that has another binding or other data stays as it is.

Source: DistributedLog, DistributedLogAdmin.java (``bind``); docs/metadata.md 16.2, 16.16.
"""

from __future__ import annotations

import attrs
import click

from dlog.cli.operators.erase import open_store
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.signals import run
from ledger.metadata_store.service_uri import ServiceUri, parse_metadata_service_uri
from ledger.runtime.audit import audited_async
from namespace.binding import new_binding
from namespace.bindings import bind as bind_path
from namespace.namespace_uri import parse_namespace_uri


@click.group("namespace", cls=CommandGroup)
def command() -> None:
    """Bind namespaces of logs to the ledgers of a cluster."""


@command.command("bind")
@click.argument("namespace_uri", metavar="URI")
@click.option(
    "--ledgers",
    "ledgers_uri",
    metavar="URI",
    help="The cluster of the ledgers: zk://HOST:PORT/ledgers. [default: /ledgers on the same ZooKeeper]",
)
@click.option(
    "--federated", is_flag=True, help="Spread the logs over sub-namespaces; it cannot be undone later."
)
@json_option("the binding")
def bind(namespace_uri: str, ledgers_uri: str | None, federated: bool, as_json: bool) -> int:
    """Bind the namespace URI, distributedlog://HOST:PORT/NAMESPACE, to the ledgers of a cluster.

    A federated namespace is for very many logs: each of its parts lists at most `sub_namespace_logs_max` of
    them. Programs see one namespace, Apache's too. Its logs cannot be renamed, and it takes no batches.

    The command can be repeated. Exit codes: 3 there are no ledgers at that place; 4 the path has another
    binding. Nothing was changed then.
    """
    where = parse_namespace_uri(namespace_uri)
    if where.scheme == "file":
        raise click.UsageError("a directory needs no binding; URI is distributedlog://HOST:PORT/NAMESPACE")
    here = ServiceUri(where.hosts, where.path, None)
    ledgers = ServiceUri(where.hosts, "/ledgers", None)
    if ledgers_uri is not None:
        ledgers = parse_metadata_service_uri(ledgers_uri)

    async def go() -> bool:
        async with open_store(str(ledgers)) as store:
            if await store.exists(ledgers.ledgers_root) is None:
                return False
        binding = attrs.evolve(new_binding(where.hosts, ledgers.ledgers_root), federated=federated or None)
        if ledgers.hosts != where.hosts:
            binding = attrs.evolve(binding, bk_hosts=ledgers.hosts, bk_hosts_for_reader=ledgers.hosts)
        async with open_store(str(here)) as store, audited_async("bind namespace", str(where)):
            await bind_path(store, where.path, binding)
        return True

    if not run(go):
        print_note(f"dlog: there are no ledgers at {ledgers}; `dlog bookies init` creates a cluster")
        return ExitCode.NOT_FOUND
    if as_json:
        print_json({"uri": str(where), "ledgers": str(ledgers), "federated": federated})
    else:
        kind = "the federated namespace" if federated else "the namespace"
        print_note(f"bound {kind} {where} to {ledgers}")
    return ExitCode.OK
