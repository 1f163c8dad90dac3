"""`dlog cluster start|stop|status`: ZooKeeper and bookies of this machine, for trying things out and for
tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from dlog.cli.output import print_json, print_table, tell
from dlog.cli.running import run
from dlog.cli.target import data_directory, json_option

Command = TypeVar("Command", bound=Callable[..., Any])


def directory_option(command: Command) -> Command:
    """The option `--directory`, the same for the three commands."""
    return click.option(
        "--directory",
        envvar="DLOG_CLUSTER",
        type=click.Path(file_okay=False, path_type=Path),
        default=lambda: data_directory(os.environ, Path.home()) / "cluster",
        show_default=f"$DLOG_CLUSTER, else {data_directory(os.environ, Path.home()) / 'cluster'}",
        help="Data, logs and state of the cluster.",
    )(command)


@click.group("cluster")
def command() -> None:
    """Start, stop and look at ZooKeeper and bookies on this machine."""


@command.command("start")
@click.option(
    "--bookies", type=click.IntRange(1, 100), help="How many. [default: as many as there were, or 3]"
)
@directory_option
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=60, show_default=True, help="Seconds to wait."
)
@json_option("the URI and the processes")
def start(bookies: int | None, directory: Path, timeout: float, as_json: bool) -> int:
    """Start ZooKeeper and bookies, or those that do not run; return when all of them serve.

    They go on after this command ends. Starting again what runs already changes nothing. Needs Java 17
    and the extra `spark`, whose jars bring ZooKeeper.
    """
    from dlog.cluster import LocalCluster

    cluster = LocalCluster(directory)

    async def go() -> int:
        await cluster.start(bookie_count=bookies, timeout_s=timeout)
        return await _show(cluster, as_json=as_json)

    code = run(go)
    if not as_json:
        tell(f"\nexport DLOG_URI={cluster.uri}")
    return code


@command.command("stop")
@directory_option
@click.option(
    "--grace", type=click.FloatRange(min=0), default=20, show_default=True, help="Seconds until SIGKILL."
)
def stop(directory: Path, grace: float) -> None:
    """Stop all processes of the cluster; its data stay."""
    from dlog.cluster import LocalCluster

    async def go() -> list[str]:
        return await LocalCluster(directory).stop(grace_s=grace)

    for name in run(go):
        tell(
            f"{name} did not end within {grace:g} s and was killed; "
            "it recovers from its journal when started again"
        )


@command.command("status")
@directory_option
@json_option("the URI and the processes")
def status(directory: Path, as_json: bool) -> int:
    """Show each process: pid, port, disk, whether it is registered and answers. Exit code 1 if one is not
    well.
    """
    from dlog.cluster import LocalCluster

    cluster = LocalCluster(directory)

    async def go() -> int:
        return await _show(cluster, as_json=as_json)

    return run(go)


async def _show(cluster: Any, *, as_json: bool) -> int:
    members = await cluster.status()
    if as_json:
        documents = [attrs.asdict(member) | {"is_well": member.is_well} for member in members]
        print_json({"uri": cluster.uri, "directory": str(cluster.paths.directory), "members": documents})
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
        tell(f"logs in {cluster.paths.directory / 'logs'}")
    return 0 if all(member.is_well for member in members) else 1


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
