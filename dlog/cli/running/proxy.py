"""`dlog proxy`: own logs on behalf of the programs that share their writers.

Inside: options, a line when the owned logs change. Not inside: owning them (``dlog.proxies``).
"""

from __future__ import annotations

import os
import socket
from functools import partial

import click

import dlog
from dlog.cli.terminal.options import config_with, keys_option, uri_option
from dlog.cli.terminal.output import counted, print_note
from dlog.cli.terminal.signals import run
from dlog.proxies import Proxy, run_proxy


def _as_name(_context: click.Context, _option: click.Parameter, given: str | None) -> str:
    name = f"{socket.gethostname()}-{os.getpid()}" if given is None else given
    if not name.isprintable() or "/" in name or not 0 < len(name) <= 255 or name in (".", ".."):
        raise click.BadParameter("a name has 1 to 255 printable characters, and no slash")
    return name


@click.command("proxy")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@uri_option
@click.option("--name", callback=_as_name, help="The proxy's name. [default: host and process id]")
@keys_option
def command(uri: str, patterns: tuple[str, ...], name: str, key_file: str | None) -> None:
    """Own the logs whose names match a PATTERN (default: all), until interrupted.

    Other programs open them with shared=True, and forward their records. Several proxies divide the logs.
    After SIGTERM or Ctrl-C a proxy answers what it took; then another program owns its logs.
    """
    run(partial(_own, uri, patterns or ("*",), name, key_file))


async def _own(uri: str, patterns: tuple[str, ...], name: str, key_file: str | None) -> None:
    shown: list[list[str]] = []

    def show(proxy: Proxy) -> None:
        if shown[-1:] != [proxy.owned]:
            shown[:] = [proxy.owned]
            print_note(f"proxy {name}: owns {counted(len(proxy.owned), 'log')}")

    async with dlog.open_namespace(uri, config=config_with(key_file)) as namespace:
        await run_proxy(namespace, patterns, name, show)
