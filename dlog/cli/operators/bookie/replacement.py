"""`dlog bookie replace-disk`: give a bookie whose disk was lost its entries back, on an empty disk.

Inside: options and output. Not inside: the work (``bookie.disk_replacement``).
Always: a refusal names each ledger with its reason, and nothing was changed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlog.cli.operators.bookie.page_routes import open_page_routes
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import counted, print_json, print_note, print_table
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.screen import Line, bar
from dlog.cli.terminal.signals import run
from ledger.runtime.audit import audited_async

if TYPE_CHECKING:
    from bookie.disk_replacement import Copying, Replaced

NOTE_S = 10.0  # between two lines of progress where stderr is no terminal


@click.command("replace-disk")
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The bookie's bk_server.conf.",
)
@click.option(
    "--verify",
    "percentage",
    type=click.IntRange(0, 100),
    default=100,
    show_default=True,
    metavar="PERCENT",
    help="The share of the copied entries to read back, besides the first and the last of each fragment.",
)
@click.option("--start", "starts", is_flag=True, help="Run the bookie afterwards, until a signal stops it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the result")
def replace_disk(config_path: Path, percentage: int, starts: bool, yes: bool, as_json: bool) -> int:
    """Give a stopped bookie whose disk was lost its entries back, on an empty disk in its place.

    Mount the new disk first: its directories are empty or missing. The command looks whether the other
    bookies have every entry that this one shall hold; if not, it names the ledgers and changes nothing (exit
    code 1). Then it runs the bookie, which copies its entries and denies none meanwhile, reads all of them
    back, and stops the bookie. Start the bookie as usual afterwards; with --start the command does it, and
    has the exit codes of `dlog bookie` from then on.

    A ledger that is being written to the lost bookie is closed, so its writer continues in another one. If
    the command is interrupted, run it again. Exit code 5: the bookie is registered, so it runs, or its
    session has not ended yet.
    """
    from bookie.config.bookie_config import load_config
    from bookie.disk.descriptor_limit import raise_limit
    from bookie.disk_replacement import DiskReplacement
    from ledger.metadata_store.zookeeper import open_zookeeper_store

    raise_limit()  # first: the configuration derives its defaults from it
    config = load_config(config_path)
    metadata, directories = config.metadata, config.directories
    if not yes:
        places = ", ".join(dict.fromkeys((*directories.journal, *directories.ledger, *directories.index)))
        confirm(f"Did this bookie lose a disk, and are all disks of {places} mounted?")
    shown = _Progress(quiet=as_json)
    replacement = DiskReplacement(
        config,
        open_store=lambda: open_zookeeper_store(
            metadata.hosts, session_timeout_ms=metadata.session_timeout_ms
        ),
        open_routes=open_page_routes,
        percentage=percentage,
        on_progress=shown.show,
    )

    async def go() -> Replaced:
        async with audited_async("replace disk", str(config_path)):
            return await replacement.run()

    try:
        done = run(go)
    finally:
        shown.clear()
    _report(done, starts=starts, as_json=as_json)
    if not done.is_done:
        return ExitCode.FAILED
    return _serve(config_path) if starts else ExitCode.OK


def _report(done: Replaced, *, starts: bool, as_json: bool) -> None:
    problems = [(one.ledger_id, str(one.reason)) for one in done.refused]
    problems += [(one.ledger_id, one.reason) for one in done.not_read_back]
    if as_json:
        print_json(
            {
                "bookie": done.bookie_id,
                "ledgers": done.ledgers,
                "started": not done.refused,
                "done": done.is_done,
                "problems": [{"ledger_id": one, "reason": reason} for one, reason in problems],
            }
        )
    elif problems:
        print_table(["ledger", "reason"], [[str(one), reason] for one, reason in problems])
    print_note(_summary(done, starts=starts))


def _serve(config_path: Path) -> int:
    """Run the bookie by a start as any other, so that nothing of the replacement is in force."""
    from bookie.__main__ import run_program

    sys.stdout.flush()  # a reader of the result does not wait until the bookie stops
    return run_program(config_path, open_routes=open_page_routes)


def _summary(done: Replaced, *, starts: bool) -> str:
    named = counted(done.ledgers, "ledger")
    if done.refused:
        return (
            f"dlog: refused, and nothing was changed: {len(done.refused)} of the {named} that name"
            f" {done.bookie_id} have too few copies on other bookies. Start the bookies that have them (`dlog"
            " bookies list --away`), and run it again. If those copies are gone for good,"
            " dataIntegrityStampMissingCookies=true starts the bookie all the same: these ledgers stay in"
            " limbo, and all other entries are copied"
        )
    if done.not_read_back:
        return (
            f"dlog: {done.bookie_id} does not return all entries of {len(done.not_read_back)} of its {named}."
            " It is stopped. Run it again; if that does not help, check its disk"
        )
    then = "starts now" if starts else "is stopped. Start it as usual"
    return f"{done.bookie_id} has all entries of its {named} again, and {then}"


class _Progress:
    """A bar on a terminal, else a line when the step changes and now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._is_terminal = quiet, sys.stderr.isatty()
        self._line = Line(sys.stderr)
        self._step, self._began_s, self._noted_s = "", 0.0, 0.0

    def show(self, now: Copying) -> None:
        if self._quiet:
            return
        now_s = time.monotonic()
        is_new = now.step != self._step
        if is_new:
            self._step, self._began_s = now.step, now_s
        if self._is_terminal:
            seconds = now_s - self._began_s
            self._line.draw(bar(now.step, now.ledgers, now.ledgers_total, "ledgers", seconds))
        elif is_new or now_s >= self._noted_s + NOTE_S or now.ledgers == now.ledgers_total:
            self._noted_s = now_s
            print_note(f"{now.step}: {now.ledgers:,} of {counted(now.ledgers_total, 'ledger')}")

    def clear(self) -> None:
        self._line.clear()
