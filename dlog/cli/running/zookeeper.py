"""`dlog zookeeper`: run one ZooKeeper server, from the jars that PySpark or Debian brings.

Inside: options. Not inside: the command line of Java (``dlog.cluster.zookeeper_process``), readiness
(``dlog.cluster.zookeeper_member``).
"""

from __future__ import annotations

from pathlib import Path

import click

HEAP_MIB = 512


@click.command("zookeeper")
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="A zoo.cfg of Apache ZooKeeper.",
)
@click.option(
    "--jars",
    envvar="DLOG_ZOOKEEPER_JARS",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of ZooKeeper's jars. [default: $DLOG_ZOOKEEPER_JARS, else PySpark's or Debian's]",
)
@click.option(
    "--heap", type=click.IntRange(32), default=HEAP_MIB, show_default=True, metavar="MIB", help="Java's heap."
)
def command(config_path: Path, jars: Path | None, heap: int) -> int:
    """Run one ZooKeeper server with the configuration in FILE.

    It is one of several members if FILE has lines server.N and its data directory has the file myid. Java 17
    is needed. The process becomes Java's, with ZooKeeper's exit codes.
    """
    from dlog.cluster.zookeeper_member import ZookeeperConfigError, become, client_address
    from dlog.cluster.zookeeper_process import member_command

    try:
        address = client_address(config_path)
    except ZookeeperConfigError as exc:
        raise click.UsageError(f"--config: {exc}") from exc
    become(member_command(config_path, jars=jars, heap_mib=heap), address)
