"""`dlog balance`: move replicas of closed ledgers to bookies that were added or are emptier.

Inside: options, progress and output. Not inside: the choice of the moves and the moves
(``ledger.balancing``).
Always: with --dry-run nothing is changed.

Source: our own; docs/running.md.
"""

from __future__ import annotations

import socket
from collections import Counter
from typing import Any

import attrs
import click

from dlog.cli.operators.autorecovery import opened_cluster, rate_option
from dlog.cli.operators.service import Service, service_options
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import counted, moment_text, print_json, print_note, print_table
from dlog.cli.terminal.signals import run
from ledger.balancing import Balanced, BalanceOptions, RunningBalance, balance_bookies, plan_balance
from ledger.replication import ReplicationConfig
from ledger.runtime.audit import audited_async

NOTE_EACH = 0.05  # of the bytes: between two lines of progress


@click.command("balance")
@service_options
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@rate_option
@click.option(
    "--within",
    "percent",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Stop when the fullest and the emptiest bookie differ by this part of the mean.",
)
@json_option("the plan and the result")
def command(service: Service, dry_run: bool, rate_bytes_max: int, percent: float, as_json: bool) -> int:
    """Move replicas of closed ledgers to bookies that were added or are emptier.

    A bookie is as full as the bytes of its replicas by the metadata, divided by the size of its disks. The
    moves keep to the placement policy of the client's settings. No read fails, and no writer notices. The
    old bookie deletes what has left it within a day, or as its configuration says.

    The command can be interrupted and run again. It ends when a bookie is lost, and does not begin while a
    ledger lacks replicas (exit code 6) or another balance runs (5). Exit code 1: some replicas could not be
    moved.
    """
    show = _Progress()

    async def go() -> Balanced:
        async with opened_cluster(service) as opened:
            client, root = opened.deployment.client, opened.deployment.ledgers_root
            session = opened.deployment.store.current_session()
            if dry_run:
                return await plan_balance(client, session, within=percent / 100)
            options = BalanceOptions(
                within=percent / 100,
                replication=ReplicationConfig(rate_bytes_max=rate_bytes_max),
                host_name=socket.getfqdn(),
            )
            async with audited_async("balance bookies", root):
                return await balance_bookies(client, session, options, on_progress=show, on_wait=_show_wait)

    result = run(go)
    if as_json:
        print_json({"dry_run": dry_run, **_document(result)})
    else:
        _print_tables(result, is_plan=dry_run)
    for one in result.left:
        print_note(f"ledger {one.ledger_id} stays on {one.source}: {one.reason}")
    if result.open_ledgers:
        print_note(f"{counted(result.open_ledgers, 'open ledger')} counted and not moved")
    if result.unknown_ledgers:
        print_note(f"{counted(result.unknown_ledgers, 'ledger')} with metadata that do not parse left out")
    print_note(_summary(result, is_plan=dry_run))
    return ExitCode.FAILED if result.left else ExitCode.OK


@attrs.define
class _Progress:
    """Lines on stderr, one for each part of the bytes."""

    _noted_bytes: int | None = None

    def __call__(self, now: RunningBalance) -> None:
        is_due = self._noted_bytes is None or now.bytes_done - self._noted_bytes >= NOTE_EACH * now.bytes
        if now.moves and is_due:
            self._noted_bytes = now.bytes_done
            print_note(
                f"{now.moves_done:,} of {counted(now.moves, 'move')} done,"
                f" {now.bytes_done:,} of {now.bytes:,} bytes"
            )


def _show_wait(other: RunningBalance) -> None:
    began = f" since {moment_text(other.began_ms)}" if other.began_ms else ""
    print_note(f"another balance runs on {other.host or 'another machine'}{began}; waiting for its end")


def _document(result: Balanced) -> dict[str, Any]:
    plan = result.plan
    return {
        "bookies": [
            {
                "bookie": use.bookie,
                "writable": use.is_writable,
                "total_bytes": use.capacity_bytes,
                "free_bytes": use.free_bytes,
                "bytes_before": plan.before[use.bookie],
                "bytes_planned": plan.after[use.bookie],
                "bytes_after": result.after[use.bookie],
            }
            for use in plan.uses
        ],
        "moves": [attrs.asdict(move) for move in plan.moves],
        "moves_done": result.moves_done,
        "entries_copied": result.entries_copied,
        "bytes_copied": result.bytes_copied,
        "left": [attrs.asdict(one) for one in result.left],
        "open_ledgers": result.open_ledgers,
        "unknown_ledgers": result.unknown_ledgers,
    }


def _print_tables(result: Balanced, *, is_plan: bool) -> None:
    plan = result.plan
    after = plan.after if is_plan else result.after
    rows = [
        [
            use.bookie,
            "writable" if use.is_writable else "read-only",
            f"{use.capacity_bytes:,}",
            f"{use.free_bytes:,}",
            f"{plan.before[use.bookie]:,}",
            _percent(plan.before[use.bookie], use.capacity_bytes),
            f"{after[use.bookie]:,}",
            _percent(after[use.bookie], use.capacity_bytes),
        ]
        for use in plan.uses
    ]
    titles = ["bookie", "state", "disk", "free", "bytes before", "% before", "bytes after", "% after"]
    print_table(titles, rows)
    if not is_plan or not plan.moves:
        return
    moves, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for move in plan.moves:
        moves[move.source, move.target] += 1
        sizes[move.source, move.target] += move.size_bytes
    print()
    print_table(
        ["from", "to", "moves", "bytes"],
        [[*pair, f"{moves[pair]:,}", f"{sizes[pair]:,}"] for pair in sorted(moves)],
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "-"


def _summary(result: Balanced, *, is_plan: bool) -> str:
    plan = result.plan
    if not plan.moves:
        return "nothing to move: the bookies are equally full, or no move is allowed that would improve it"
    if is_plan:
        return f"{counted(len(plan.moves), 'move')} of {plan.size_bytes:,} bytes planned; nothing was changed"
    return (
        f"{result.moves_done:,} of {counted(len(plan.moves), 'move')} done,"
        f" {result.entries_copied:,} entries of {result.bytes_copied:,} bytes copied"
    )
