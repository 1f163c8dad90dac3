"""`dlog compact DIRECTORY`: give back the space of deleted logs and records, at once.

Inside: the command. Not inside: the work (``ledger.deploy.compaction``).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import counted, print_json, print_note
from dlog.cli.terminal.signals import run
from dlog.errors import as_dlog_error
from ledger.deploy.compaction import compact_directory
from ledger.errors import DirectoryUnusableError


@click.command("compact")
@click.argument("directory", type=click.Path(path_type=Path))
@json_option("the bytes before and after, and the entry logs that were rewritten or deleted")
def command(directory: Path, as_json: bool) -> ExitCode:
    """Give back all space of deleted logs and truncated records in DIRECTORY.

    A process that has DIRECTORY open does so by itself, slowly, and only in entry logs that are half empty.
    This command rewrites each entry log that holds anything deleted. No process may have DIRECTORY open. It
    may be interrupted and repeated. It needs free space for the living entries of one entry log, at most 64
    MiB. The exit code is 1 if space of deleted entries is left.
    """
    rounds: list[int] = []

    def on_round(count: int) -> None:
        rounds.append(count)
        if count:
            print_note(f"{directory}: {counted(count, 'entry log')} rewritten or deleted")

    try:
        done = run(partial(compact_directory, directory, on_round))
    except DirectoryUnusableError as exc:
        raise as_dlog_error(exc, None, "compacting") from exc
    if as_json:
        print_json(
            {
                "before_bytes": done.before_bytes,
                "after_bytes": done.after_bytes,
                "dead_bytes": done.dead_bytes,
                "entry_logs": sum(rounds),
            }
        )
    print_note(f"{directory}: {done.before_bytes:,} bytes before, {done.after_bytes:,} now")
    if done.dead_bytes:
        print_note(
            f"{directory}: {done.dead_bytes:,} bytes of deleted entries are left, in logs that are damaged or"
            " for whose copy there is no space (see above); free some space, and run it again"
        )
        return ExitCode.FAILED
    return ExitCode.OK
