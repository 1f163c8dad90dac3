"""`dlog cluster start|stop|status`: ZooKeeper and bookies on this machine, for first steps and for tests.

Inside: options and output. Not inside: the processes (``dlog.cluster``), the same commands with `--hosts`
(``dlog.cli.running.hosts``).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from dlog.cli.running import hosts as several
from dlog.cli.running.hosts import hosts_options, refuse_options
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import directory_option, gather, json_option
from dlog.cli.terminal.output import print_json, print_note, print_table
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
    refuse_options(hosts, only, "bookies", "directory", "zookeeper_jars", "secure")
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
        )
        return await _show(cluster, as_json=as_json)

    code = run(go)
    if not as_json:
        if (page := _page(cluster)) is not None:
            print_note(f"\npage: {page}")
        if cluster.state.secure:
            print_note(f"\nexport DLOG_CONFIG={cluster.paths.client_settings}")
        else:
            print_note(f"\nexport DLOG_URI={cluster.uri}")
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
    """Stop all processes of the cluster. The data stay."""
    refuse_options(hosts, only, "directory")
    if hosts is not None:
        return several.stop(hosts, only, grace_s=grace, as_json=as_json)
    from dlog.cluster import LocalCluster

    async def go() -> list[str]:
        return await LocalCluster(directory).stop(grace_s=grace)

    for name in run(go):
        print_note(
            f"{name} did not end within {grace:g} s and was killed;"
            " it recovers from its journal at the next start"
        )
    return 0


@command.command("status")
@_directory_option
@hosts_options
@json_option("the URI and the processes")
def status(directory: Path, hosts: Path | None, only: tuple[str, ...], as_json: bool) -> int:
    """Show the state of each process.

    The columns are pid, port, whether the process runs, is registered and answers, and its disk use. Exit
    code 1 if a process is not well, 6 if a host of --hosts is out of reach.
    """
    refuse_options(hosts, only, "directory")
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
