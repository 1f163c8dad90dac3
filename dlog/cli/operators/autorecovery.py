"""`dlog autorecovery`: the process that restores lost replicas, and the commands that show and steer it.

Inside: options and output, also of `dlog bookie recover` and `dlog ledger underreplicated`. Not inside: the
auditor and the worker (``ledger.replication``).
Always: the commands work on a cluster of Apache's auditors and workers too; the process starts nothing while
the switch is off.

Source: BookKeeper, AutoRecoveryMain.java, BookieShell.java (``autorecovery``, ``listunderreplicated``,
``whoisauditor``, ``lostbookierecoverydelay``, ``triggeraudit``, ``recover``).
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
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_facts, print_json, print_note, print_table
from dlog.cli.terminal.signals import run
from ledger.audit import audited_async
from ledger.catalog.paths import check_bookie_id, cookie_path
from ledger.deploy import Deployment
from ledger.errors import LedgerError
from ledger.replication import (
    AutoRecovery,
    LedgerRestorer,
    ReplicationConfig,
    UnderReplicatedLedgers,
    current_auditor,
)
from ledger.replication.evacuation import Evacuated, evacuate_bookies
from namespace.errors import NoNodeError
from namespace.events import start_logging
from namespace.readiness import READY, notify

_DEFAULTS = ReplicationConfig()


@attrs.frozen
class _Opened:
    deployment: Deployment
    marks: UnderReplicatedLedgers


@contextlib.asynccontextmanager
async def _opened(service: Service) -> AsyncIterator[_Opened]:
    if service.uri.lower().startswith("file:"):
        raise click.UsageError(
            "--service names a directory, which has one bookie and no replicas; name a cluster"
        )
    async with open_ledgers(service) as deployment:
        session = deployment.store.current_session()
        yield _Opened(
            deployment,
            UnderReplicatedLedgers(session, deployment.ledgers_root, host_name=socket.getfqdn()),
        )


@click.group("autorecovery", invoke_without_command=True)
@service_options
@click.option(
    "--id", "candidate", help="The id in the vote for the auditor. [default: the name of this machine]"
)
@click.option(
    "--delay",
    "delay_s",
    type=click.IntRange(min=0),
    default=_DEFAULTS.lost_bookie_delay_s,
    show_default=True,
    metavar="SECONDS",
    help="How long a bookie may be away, if the cluster has no value yet.",
)
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.open_ledger_grace_s,
    show_default=True,
    metavar="SECONDS",
    help="The time for a writer to replace a lost bookie before its ledger is closed.",
)
@click.option(
    "--rate",
    "rate_bytes_max",
    type=click.IntRange(min=0),
    default=_DEFAULTS.rate_bytes_max,
    show_default=True,
    metavar="BYTES",
    help="Bytes copied per second; 0: no limit.",
)
@click.option(
    "--check-interval",
    "check_s",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.ledger_check_interval_s,
    show_default=True,
    metavar="SECONDS",
    help="Between two checks that read from every ledger; 0: never.",
)
@click.option(
    "--verify",
    "percentage",
    type=click.IntRange(0, 100),
    default=_DEFAULTS.verified_percentage,
    show_default=True,
    metavar="PERCENT",
    help="The share of the entries that a check reads, besides the first and the last.",
)
@click.pass_context
def command(
    context: click.Context,
    service: Service,
    candidate: str | None,
    delay_s: int,
    grace_s: float,
    rate_bytes_max: int,
    check_s: float,
    percentage: int,
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
    config = ReplicationConfig(
        lost_bookie_delay_s=delay_s,
        open_ledger_grace_s=grace_s,
        rate_bytes_max=rate_bytes_max,
        ledger_check_interval_s=check_s,
        verified_percentage=percentage,
    )
    host_name = socket.getfqdn()
    try:
        check_bookie_id(candidate or host_name)
    except LedgerError as exc:
        raise click.UsageError(f"--id: {exc}") from exc
    start_logging(logging.INFO, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)

    async def go() -> None:
        async with _opened(service) as opened, trio.open_nursery() as nursery:
            program = AutoRecovery(
                opened.deployment.client.context,
                opened.deployment.store,
                candidate or host_name,
                config,
                host_name,
            )
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
        async with _opened(service) as opened:
            root = opened.deployment.ledgers_root
            return {
                "enabled": await opened.marks.is_enabled(),
                "auditor": await current_auditor(opened.deployment.store, root),
                "delay_s": (await opened.marks.recovery_delay()).seconds,
                "underreplicated_ledgers": len(await opened.marks.marked()),
                "ledgers_checked_ms": await opened.marks.ledgers_checked_ms(),
            }

    document = run(go)
    if as_json:
        print_json(document)
    else:
        print_facts(
            (name.replace("_", " "), "-" if value is None else str(value)) for name, value in document.items()
        )


@command.command("auditor")
@service_options
@json_option("the id")
def auditor(service: Service, as_json: bool) -> int:
    """Print the id of the auditor. Exit code 3 if there is none."""

    async def go() -> str | None:
        async with _opened(service) as opened:
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
    async with _opened(service) as opened:
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
        async with _opened(service) as opened:
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
        async with _opened(service) as opened:
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


@click.command("underreplicated")
@service_options
@click.option("--bookie", metavar="BOOKIE", help="Only ledgers that miss a replica of this bookie.")
@json_option("the list")
def underreplicated(service: Service, bookie: str | None, as_json: bool) -> None:
    """List the ledgers that are marked as under-replicated, with the bookies that lost replicas."""

    async def go() -> list[dict[str, Any]]:
        async with _opened(service) as opened:
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


@click.command("recover")
@click.argument("bookies", metavar="BOOKIE...", nargs=-1, required=True)
@service_options
@click.option("--skip-open", is_flag=True, help="Leave ledgers alone that are written to one of the bookies.")
@click.option("--delete-cookie", is_flag=True, help="At the end, remove the bookies from the cluster.")
@click.option(
    "--rate",
    "rate_bytes_max",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="BYTES",
    help="Bytes copied per second; 0: no limit.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the result")
def recover(
    bookies: tuple[str, ...],
    service: Service,
    skip_open: bool,
    delete_cookie: bool,
    rate_bytes_max: int,
    yes: bool,
    as_json: bool,
) -> int:
    """Copy all entries of BOOKIE to other bookies, now and in this process.

    BOOKIE is the id of a bookie that is lost or shall go. No auditor is needed. A ledger that is written to
    it is fenced and closed, so that its writer fails; --skip-open leaves such ledgers alone. Exit code 1 if
    a ledger still names the bookie: then run the command again.
    """
    for bookie in bookies:
        try:
            check_bookie_id(bookie)
        except LedgerError as exc:
            raise click.UsageError(str(exc)) from exc
    names = ", ".join(bookies)
    if not yes:
        click.confirm(f"Move all entries of {names} to other bookies?", abort=True, err=True)
    config = ReplicationConfig(rate_bytes_max=rate_bytes_max)

    async def go() -> tuple[list[Evacuated], dict[str, int]]:
        async with _opened(service) as opened:
            root, marks = opened.deployment.ledgers_root, opened.marks
            context, store = opened.deployment.client.context, opened.deployment.store
            session = store.current_session()
            await marks.prepare()
            restorer = LedgerRestorer(context, session, config, lock_path=marks.lock_path)
            results = []
            async with audited_async("recover bookie", f"{root} {names}"):
                async for one in evacuate_bookies(
                    context, marks, restorer, bookies, close_open=not skip_open
                ):
                    results.append(one)
                    if not one.is_done:
                        print_note(f"ledger {one.ledger_id}: {one.reason or _why(one)}")
                if delete_cookie and all(one.is_done for one in results):
                    for bookie in bookies:
                        try:
                            await store.delete(cookie_path(root, bookie))
                        except NoNodeError:
                            pass  # deleted already
            return results, attrs.asdict(restorer.stats)

    results, stats = run(go)
    left = [one.ledger_id for one in results if not one.is_done]
    if as_json:
        print_json({"ledgers": len(results), "left": left, **stats})
    else:
        print_note(
            f"{len(results) - len(left)} of {len(results)} ledgers moved, {stats['entries_copied']:,} entries"
            f" of {stats['bytes_copied']:,} bytes copied"
        )
    return ExitCode.FAILED if left else ExitCode.OK


def _why(one: Evacuated) -> str:
    assert one.outcome is not None
    return {
        "open": "it is written to the bookie, and --skip-open leaves it alone",
        "failed": "not all entries could be copied; the log line above names the reason",
    }[one.outcome.value]


# Names of Apache's shell.
command.add_command(underreplicated)
command.add_command(auditor, "whoisauditor")
