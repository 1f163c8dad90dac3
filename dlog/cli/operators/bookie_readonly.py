"""`dlog bookie readonly on|off|status`: whether a running bookie takes new entries.

Inside: options, requests to the bookie's HTTP server, output. Not inside: the state itself
(``bookie.disk_watch``).
Always: paths and bodies of the requests are those of Apache's bookie, so the command works with both.

Source: BookieStateReadOnlyService.java.
"""

from __future__ import annotations

import urllib.error
from pathlib import Path

import click

from dlog.cli.operators import bookie_gc
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("readonly")
@click.argument("wanted", metavar="on|off|status", type=click.Choice(["on", "off", "status"]))
@click.option("--config", "config_path", metavar="FILE", type=FILE, help="The bookie's bk_server.conf.")
@click.option("--url", help="The bookie's HTTP server, such as http://localhost:8080.")
@click.option("--token-file", metavar="FILE", type=FILE, help="The file with the bookie's token.")
@click.option("--authorities", metavar="FILE", type=FILE, help="Certificates to trust, in PEM, for https.")
@click.option("--certificate", metavar="FILE", type=FILE, help="The client's certificate and key, in PEM.")
@json_option("the state")
def readonly(
    wanted: str,
    config_path: Path | None,
    url: str | None,
    token_file: Path | None,
    authorities: Path | None,
    certificate: Path | None,
    as_json: bool,
) -> int:
    """Make a running bookie read-only, or writable again; or show its state.

    A read-only bookie serves reads and gets no new ledgers. It stays so until `off`, or until it starts
    again. The bookie needs its HTTP server: httpServerEnabled=true in its configuration.

    Exit codes: 1 the bookie rejects the request; 6 the bookie does not reply.
    """
    base = bookie_gc.server_of(config_path, url, token_file, authorities, certificate)
    try:
        body = None if wanted == "status" else {"readOnly": wanted == "on"}
        state = bookie_gc.request(base, "state/readonly", body)
    except urllib.error.HTTPError as exc:
        print_note(f"{base} rejects the request: {exc.code} {exc.read().decode('utf-8', 'replace').strip()}")
        return ExitCode.FAILED
    except (OSError, ValueError) as exc:
        print_note(
            f"{base} does not reply as a bookie: {getattr(exc, 'reason', exc)}. Does the bookie run, with"
            " httpServerEnabled=true?"
        )
        return ExitCode.UNAVAILABLE
    if as_json:
        print_json({"read_only": state["readOnly"]})
    else:
        print("read-only" if state["readOnly"] else "writable")
    return ExitCode.OK
