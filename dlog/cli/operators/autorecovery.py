"""`dlog autorecovery`: the process that restores lost replicas, and the commands that show and steer it.

Inside: options and output, also of `dlog ledger underreplicated`. Not inside: the auditor and the worker
(``ledger.replication``), moving one bookie's ledgers (``removal``).
Always: the commands work on a cluster of Apache's auditors and workers too; the process starts nothing while
the switch is off.

Source: BookKeeper, AutoRecoveryMain.java, BookieShell.java (``autorecovery``, ``listunderreplicated``,
``whoisauditor``, ``lostbookierecoverydelay``, ``triggeraudit``, ``forceauditchecks``).
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import attrs
import click
import trio
from click.core import ParameterSource

from dlog.cli.operators.service import Service, open_ledgers, service_options
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import gather, json_option
from dlog.cli.terminal.output import moment_text, print_facts, print_json, print_note, print_table
from dlog.cli.terminal.signals import run
from ledger.catalog.paths import check_bookie_id
from ledger.deploy import Deployment
from ledger.errors import LedgerError
from ledger.replication import (
    AutoRecovery,
    ReplicationConfig,
    UnderReplicatedLedgers,
    current_auditor,
)
from ledger.replication.marks import RegularCheck
from ledger.runtime.audit import audited_async
from ledger.runtime.events import start_logging
from ledger.runtime.readiness import READY, notify

_DEFAULTS = ReplicationConfig()

rate_option = click.option(
    "--rate",
    "rate_bytes_max",
    type=click.IntRange(min=0),
    default=_DEFAULTS.rate_bytes_max,
    show_default=True,
    metavar="BYTES",
    help="Bytes copied per second; 0: no limit.",
)


@attrs.frozen
class OpenedCluster:
    """A cluster, and the marks of its ledgers as this process sees them."""

    deployment: Deployment
    marks: UnderReplicatedLedgers


@contextlib.asynccontextmanager
async def opened_cluster(service: Service) -> AsyncIterator[OpenedCluster]:
    """Open the cluster of `--service`; a directory is refused."""
    if service.uri.lower().startswith("file:"):
        raise click.UsageError(
            "--service names a directory, which has one bookie and no replicas; name a cluster"
        )
    async with open_ledgers(service) as deployment:
        session = deployment.store.current_session()
        yield OpenedCluster(
            deployment,
            UnderReplicatedLedgers(session, deployment.ledgers_root, host_name=socket.getfqdn()),
        )


@click.group("autorecovery", cls=CommandGroup, invoke_without_command=True)
@service_options
@click.option(
    "--id", "candidate", help="The id in the vote for the auditor. [default: the name of this machine]"
)
@click.option(
    "--delay",
    "lost_bookie_delay_s",
    type=click.IntRange(min=0),
    default=_DEFAULTS.lost_bookie_delay_s,
    show_default=True,
    metavar="SECONDS",
    help="How long a bookie may be away, if the cluster has no value yet.",
)
@click.option(
    "--grace",
    "open_ledger_grace_s",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.open_ledger_grace_s,
    show_default=True,
    metavar="SECONDS",
    help="The time for a writer to replace a lost bookie before its ledger is closed.",
)
@rate_option
@click.option(
    "--check-interval",
    "ledger_check_interval_s",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.ledger_check_interval_s,
    show_default=True,
    metavar="SECONDS",
    help="Between two checks that read from every ledger; 0: never.",
)
@click.option(
    "--verify",
    "verified_percentage",
    type=click.IntRange(0, 100),
    default=_DEFAULTS.verified_percentage,
    show_default=True,
    metavar="PERCENT",
    help="The share of the entries that a check reads, besides the first and the last.",
)
@click.option(
    "--placement-check-interval",
    "placement_check_interval_s",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.placement_check_interval_s,
    show_default=True,
    metavar="SECONDS",
    help="Between two checks of the placement of all closed ledgers; 0: never.",
)
@click.option(
    "--replicas-check-interval",
    "replicas_check_interval_s",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.replicas_check_interval_s,
    show_default=True,
    metavar="SECONDS",
    help="Between two checks that ask every bookie which entries it has; 0: never.",
)
@click.option(
    "--repair-placement",
    "repairs_placement",
    is_flag=True,
    help="Move replicas of ledgers that are not spread as the placement policy prescribes.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics and /heartbeat at this port; 0: a free one. [default: no HTTP]",
)
@click.option(
    "--http-host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address of --http-port.",
)
@gather(config=ReplicationConfig)
@click.pass_context
def command(
    context: click.Context,
    service: Service,
    candidate: str | None,
    config: ReplicationConfig,
    http_port: int | None,
    http_host: str,
) -> None:
    """Restore the replicas of lost bookies until a signal stops this process.

    Run it on several machines: one process is the auditor, which marks ledgers of lost bookies; each is a
    worker, which copies entries to other bookies. They work beside Apache's auditors and workers. With a
    command, show or steer the auto-recovery of the cluster instead.
    """
    if context.invoked_subcommand is not None:
        sources = map(context.get_parameter_source, context.params)
        if ParameterSource.COMMANDLINE in sources:  # else another cluster than the named one would be shown
            raise click.UsageError(f"put the options behind the command {context.invoked_subcommand}")
        return
    host_name = socket.getfqdn()
    try:
        check_bookie_id(candidate or host_name)
    except LedgerError as exc:
        raise click.UsageError(f"--id: {exc}") from exc
    start_logging(logging.INFO, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)

    async def go() -> None:
        async with opened_cluster(service) as opened, trio.open_nursery() as nursery:
            program = AutoRecovery(
                opened.deployment.client.context,
                opened.deployment.store,
                candidate or host_name,
                config,
                host_name,
            )
            if http_port is not None:
                # Here, so that no other command imports the bookie.
                from bookie.http import serve_auto_recovery

                url = await nursery.start(serve_auto_recovery, program.stats, http_host, http_port)
                print_note(f"metrics are served at {url}/metrics")
            await nursery.start(program.run)
            notify(READY)
            print_note(f"auto-recovery runs for {opened.deployment.ledgers_root}")

    run(go)


@command.command("status")
@service_options
@json_option("the state")
def status(service: Service, as_json: bool) -> None:
    """Show the switch, the auditor, the delay and the number of marked ledgers."""

    async def go() -> dict[str, Any]:
        async with opened_cluster(service) as opened:
            root = opened.deployment.ledgers_root
            return {
                "enabled": await opened.marks.is_enabled(),
                "auditor": await current_auditor(opened.deployment.store, root),
                "delay_s": (await opened.marks.recovery_delay()).seconds,
                "underreplicated_ledgers": len(await opened.marks.marked()),
                "ledgers_checked_ms": await opened.marks.checked_ms(RegularCheck.READS),
                "placement_checked_ms": await opened.marks.checked_ms(RegularCheck.PLACEMENT),
                "replicas_checked_ms": await opened.marks.checked_ms(RegularCheck.REPLICAS),
            }

    document = run(go)
    if as_json:
        print_json(document)
    else:
        print_facts([_fact(name, value) for name, value in document.items()])


def _fact(name: str, value: Any) -> tuple[str, str]:
    match value:
        case None:
            text = "-"
        case bool():
            text = "yes" if value else "no"
        case int() if name.endswith("_ms"):
            text = moment_text(value)
        case _:
            text = str(value)
    return name.removesuffix("_ms").replace("_", " "), text


@command.command("auditor")
@service_options
@json_option("the id")
def auditor(service: Service, as_json: bool) -> int:
    """Print the id of the auditor. Exit code 3 if there is none."""

    async def go() -> str | None:
        async with opened_cluster(service) as opened:
            return await current_auditor(opened.deployment.store, opened.deployment.ledgers_root)

    found = run(go)
    if as_json:
        print_json({"auditor": found})
    elif found is not None:
        print(found)
    else:
        print_note("no process is a candidate for the auditor; start `dlog autorecovery`")
    return ExitCode.OK if found is not None else ExitCode.NOT_FOUND


@command.command("enable")
@service_options
def enable(service: Service) -> None:
    """Switch auto-recovery on for the whole cluster."""
    run(partial(_switch, service, on=True))


@command.command("disable")
@service_options
def disable(service: Service) -> None:
    """Switch auto-recovery off for the whole cluster, for maintenance: no process marks or takes a ledger."""
    run(partial(_switch, service, on=False))


async def _switch(service: Service, *, on: bool) -> None:
    word = "enable" if on else "disable"
    async with opened_cluster(service) as opened:
        root = opened.deployment.ledgers_root
        async with audited_async(f"{word} auto-recovery", root):
            is_changed = await opened.marks.switch(on=on)
    print_note(f"auto-recovery of {root} is {'' if is_changed else 'already '}{word}d")


@command.command("delay")
@click.argument("seconds", metavar="[SECONDS]", type=click.IntRange(min=0), required=False)
@service_options
@json_option("the delay")
def delay(seconds: int | None, service: Service, as_json: bool) -> None:
    """Show or set how long a bookie may be away before its ledgers are marked.

    The auditor reacts at once to a new value. A second bookie that is lost ends the wait.
    """

    async def go() -> int:
        async with opened_cluster(service) as opened:
            if seconds is not None:
                async with audited_async("set delay", f"{opened.deployment.ledgers_root} {seconds} s"):
                    await opened.marks.set_recovery_delay(seconds)
            return (await opened.marks.recovery_delay()).seconds

    found = run(go)
    if as_json:
        print_json({"delay_s": found})
    else:
        print(found)


@command.command("audit")
@service_options
def audit(service: Service) -> int:
    """Make the auditor look for lost bookies now. Exit code 3 if there is no auditor."""

    async def go() -> bool:
        async with opened_cluster(service) as opened:
            root = opened.deployment.ledgers_root
            if await current_auditor(opened.deployment.store, root) is None:
                return False
            async with audited_async("trigger audit", root):
                # A write of the same value is the signal.
                await opened.marks.set_recovery_delay((await opened.marks.recovery_delay()).seconds)
            return True

    if run(go):
        print_note("the auditor was asked to look for lost bookies")
        return ExitCode.OK
    print_note("no process is a candidate for the auditor; start `dlog autorecovery`")
    return ExitCode.NOT_FOUND


@command.command("check")
@service_options
@click.option("--reads", is_flag=True, help="The check that reads from every ledger.")
@click.option("--placement", is_flag=True, help="The check of the placement of closed ledgers.")
@click.option("--replicas", is_flag=True, help="The check that asks every bookie which entries it has.")
@json_option("the checks")
def check(service: Service, reads: bool, placement: bool, replicas: bool, as_json: bool) -> int:
    """Make regular checks of all ledgers due now; name at least one.

    The auditor of DLog begins soon, also if its interval for the check is 0. Apache's begins when it starts
    the next time, and never if its interval is 0. Exit code 3 if there is no auditor; the checks are due
    then, too.
    """
    wanted = [
        one
        for one, is_wanted in (
            (RegularCheck.READS, reads),
            (RegularCheck.PLACEMENT, placement),
            (RegularCheck.REPLICAS, replicas),
        )
        if is_wanted
    ]
    if not wanted:
        raise click.UsageError("name a check: --reads, --placement or --replicas")
    names = [one.name.lower() for one in wanted]

    async def go() -> str | None:
        async with opened_cluster(service) as opened:
            root = opened.deployment.ledgers_root
            async with audited_async("force checks", f"{root} {' '.join(names)}"):
                for one in wanted:
                    await opened.marks.force_check(one)
            return await current_auditor(opened.deployment.store, root)

    found = run(go)
    if as_json:
        print_json({"due": names, "auditor": found})
    elif found is not None:
        print_note(f"due now: {', '.join(names)}")
    if found is None:
        print_note("no process is a candidate for the auditor; start `dlog autorecovery`")
    return ExitCode.OK if found is not None else ExitCode.NOT_FOUND


@click.command("underreplicated")
@service_options
@click.option("--bookie", metavar="BOOKIE", help="Only ledgers that miss a replica of this bookie.")
@json_option("the list")
def underreplicated(service: Service, bookie: str | None, as_json: bool) -> None:
    """List the ledgers that are marked as under-replicated, with the bookies that lost replicas."""

    async def go() -> list[dict[str, Any]]:
        async with opened_cluster(service) as opened:
            return [
                {
                    "ledger_id": one.ledger_id,
                    "missing_replicas": list(one.mark.replicas),
                    "ctime_ms": one.mark.ctime_ms,
                }
                for one in await opened.marks.marked()
                if bookie is None or bookie in one.mark.replicas
            ]

    found = run(go)
    if as_json:
        print_json(found)
    else:
        rows = [[str(one["ledger_id"]), "  ".join(one["missing_replicas"]) or "-"] for one in found]
        print_table(["ledger", "missing replicas"], rows)


# Names of Apache's shell.
command.add_command(underreplicated)
command.add_command(check, "forceauditchecks")
command.add_command(auditor, "whoisauditor")
