"""`dlog bookie readonly on|off|status`: whether a running bookie takes new entries.

Inside: options, output. Not inside: requests (``admin_server``), the state itself (``bookie.disk_watch``).
Always: paths and bodies of the requests are those of Apache's bookie, so the command works with both.

Source: BookieStateReadOnlyService.java.
"""

from __future__ import annotations

import click

from dlog.cli.operators.bookie.admin_server import BookieServer, server_options
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json


@click.command("readonly")
@click.argument("wanted", metavar="on|off|status", type=click.Choice(["on", "off", "status"]))
@server_options
@json_option("the state")
def readonly(wanted: str, server: BookieServer, as_json: bool) -> None:
    """Make a running bookie read-only, or writable again; or show its state.

    A read-only bookie serves reads and gets no new ledgers. It stays so until `off`, or until it starts
    again. The bookie needs its HTTP server: httpServerEnabled=true in its configuration.

    Exit codes: 1 the bookie rejects the request; 6 the bookie does not reply.
    """
    body = None if wanted == "status" else {"readOnly": wanted == "on"}
    state = server.request("state/readonly", body)
    if as_json:
        print_json({"read_only": state["readOnly"]})
    else:
        print("read-only" if state["readOnly"] else "writable")
