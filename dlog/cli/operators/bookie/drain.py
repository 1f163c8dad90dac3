"""`dlog bookie drain`: make a running bookie read-only, and wait until it can be stopped unnoticed.

Inside: options, the order of the steps, output. Not inside: the request (``admin_server``), the wait
(``ledger.decommission.drain``), the copies (``ledger.decommission.bookie_recovery``).
Always: a command that fails or is interrupted leaves the bookie read-only, and says how to undo it.

Source: BookieStateReadOnlyService.java; docs/running.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import click
import trio

from dlog.cli.operators.autorecovery import OpenedCluster, opened_cluster, rate_option
from dlog.cli.operators.bookie.admin_server import BookieServer, server_options
from dlog.cli.operators.service import Service, service_options
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import counted, print_json, print_note
from dlog.cli.terminal.signals import run
from ledger.catalog.paths import check_bookie_id
from ledger.decommission import drain_bookie
from ledger.decommission.bookie_recovery import Evacuation, recover_bookies
from ledger.decommission.drain import OpenEnd
from ledger.errors import LedgerError
from ledger.replication import ReplicationConfig
from ledger.runtime.audit import audited_async


@click.command("drain")
@click.argument("bookie", metavar="BOOKIE")
@service_options
@server_options
@click.option("--move", is_flag=True, help="Then copy all its entries to other bookies.")
@rate_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait for the writers. [default: without a limit]",
)
@json_option("the result")
def drain(
    bookie: str,
    service: Service,
    server: BookieServer,
    move: bool,
    rate_bytes_max: int,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Make the running BOOKIE read-only, and wait until no writer sends entries to it.

    BOOKIE is its id in the cluster; --config or --url name its HTTP server. No writer fails: with its next
    append, each replaces the bookie by another one. Then stop the bookie with SIGTERM. Readers use it until
    then. With --move, its entries have other replicas before, so that no ledger lacks one afterwards.

    The bookie stays read-only until `dlog bookie readonly off`, or until it starts again. Exit code 1: the
    bookie rejects the request, --timeout is over, or entries could not be moved; 6: it does not reply.
    """
    try:
        check_bookie_id(bookie)
    except LedgerError as exc:
        raise click.UsageError(str(exc)) from exc
    server.request("state/readonly", {"readOnly": True})
    left: Sequence[OpenEnd] | None = None  # before the first look
    shown = -1

    def show(found: Sequence[OpenEnd]) -> None:
        nonlocal left, shown
        left = found
        if found and len(found) != shown:
            print_note(f"writers still send it entries of {counted(len(found), 'ledger')}")
        shown = len(found)

    async def go() -> tuple[bool, list[dict[str, Any]], int]:
        async with opened_cluster(service) as opened:
            context = opened.deployment.client.context
            name = f"{opened.deployment.ledgers_root} {bookie}"
            async with audited_async("drain bookie", name):
                with trio.move_on_after(float("inf") if timeout_s is None else timeout_s) as scope:
                    await drain_bookie(
                        context, opened.deployment.store.current_session(), bookie, on_progress=show
                    )
                if scope.cancelled_caught or not move:
                    return not scope.cancelled_caught, [], 0
                return True, *await _move(opened, bookie, rate_bytes_max)

    is_drained, not_moved, moved = run(go)
    if as_json:
        print_json(
            {
                "bookie": bookie,
                "drained": is_drained,
                "written": [{"ledger": one.ledger_id, "reason": one.reason} for one in left or ()],
                "ledgers_moved": moved,
                "not_moved": not_moved,
            }
        )
    if not is_drained:
        _print_left(bookie, left)
        return ExitCode.FAILED
    if not_moved:
        print_note(f"dlog: {bookie} is still named by {counted(len(not_moved), 'ledger')}; run it again")
        return ExitCode.FAILED
    if not as_json:
        copies = f"; {counted(moved, 'ledger')} moved to other bookies" if move else ""
        print_note(f"no open ledger is written to {bookie}{copies}; it can be stopped")
    return ExitCode.OK


def _print_left(bookie: str, left: Sequence[OpenEnd] | None) -> None:
    for one in left or ():
        print_note(f"ledger {one.ledger_id}: {one.reason}")
    evidence = (
        "but its registration does not say so yet"
        if left is None
        else f"and {len(left)} open ledgers are written to it"
    )
    print_note(
        f"dlog: {bookie} is read-only, {evidence}. Run it again to wait on. `dlog ledger recover LEDGER`"
        " closes a ledger whose writer is gone. `dlog bookie readonly off` undoes the first step"
    )


async def _move(opened: OpenedCluster, bookie: str, rate_bytes_max: int) -> tuple[list[dict[str, Any]], int]:
    """Copy the entries of the bookie; return the ledgers that are left, and the number of the others."""
    left, moved = [], 0
    recovering = recover_bookies(
        opened.deployment.client.context,
        opened.deployment.store.current_session(),
        [bookie],
        Evacuation(close_open=False),
        config=ReplicationConfig(rate_bytes_max=rate_bytes_max),
    )
    async with contextlib.aclosing(recovering):
        async for one in recovering:
            if one.is_done:
                moved += 1
                continue
            reason = one.reason or "not all entries could be copied; the log line above names the reason"
            print_note(f"ledger {one.ledger_id}: {reason}")
            left.append({"ledger": one.ledger_id, "reason": reason})
    return left, moved
