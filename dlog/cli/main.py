"""The `dlog` command: finds the subcommand, and turns every error into one line and an exit code.

Inside: the table of commands. A command is imported when it is called, so that `dlog --help` is quick.
Not inside: the commands (one module each), the meaning of exit codes (``terminal.exit_codes``).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

import click
from click.shell_completion import CompletionItem

from dlog.cli.terminal.completion import complete, is_asked
from dlog.cli.terminal.groups import CommandGroup

# The group of entry points that bring commands of packages above this one.
ENTRY_POINTS = "dlog.commands"

# Section of `dlog --help` -> name -> module with the click command ``command``, or ``ENTRY_POINTS``; then the
# summary in `dlog --help`.
SECTIONS = {
    "Logs": {
        "log": ("dlog.cli.logs.log", "Create, list, show and delete logs."),
        "cursor": ("dlog.cli.logs.cursor", "List, show, move and delete the cursors of a log."),
        "access": ("dlog.cli.logs.access", "Show and change what is denied on logs."),
        "policy": ("dlog.cli.logs.policy", "Show and change the rights on logs."),
        "write": ("dlog.cli.logs.write", "Append the lines of a file or of stdin to a log."),
        "read": ("dlog.cli.logs.read", "Print the records of a log, then stop."),
        "scan": ("dlog.cli.logs.scan", "Read a log as a table: Parquet, CSV, or a query."),
        "blob": ("dlog.cli.logs.blob", "Put, get, list, show and delete blobs."),
        "namespace": ("dlog.cli.operators.namespace", "Bind a new namespace to a cluster of bookies."),
        "promote": ("dlog.cli.logs.promote", "Move logs of a directory to a cluster."),
        "verify": ("dlog.cli.logs.verify", "Check a whole log, and its hash chain if it has one."),
        "tail": ("dlog.cli.logs.tail", "Print new records of a log as they are written."),
    },
    "Bookies and ledgers": {
        "cluster": ("dlog.cli.running.cluster", "Run ZooKeeper and bookies, here or on several hosts."),
        "bookie": ("dlog.cli.operators.bookie.command", "Run one bookie; check or repair its directories."),
        "bookies": ("dlog.cli.operators.bookies", "Create a cluster; list its bookies and their disk space."),
        "ledger": ("dlog.cli.operators.ledger", "List, show, read, test and delete ledgers."),
        "metadata": ("dlog.cli.operators.metadata", "Back up and restore a cluster's metadata."),
        "placement": ("dlog.cli.operators.placement", "Count the ledgers that are in the wrong racks."),
        "balance": ("dlog.cli.operators.balance", "Move replicas to bookies that are emptier."),
        "autorecovery": ("dlog.cli.operators.autorecovery", "Restore lost replicas; show and steer it."),
        "top": ("dlog.cli.operators.top", "Show bookies and logs with their rates, refreshed."),
        "exporter": ("dlog.cli.operators.exporter", "Serve figures of logs and bookies to Prometheus."),
        "explain": ("dlog.cli.operators.explain", "Say why an append waits or a ledger lacks replicas."),
        "check": ("dlog.cli.operators.check", "Look for damage in a directory, and read all its logs."),
        "repair": ("dlog.cli.operators.repair", "Make a damaged directory usable again."),
        "backup": ("dlog.cli.operators.backup", "Make, list, verify and prune backups of a namespace."),
        "replicate": ("dlog.cli.operators.replicate", "Keep backups of a namespace up to date."),
        "restore": ("dlog.cli.operators.restore", "Make a new directory of a backup."),
        "compact": ("dlog.cli.operators.compact", "Give back the space of deleted logs in a directory."),
        "daemon": ("dlog.cli.operators.daemon", "Run a bookie or auto-recovery in the background."),
        "proxy": ("dlog.cli.running.proxy", "Own logs on behalf of the programs that write them."),
        "zookeeper": ("dlog.cli.running.zookeeper", "Run one ZooKeeper server."),
        "inspect": ("dlog.cli.operators.bookie.inspect", "Print the contents of a stopped bookie's files."),
    },
    "Spark": {
        "pipeline": (ENTRY_POINTS, "Work on whole logs with Spark: copy, verify, archive."),
    },
    "This program": {
        "config": ("dlog.cli.setup.config", "Show the settings that hold, or check a file with settings."),
        "completion": ("dlog.cli.setup.completion", "Print the script of completion for bash or zsh."),
    },
    "Demonstration and measurements": {
        "demo": ("dlog.cli.demo.command", "Write lines, kill the writer, continue, compare all lines."),
        "bench": ("dlog.cli.bench.command", "Measure appends, tailing, catching up and latency."),
    },
}
COMMANDS = {name: entry for commands in SECTIONS.values() for name, entry in commands.items()}


OUR_PACKAGES = ("dlog", "ledger", "namespace", "bookie", "spark_integration")


class OutputClosedError(Exception):
    """The program that reads our output closed the pipe."""


def _loaded(name: str) -> object:
    """The command that an installed package brings."""
    found = list(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        raise click.UsageError(
            f"no installed package brings the command {name!r}; install DLog again, with pip install . in a"
            " checkout"
        )
    return found[0].load()


class LazyGroup(CommandGroup):
    """A group that imports a command when it is called, not when it is listed."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            OutputClosedError: Our output is closed. click alone would end the program with code 1.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise OutputClosedError from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None if the table does not have the name."""
        if cmd_name not in COMMANDS:
            return None
        module = COMMANDS[cmd_name][0]
        command = _loaded(cmd_name) if module == ENTRY_POINTS else importlib.import_module(module).command
        assert isinstance(command, click.Command)  # each module of ``COMMANDS`` has one
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands of the table and the options, without an import of any command."""
        commands = [
            CompletionItem(name, help=COMMANDS[name][1]) for name in COMMANDS if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, without an import of any command."""
        width = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])


@click.command(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="dlog-streams", prog_name="dlog")
@click.option("--debug", is_flag=True, envvar="DLOG_DEBUG", help="Show the traceback of an error.")
@click.option(
    "--uri",
    metavar="URI",
    help="The namespace; also behind the name of a command. It outranks DLOG_URI and DLOG_SERVICE.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    envvar="DLOG_CONFIG",
    help="A file with the settings of this client; `dlog config show` prints them.",
)
@click.option(
    "--zk-security",
    type=click.Path(dir_okay=False),
    envvar="DLOG_ZK_SECURITY",
    help="A file with the identity and the TLS settings for ZooKeeper.",
)
@click.option(
    "--bookie-security",
    type=click.Path(dir_okay=False),
    envvar="DLOG_BOOKIE_SECURITY",
    help="A file with the settings of TLS and authentication for bookies.",
)
@click.pass_context
def program(
    context: click.Context,
    debug: bool,
    uri: str | None,
    config: str | None,
    zk_security: str | None,
    bookie_security: str | None,
) -> None:
    """A durable, replicated log.

    The option --uri or the variable DLOG_URI names the namespace that holds the logs. file:///DIRECTORY
    stores everything in a directory of this machine. distributedlog://HOST:PORT/NAMESPACE uses ZooKeeper
    and bookies. `dlog log list --help` shows the default. Each command has --help.
    """
    context.obj["debug"] = debug
    # By the environment, so that the programs that a command starts have them too.
    if uri is not None:
        os.environ["DLOG_URI"] = uri
        os.environ.pop("DLOG_SERVICE", None)
    if config is not None:
        os.environ["DLOG_CONFIG"] = config
    if zk_security is not None:
        os.environ["DLOG_ZK_SECURITY"] = zk_security
    if bookie_security is not None:
        os.environ["DLOG_BOOKIE_SECURITY"] = bookie_security


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Print one line for an error, and a traceback with --debug."""
    if is_asked():
        complete(program)
    return run_program(program, "dlog", arguments)


def run_program(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run ``command`` as the program ``name``; return its exit code, as ``main`` does for `dlog`."""
    settings: dict[str, Any] = {"debug": bool(os.environ.get("DLOG_DEBUG"))}
    try:
        result = command.main(arguments, prog_name=name, standalone_mode=False, obj=settings)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except BaseException as error:
        # The top of the program: every error is reported here.
        return _report(error, debug=settings["debug"])
    return result if isinstance(result, int) else 0


def _report(error: BaseException, *, debug: bool) -> int:
    from dlog.cli.terminal.escapes import escaped
    from dlog.cli.terminal.exit_codes import ExitCode, exit_code_of, first_cause
    from dlog.cli.terminal.signals import TerminatedError

    cause = first_cause(error)
    if isinstance(cause, SystemExit):
        raise cause
    if isinstance(cause, TerminatedError):
        return cause.exit_code
    if isinstance(cause, OutputClosedError):
        # The interpreter flushes stdout at exit; that must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN_PIPE
    code = exit_code_of(cause)
    if code is not ExitCode.INTERRUPTED:
        if debug:
            sys.excepthook(type(error), error, error.__traceback__)
        # An error may quote a name or metadata of a stranger.
        print(f"dlog: {escaped(_one_line(cause))}", file=sys.stderr)
    return code


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    # Our own errors are sentences. Other errors are unclear without their class.
    if type(error).__module__.partition(".")[0] in OUR_PACKAGES and text:
        return text
    hint = "" if isinstance(error, OSError) else " (`dlog --debug` shows the traceback)"
    return f"{type(error).__name__}: {text}{hint}" if text else f"{type(error).__name__}{hint}"


if __name__ == "__main__":
    sys.exit(main())
