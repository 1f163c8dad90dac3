"""`dlog explain log|ledger|bookie`: why an append waits, a reader stops, a ledger is short.

Inside: options and output. Not inside: facts and reasons (``dlog.explain``).
Always: nothing is changed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import attrs
import click
from click.core import ParameterSource

import dlog
from dlog.cli.operators.service import Service, open_ledgers, service_options
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option, uri_option
from dlog.cli.terminal.output import print_json, print_note, print_wrapped
from dlog.cli.terminal.signals import run
from dlog.explain import Reason, collect_bookie, collect_ledger, collect_log, explain
from dlog.explain.collecting import collect_cluster

_OF_LOGS = ("log", "cursor", "access")  # commands that take --uri; the others take --service


@click.group("explain", cls=CommandGroup)
def command() -> None:
    """Say why a log, a ledger or a bookie does not do what you expect, and what to do next.

    Each reason has its evidence and the next command. Nothing is changed. Exit code 0: all is as it should
    be; 1: something is wrong; 3: there is no such log.
    """


@command.command("log")
@click.argument("log", shell_complete=log_names)
@uri_option
@json_option("the reasons")
@click.pass_context
def log_(context: click.Context, log: str, uri: str, as_json: bool) -> int:
    """Say why an append to LOG waits, or a reader or a cursor of it stands still."""

    async def go() -> list[Reason]:
        async with dlog.open_namespace(uri, read_only=True) as namespace:
            return explain(await collect_log(namespace, log))

    return _show(run(go), _given(context, "uri", uri), as_json=as_json)


@command.command("ledger")
@click.argument("ledger_id", metavar="LEDGER", type=click.IntRange(min=0))
@service_options
@json_option("the reasons")
@click.pass_context
def ledger(context: click.Context, ledger_id: int, service: Service, as_json: bool) -> int:
    """Say why LEDGER is short of replicas, or not closed."""

    async def go() -> list[Reason]:
        async with open_ledgers(service, read_only=True) as ledgers:
            cluster = await collect_cluster(ledgers.client, is_directory=_is_directory(service))
            return explain(await collect_ledger(ledgers.client, ledger_id, cluster))

    return _show(run(go), _given(context, "service", service.uri), as_json=as_json)


@command.command("bookie")
@click.argument("bookie", metavar="BOOKIE")
@service_options
@json_option("the reasons")
@click.pass_context
def bookie_(context: click.Context, bookie: str, service: Service, as_json: bool) -> int:
    """Say why BOOKIE takes no entries. BOOKIE is an id, as `dlog bookies list` prints it."""

    async def go() -> list[Reason]:
        async with open_ledgers(service, read_only=True) as ledgers:
            cluster = await collect_cluster(ledgers.client, is_directory=_is_directory(service))
            return explain(await collect_bookie(ledgers.client, bookie, cluster))

    return _show(run(go), _given(context, "service", service.uri), as_json=as_json)


def _is_directory(service: Service) -> bool:
    return service.uri.lower().startswith("file:")


def _given(context: click.Context, option: str, uri: str) -> str | None:
    """The URI if the command line names it: then the next command needs it too."""
    return uri if context.get_parameter_source(option) is ParameterSource.COMMANDLINE else None


def _show(reasons: Sequence[Reason], uri: str | None, *, as_json: bool) -> int:
    if uri is not None:
        reasons = [_with_uri(each, uri) for each in reasons]
    is_wrong = any(each.is_fault for each in reasons)
    if as_json:
        print_json({"is_sound": not is_wrong, "reasons": [attrs.asdict(each) for each in reasons]})
    else:
        for each in reasons:
            mark = "!" if each.is_fault else "-"
            print_wrapped(f"{mark} {each.what}\n    {each.evidence}\n    next: {each.next_command}")
        print_note("something is wrong" if is_wrong else "all is as it should be")
    return ExitCode.FAILED if is_wrong else ExitCode.OK


def _with_uri(reason: Reason, uri: str) -> Reason:
    words = reason.next_command.split()
    if "--uri" in words:  # the reason names another namespace
        return reason
    option = "--uri" if words[1] in _OF_LOGS else "--service"
    return attrs.evolve(reason, next_command=f"{reason.next_command} {option} {shlex.quote(uri)}")
