"""The systems by name, and the option that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dlog.cli.terminal.output import print_note
from tests.bench.peers import lmdb_store, plain_file, redis, sqlite
from tests.bench.peers.seam import Peer

Callback = TypeVar("Callback", bound=Callable[..., Any])

FLOOR = plain_file.PEER
PEERS = {peer.name: peer for peer in (sqlite.PEER, lmdb_store.PEER, redis.PEER)}
SYSTEMS = {FLOOR.name: FLOOR, **PEERS}


def peers_option(callback: Callback) -> Callback:
    """Add the option `--peers`; the command gets ``peers``, as ``chosen`` takes it."""
    return click.option(
        "--peers",
        metavar="NAMES",
        help=f"Do the same work with other systems, too: a list of {','.join(PEERS)}.",
    )(callback)


def chosen(names: str | None) -> tuple[list[Peer], dict[str, str]]:
    """The named peers that are installed, and for each of the others the package to install.

    Raises:
        click.UsageError: A name is unknown.
    """
    wanted = [name.strip() for name in (names or "").split(",") if name.strip()]
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        raise click.UsageError(f"--peers {names}: {unknown[0]} is not one of {', '.join(PEERS)}")
    missing = {name: package for name in wanted if (package := PEERS[name].find_missing()) is not None}
    return [PEERS[name] for name in dict.fromkeys(wanted) if name not in missing], missing


def print_missing(missing: dict[str, str]) -> None:
    """Name the peers that are not installed."""
    for package in missing.values():
        print_note(f"not measured, because it is not installed: {package}")
