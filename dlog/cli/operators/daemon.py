"""`dlog daemon start|stop|status`: bookies, auto-recovery and ZooKeeper in the background, without systemd.

Inside: options and output. Not inside: the processes (``dlog.cluster.daemons``), the programs
(``dlog.cli.operators.bookie``, ``dlog.cli.operators.autorecovery``, ``dlog.cli.running.zookeeper``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import directory_option, json_option
from dlog.cli.terminal.output import print_json, print_note, print_table
from dlog.cli.terminal.signals import run

Command = TypeVar("Command", bound=Callable[..., Any])
ROLES = ("bookie", "autorecovery", "zookeeper")


_directory_option = directory_option("DLOG_DAEMONS", "daemons", "State and output of the daemons.")


@click.group("daemon", cls=CommandGroup)
def command() -> None:
    """Run a bookie, auto-recovery or ZooKeeper in the background."""


@command.command("start", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--name", metavar="NAME", help="Needed for a second daemon of the kind. [default: PROGRAM]")
@_directory_option
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=60, show_default=True, help="Seconds to wait for it."
)
@json_option("the process")
@click.argument("program", type=click.Choice(ROLES))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def start(
    program: str,
    arguments: tuple[str, ...],
    name: str | None,
    directory: Path,
    timeout: float,
    as_json: bool,
) -> int:
    """Start `dlog PROGRAM ARGUMENTS` in the background; return when it serves.

    PROGRAM is bookie, autorecovery or zookeeper. The options of this command stand in front of it, those of
    the program after it: dlog daemon start --name b1 bookie --config b1.conf
    """
    from dlog.cluster.daemons import DaemonError, DaemonRunningError, Daemons

    chosen = name or program
    command_line = [sys.executable, "-m", "dlog.cli.main", program, *arguments]
    try:
        daemon = run(partial(Daemons(directory.absolute()).start, chosen, command_line, timeout_s=timeout))
    except ValueError as exc:
        raise click.UsageError(f"--name: {exc}") from exc
    except DaemonRunningError as exc:
        print_note(str(exc))
        return ExitCode.IN_USE
    except DaemonError as exc:
        print_note(str(exc))
        return ExitCode.FAILED
    if as_json:
        print_json({"name": daemon.name, "pid": daemon.process.pid, "log": str(daemon.log)})
    else:
        print_note(f"{daemon.name} serves, as process {daemon.process.pid}; its output goes to {daemon.log}")
    return ExitCode.OK


@command.command("stop")
@click.argument("name", metavar="NAME")
@_directory_option
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="Seconds between SIGTERM and SIGKILL.",
)
def stop(name: str, directory: Path, grace: float) -> int:
    """Stop a daemon; return when it has ended. Exit code 3 if there is none."""
    from dlog.cluster.daemons import DaemonError, Daemons, NoDaemonError

    try:
        was_orderly = run(partial(Daemons(directory.absolute()).stop, name, grace_s=grace))
    except NoDaemonError as exc:
        print_note(str(exc))
        return ExitCode.NOT_FOUND
    except DaemonError as exc:
        print_note(str(exc))
        return ExitCode.FAILED
    if not was_orderly:
        print_note(
            f"{name} did not end within {grace:g} s and was killed; a bookie recovers from its journal at the"
            " next start"
        )
    return ExitCode.OK


@command.command("status")
@_directory_option
@json_option("the daemons")
def status(directory: Path, as_json: bool) -> int:
    """Show the daemons that were started and not stopped. Exit code 1 if one has ended by itself."""
    from dlog.cluster.daemons import DaemonError, Daemons

    try:
        found = Daemons(directory.absolute()).all()
    except DaemonError as exc:
        print_note(str(exc))
        return ExitCode.FAILED
    if as_json:
        print_json(
            [
                {
                    "name": daemon.name,
                    "pid": daemon.process.pid,
                    "running": daemon.is_running,
                    "command": list(daemon.command),
                    "log": str(daemon.log),
                }
                for daemon in found
            ]
        )
    else:
        rows = [
            [daemon.name, str(daemon.process.pid), "yes" if daemon.is_running else "no", str(daemon.log)]
            for daemon in found
        ]
        print_table(["name", "pid", "running", "output"], rows)
    return ExitCode.OK if all(daemon.is_running for daemon in found) else ExitCode.FAILED
