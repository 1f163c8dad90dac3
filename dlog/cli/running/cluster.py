"""`dlog cluster start|stop|restart|status|env`: ZooKeeper and bookies on this machine, for first steps.

Inside: options and output. Not inside: the processes (``dlog.cluster``), the same commands with `--hosts`
(``dlog.cli.running.hosts``).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click
import trio

from dlog.cli.running import hosts as several
from dlog.cli.running.hosts import hosts_options, refuse_options
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import directory_option, gather, json_option
from dlog.cli.terminal.output import counted, print_json, print_note, print_table
from dlog.cli.terminal.signals import run
from ledger.runtime.secret_file import SecretOf, read_secret

if TYPE_CHECKING:
    from dlog.cluster import LocalCluster

Command = TypeVar("Command", bound=Callable[..., Any])


_directory_option = directory_option("DLOG_CLUSTER", "cluster", "Data, logs and state of the cluster.")


@click.group("cluster", cls=CommandGroup)
def command() -> None:
    """Start, stop and show ZooKeeper and bookies on this machine, or on the hosts of a hosts file."""


@attrs.frozen
class _New:
    """The parts of a cluster of this machine."""

    bookies: int | None
    zookeeper_jars: Path | None
    secure: bool


@command.command("start")
@click.option("--bookies", type=click.IntRange(1, 100), help="Number of bookies. [default: as before, or 3]")
@_directory_option
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=60, show_default=True, help="Seconds to wait for them."
)
@click.option(
    "--zookeeper-jars",
    envvar="DLOG_ZOOKEEPER_JARS",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of ZooKeeper's jars. [default: $DLOG_ZOOKEEPER_JARS, else PySpark's or Debian's]",
)
@click.option("--secure", is_flag=True, help="A new cluster gets certificates, and its bookies demand TLS.")
@hosts_options
@json_option("the URI and the processes")
@gather(new=_New)
def start(
    new: _New,
    directory: Path,
    timeout: float,
    hosts: Path | None,
    only: tuple[str, ...],
    as_json: bool,
) -> int:
    """Start ZooKeeper, bookies and auto-recovery; return when all serve, and print the page's address.

    The processes continue after this command ends. A process that runs already is left alone, so the command
    restarts what has stopped. ZooKeeper needs Java 17, and the extra `spark` for its jars. The page needs the
    extra `admin`. The part of its address after # is the token, which shows all records.

    With --secure a new cluster gets an authority, certificates and mutual TLS with its bookies. The command
    prints the file with the settings of clients. It needs the extra `security`. A later start keeps it.

    With --hosts, the same on several hosts, on each of which `dlog` is installed. If a step fails on a host,
    the programs that run continue. Exit code 6: a host is out of reach.
    """
    refuse_options(hosts, "bookies", "directory", "zookeeper_jars", "secure")
    if hosts is not None:
        return several.start(hosts, only, timeout_s=timeout, as_json=as_json)
    from dlog.cluster import LocalCluster

    cluster = LocalCluster(directory, zookeeper_jars=new.zookeeper_jars)

    async def go() -> int:
        await cluster.start(
            bookie_count=new.bookies,
            timeout_s=timeout,
            has_page=_can_serve_pages(),
            has_recovery=True,
            secure=new.secure,
            only=only,
        )
        return await _show(cluster, as_json=as_json)

    code = run(go)
    if not as_json:
        if (page := _page(cluster)) is not None:
            print_note(f"\npage: {page}")
        print_note(f"\n{_export(cluster)}")
    return code


@command.command("stop")
@_directory_option
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=20,
    show_default=True,
    help="Seconds between SIGTERM and SIGKILL.",
)
@hosts_options
@json_option("the processes, with --hosts,")
def stop(directory: Path, grace: float, hosts: Path | None, only: tuple[str, ...], as_json: bool) -> int:
    """Stop all processes of the cluster, or those of --only. The data stay."""
    refuse_options(hosts, "directory")
    if hosts is not None:
        return several.stop(hosts, only, grace_s=grace, as_json=as_json)
    from dlog.cluster import LocalCluster

    async def go() -> list[str]:
        return await LocalCluster(directory).stop(grace_s=grace, only=only)

    _note_killed(run(go), grace)
    return 0


def _note_killed(names: Sequence[str], grace_s: float) -> None:
    for name in names:
        print_note(
            f"{name} did not end within {grace_s:g} s and was killed;"
            " it recovers from its journal at the next start"
        )


@command.command("restart")
@_directory_option
@click.option("--only", multiple=True, metavar="NAME", help="This process; may be repeated. [default: all]")
@click.option(
    "--rolling",
    is_flag=True,
    help="One bookie after the other; each has all its entries before the next one stops.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    help="Seconds to wait for each step.",
)
@json_option("the URI and the processes")
def restart(directory: Path, only: tuple[str, ...], rolling: bool, timeout: float, as_json: bool) -> int:
    """Stop processes of the cluster on this machine and start them again.

    With --rolling only bookies are restarted. Writers and readers continue. The next bookie stops when the
    last one has every confirmed entry that it shall hold; auto-recovery copies what it missed. Exit code 1: a
    step took longer than --timeout; the other bookies were left alone.
    """
    from dlog.cluster import LocalCluster

    cluster = LocalCluster(directory)

    async def go() -> int:
        if rolling:
            for name in _rolled(cluster, only):
                await _restart(cluster, [name], timeout)
                await _wait_whole(cluster, name, timeout)
        else:
            await _restart(cluster, only, timeout)
        return await _show(cluster, as_json=as_json)

    return run(go)


def _rolled(cluster: LocalCluster, only: Sequence[str]) -> list[str]:
    bookies = [bookie.name for bookie in cluster.state.bookies]
    for name in only:
        if name not in bookies:
            raise click.UsageError(f"--rolling is for bookies: {name} is none of {', '.join(bookies)}")
    return [name for name in bookies if not only or name in only]


async def _restart(cluster: LocalCluster, only: Sequence[str], timeout_s: float) -> None:
    from dlog.cluster.local import STOP_GRACE_S

    _note_killed(await cluster.stop(only=only), STOP_GRACE_S)
    await cluster.start(timeout_s=timeout_s, only=only)


async def _wait_whole(cluster: LocalCluster, name: str, timeout_s: float) -> None:
    from dlog.cluster import ClusterError
    from dlog.cluster.layout import bookie_id
    from dlog.cluster.rolling import wait_replicated
    from dlog.ledgers import open_ledgers

    bookie = next(bookie_id(each) for each in cluster.state.bookies if each.name == name)
    settings = cluster.paths.client_settings if cluster.state.secure else None
    left = -1

    def show(ledgers: int) -> None:
        nonlocal left
        if ledgers not in (0, left):
            print_note(f"{name} lacks entries of {counted(ledgers, 'ledger')}")
        left = ledgers

    with trio.move_on_after(timeout_s):
        async with open_ledgers(cluster.uri, config_file=settings, read_only=True) as client:
            await wait_replicated(client, bookie, on_progress=show)
        print_note(f"{name} was restarted and has all its entries")
        return
    raise ClusterError(
        f"{name} serves again, but after {timeout_s:g} s it still lacks entries of {left} ledgers; the other"
        " bookies were left alone. Is auto-recovery running (`dlog cluster status`)? `dlog ledger check`"
        " shows what is missing; give the command again"
    )


@command.command("env")
@_directory_option
def env(directory: Path) -> None:
    """Print the variable that lets other commands use the cluster, for a shell.

    For example: eval "$(dlog cluster env)"
    """
    from dlog.cluster import LocalCluster

    print(_export(LocalCluster(directory)))


def _export(cluster: LocalCluster) -> str:
    if cluster.state.secure:
        return f"export DLOG_CONFIG={shlex.quote(str(cluster.paths.client_settings))}"
    return f"export DLOG_URI={shlex.quote(cluster.uri)}"


@command.command("status")
@_directory_option
@hosts_options
@json_option("the URI and the processes")
def status(directory: Path, hosts: Path | None, only: tuple[str, ...], as_json: bool) -> int:
    """Show the state of each process.

    The columns are pid, port, whether the process runs, is registered and answers, and its disk use. Exit
    code 1 if a process is not well, 6 if a host of --hosts is out of reach.
    """
    refuse_options(hosts, "directory")
    if hosts is None and only:
        raise click.UsageError("status shows all processes of this machine; --only needs --hosts")
    if hosts is not None:
        return several.status(hosts, only, as_json=as_json)
    from dlog.cluster import LocalCluster

    cluster = LocalCluster(directory)

    async def go() -> int:
        return await _show(cluster, as_json=as_json)

    return run(go)


async def _show(cluster: Any, *, as_json: bool) -> int:
    members = await cluster.status()
    if as_json:
        documents = [attrs.asdict(member) | {"is_well": member.is_well} for member in members]
        place = {"uri": cluster.uri, "directory": str(cluster.paths.directory), "page": _page(cluster)}
        place["config"] = str(cluster.paths.client_settings) if cluster.state.secure else None
        print_json(place | {"members": documents})
    else:
        columns = ["process", "pid", "port", "running", "registered", "answers", "disk MiB", "free GiB"]
        rows = [
            [
                member.name,
                _shown(member.pid),
                str(member.port),
                _shown(member.running),
                "read-only" if member.readonly else _shown(member.registered),
                _shown(member.answers),
                f"{member.data_bytes / 2**20:.1f}",
                "-" if member.free_bytes is None else f"{member.free_bytes / 2**30:.1f}",
            ]
            for member in members
        ]
        print_table(columns, rows)
        print_note(f"logs in {cluster.paths.directory / 'logs'}")
    return 0 if all(member.is_well for member in members) else 1


def _can_serve_pages() -> bool:
    return find_spec("h11") is not None


def _page(cluster: LocalCluster) -> str | None:
    """The address of the page with the token, which a browser does not send to the server in this place."""
    url = cluster.state.page_url
    return None if url is None else f"{url}#token={read_secret(cluster.paths.token, SecretOf.OURS)}"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
