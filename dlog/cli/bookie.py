"""``dlog bookie``: one storage server, until a signal stops it.

Inside: the option. Not inside: everything else (``bookie.__main__``), exit codes included; they are those of
Apache's bookie, since operators' scripts know them.
"""

from __future__ import annotations

from pathlib import Path

import click


@click.command("bookie")
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Apache's bk_server.conf, as it is.",
)
def bookie(config_path: Path) -> int:
    """Run one storage server (bookie) of a cluster.

    FILE is a bk_server.conf as Apache BookKeeper has it. Keys that only a JVM can obey are named in one log
    line; unknown keys are refused with the nearest known name. SIGTERM stops the bookie in an orderly way.

    Exit codes: 0 stopped by a signal; 1 configuration; 2 port in use, or unexpected; 3 metadata store out of
    reach; 4 not announced; 5 disks: foreign cookie, locked or unwritable directory, failed write.
    """
    from bookie.__main__ import run_program

    return run_program(config_path)


command = bookie
