"""`dlog bookie recover|decommission`: move all ledgers off a bookie; remove it from its cluster.

Inside: options and output. Not inside: the work (``ledger.decommission.bookie_recovery``, ``removal``).
Always: both commands ask first; a cookie is deleted only if the bookie is not registered and no ledger names
it.

Source: BookKeeper, RecoverCommand.java, DecommissionCommand.java.
"""

from __future__ import annotations

import contextlib
from typing import Any

import attrs
import click
import trio

from dlog.cli.operators.autorecovery import OpenedCluster, opened_cluster, rate_option
from dlog.cli.operators.service import Service, service_options
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import gather, json_option
from dlog.cli.terminal.output import print_json, print_note, print_table
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run
from ledger.catalog.paths import check_bookie_id
from ledger.decommission import Evacuated, Removed, decommission_bookie, planned_evacuations
from ledger.decommission.bookie_recovery import Evacuation, recover_bookies
from ledger.decommission.removal import RemovalProgress
from ledger.errors import LedgerError
from ledger.replication import ReplicationConfig
from ledger.replication.ledger_restorer import RestorerStats
from ledger.runtime.audit import audited_async


@attrs.frozen
class _Work:
    """Which ledgers are moved, and how."""

    ledger_id: int | None
    skip_open: bool
    delete_cookie: bool
    rate_bytes_max: int


@click.command("recover")
@click.argument("bookies", metavar="BOOKIE...", nargs=-1, required=True)
@service_options
@click.option("--dry-run", is_flag=True, help="Only list the ledgers that name one of the bookies.")
@click.option("--ledger", "ledger_id", type=click.IntRange(min=0), metavar="LEDGER", help="Only this ledger.")
@click.option("--skip-open", is_flag=True, help="Leave ledgers alone that are written to one of the bookies.")
@click.option("--delete-cookie", is_flag=True, help="At the end, remove the bookies from the cluster.")
@rate_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the result")
@gather(work=_Work)
def recover(
    bookies: tuple[str, ...],
    service: Service,
    dry_run: bool,
    work: _Work,
    yes: bool,
    as_json: bool,
) -> int:
    """Copy all entries of BOOKIE to other bookies, now and in this process.

    BOOKIE is the id of a bookie that is lost or shall go. No auditor is needed. A ledger that is written to
    it is fenced and closed, so that its writer fails; --skip-open leaves such ledgers alone. Exit code 1 if
    a ledger still names the bookie: then run the command again. --delete-cookie is refused while the bookie
    is registered (exit code 5).
    """
    _check_ids(bookies)
    if work.delete_cookie and (dry_run or work.ledger_id is not None):
        raise click.UsageError("--delete-cookie is for all ledgers; leave out --dry-run and --ledger")
    if dry_run:
        return _show_plan(service, bookies, work.ledger_id, as_json=as_json)
    names = ", ".join(bookies)
    if not yes:
        confirm(f"Move all entries of {names} to other bookies?")
    wanted = Evacuation(
        delete_cookies=work.delete_cookie,
        must_be_stopped=work.delete_cookie,
        close_open=not work.skip_open,
        ledger_id=work.ledger_id,
    )
    config = ReplicationConfig(rate_bytes_max=work.rate_bytes_max)

    async def go() -> tuple[list[Evacuated], dict[str, int]]:
        async with opened_cluster(service) as opened:
            results, done = [], RestorerStats()
            recovering = recover_bookies(
                opened.deployment.client.context,
                opened.deployment.store.current_session(),
                bookies,
                wanted,
                config=config,
                stats=done,
            )
            async with (
                audited_async("recover bookie", f"{opened.deployment.ledgers_root} {names}"),
                contextlib.aclosing(recovering),
            ):
                async for one in recovering:
                    results.append(one)
                    if not one.is_done:
                        print_note(f"ledger {one.ledger_id}: {one.reason or _why(one)}")
            return results, attrs.asdict(done)

    results, stats = run(go)
    left = [one.ledger_id for one in results if not one.is_done]
    if as_json:
        print_json({"ledgers": len(results), "left": left, **stats})
    else:
        print_note(
            f"{len(results) - len(left)} of {len(results)} ledgers moved, {stats['entries_copied']:,} entries"
            f" of {stats['bytes_copied']:,} bytes copied"
        )
    if left:
        print_note(_replace_hint(names))
    return ExitCode.FAILED if left else ExitCode.OK


@click.command("decommission")
@click.argument("bookie", metavar="BOOKIE")
@service_options
@click.option("--keep-cookie", is_flag=True, help="Only move the ledgers; the bookie may start again.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait for the workers. [default: without a limit]",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the result")
def decommission(
    bookie: str,
    service: Service,
    keep_cookie: bool,
    timeout_s: float | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove the stopped BOOKIE from its cluster, when auto-recovery has moved its ledgers.

    The command marks the bookie's ledgers for the workers of `dlog autorecovery` (or Apache's), waits for
    them, and then deletes the bookie's cookie. It is refused while the bookie is registered (exit code 5),
    and if auto-recovery is off or nowhere running (6). It can be interrupted and run again.

    Exit code 1 if --timeout is over: the marks stay, and the cookie too.
    """
    _check_ids([bookie])
    if not yes:
        confirm(f"Remove bookie {bookie} from its cluster?")
    seen = RemovalProgress(0, 0)

    def show(progress: RemovalProgress) -> None:
        nonlocal seen
        if progress != seen and progress.ledgers_left:
            print_note(f"{progress.ledgers_left} of {progress.ledgers} ledgers are left")
        seen = progress

    async def go() -> Removed | None:
        async with opened_cluster(service) as opened:
            root = opened.deployment.ledgers_root
            with trio.move_on_after(float("inf") if timeout_s is None else timeout_s):
                async with audited_async("decommission bookie", f"{root} {bookie}"):
                    return await decommission_bookie(
                        opened.deployment.client.context,
                        opened.deployment.store.current_session(),
                        bookie,
                        delete_cookie=not keep_cookie,
                        on_progress=show,
                    )
            return None

    done = run(go)
    if as_json:
        print_json(
            {
                "bookie": bookie,
                "ledgers": seen.ledgers,
                "ledgers_left": seen.ledgers_left,
                "cookie_deleted": done is not None and done.is_cookie_deleted,
            }
        )
    if done is None:
        print_note(f"dlog: {seen.ledgers_left} of {seen.ledgers} ledgers still name {bookie}; run it again")
        print_note(_replace_hint(bookie))
        return ExitCode.FAILED
    if not as_json:
        cookie = "its cookie is deleted" if done.is_cookie_deleted else "no cookie was deleted"
        print_note(f"no ledger names {bookie} any more ({done.ledgers} moved); {cookie}")
    return ExitCode.OK


def _show_plan(service: Service, bookies: tuple[str, ...], ledger_id: int | None, *, as_json: bool) -> int:
    async def go() -> list[dict[str, Any]]:
        opened: OpenedCluster
        async with opened_cluster(service) as opened:
            context = opened.deployment.client.context
            planned = planned_evacuations(context, bookies, ledger_id=ledger_id)
            async with contextlib.aclosing(planned):
                return [attrs.asdict(one) async for one in planned]

    found = run(go)
    if as_json:
        print_json(found)
    else:
        rows = [
            [
                str(one["ledger_id"]),
                str(one["fragments"]),
                one["reason"] or ("yes" if one["is_open_end"] else "no"),
            ]
            for one in found
        ]
        print_table(["ledger", "fragments", "is written to it"], rows)
    return ExitCode.OK


def _check_ids(bookies: tuple[str, ...] | list[str]) -> None:
    for bookie in bookies:
        try:
            check_bookie_id(bookie)
        except LedgerError as exc:
            raise click.UsageError(str(exc)) from exc


def _why(one: Evacuated) -> str:
    assert one.outcome is not None  # ``Evacuated`` has an outcome or a reason, and the caller found no reason
    return {
        "open": "it is written to the bookie, and --skip-open leaves it alone",
        "failed": "not all entries could be copied; the log line above names the reason",
    }[one.outcome.value]


def _replace_hint(bookies: str) -> str:
    """What to do if there is no bookie to which the ledgers could move."""
    return (
        f"without another bookie to move them to, give {bookies} an empty disk: `dlog bookie replace-disk"
        " --config FILE` on its machine copies its entries back"
    )
