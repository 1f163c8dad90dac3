"""The `dlog` command: finds the subcommand, and turns every error into one line and an exit code.

Inside: the table of commands, each imported only when it is called, so that `dlog --help` is quick.
Not inside: what the commands do (a file each), what exit codes mean (``exit_codes``).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

# name -> module, whose command is called ``command``, and its line in `dlog --help`.
COMMANDS = {
    "demo": ("dlog.cli.demo.command", "Write real lines, kill the writer half way, go on, compare all."),
    "log": ("dlog.cli.log", "Create, list, show and delete logs."),
    "write": ("dlog.cli.write", "Append the lines of a file or of stdin to a log."),
    "read": ("dlog.cli.read", "Print the records of a log, then stop."),
    "tail": ("dlog.cli.tail", "Print new records of a log as they are written."),
    "cluster": ("dlog.cli.cluster", "Start, stop and look at ZooKeeper and bookies on this machine."),
    "bookie": ("dlog.cli.bookie", "Run one storage server."),
    "bookies": ("dlog.cli.bookies", "Begin a cluster of storage servers, and look at them."),
    "ledger": ("dlog.cli.ledger", "List, show, read, test and delete the ledgers below the logs."),
    "inspect": ("dlog.cli.inspect", "Read a storage server's files, while it does not run."),
    "bench": ("dlog.cli.bench.command", "Measure appends, tailing and catching up."),
}


OUR_PACKAGES = ("dlog", "ledger", "namespace", "bookie")


class OutputClosedError(Exception):
    """The program that read our output has left."""


class LazyGroup(click.Group):
    """A group whose commands are imported when called, not when listed."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click itself would end the program with code 1 if our reader leaves."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise OutputClosedError from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.command(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="dlog-streams", prog_name="dlog")
@click.option("--debug", is_flag=True, envvar="DLOG_DEBUG", help="Show tracebacks instead of one line.")
@click.pass_context
def program(context: click.Context, debug: bool) -> None:
    """A durable, replicated log.

    Where a log lives is said by --uri or the variable DLOG_URI: file:///DIRECTORY (everything in this
    process; the default is a directory of your own, see `dlog log list --help`) or
    distributedlog://HOST:PORT/NAMESPACE (ZooKeeper and bookies).
    """
    context.obj["debug"] = debug


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Prints one line for an error, more only with --debug."""
    settings: dict[str, Any] = {"debug": bool(os.environ.get("DLOG_DEBUG"))}
    try:
        result = program.main(arguments, prog_name="dlog", standalone_mode=False, obj=settings)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except BaseException as error:
        # The top of the program: report and end.
        return _report(error, debug=settings["debug"])
    return result if isinstance(result, int) else 0


def _report(error: BaseException, *, debug: bool) -> int:
    from dlog.cli.exit_codes import ExitCode, exit_code_of, first_cause
    from dlog.cli.running import TerminatedError

    cause = first_cause(error)
    if isinstance(cause, SystemExit):
        raise cause
    if isinstance(cause, TerminatedError):
        return cause.exit_code
    if isinstance(cause, OutputClosedError):
        # Let the interpreter's last flush go nowhere instead of failing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN_PIPE
    code = exit_code_of(cause)
    if code is not ExitCode.INTERRUPTED:
        if debug:
            sys.excepthook(type(error), error, error.__traceback__)
        print(f"dlog: {_one_line(cause)}", file=sys.stderr)
    return code


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    # Our own errors are sentences. Others say little without their class.
    if type(error).__module__.partition(".")[0] in OUR_PACKAGES and text:
        return text
    hint = "" if isinstance(error, OSError) else " (--debug shows where)"
    return f"{type(error).__name__}: {text}{hint}" if text else f"{type(error).__name__}{hint}"


if __name__ == "__main__":
    sys.exit(main())
