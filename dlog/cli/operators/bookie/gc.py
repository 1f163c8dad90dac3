"""``dlog bookie gc``: the garbage collection of a running bookie.

Inside: options, output. Not inside: requests (``admin_server``), the collection (``bookie.gc.collector``),
the bookie's replies (``bookie.http``).
Always: paths and bodies of the requests are those of Apache's bookie, so the command works with both.
"""

from __future__ import annotations

import time

import click

from dlog.cli.operators.bookie.admin_server import BookieServer, server_options
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option

_POLL_INTERVAL_S = 0.5


@click.command("gc")
@server_options
@click.option("--force", is_flag=True, help="Start a round now, with compaction that is not suspended.")
@click.option("--force-major", is_flag=True, help="Start a round now with major compaction.")
@click.option("--force-minor", is_flag=True, help="Start a round now with minor compaction.")
@click.option("--suspend", type=click.Choice(["minor", "major", "all"]), help="Suspend automatic compaction.")
@click.option("--resume", type=click.Choice(["minor", "major", "all"]), help="Undo --suspend.")
@click.option("--wait", is_flag=True, help="Wait for the end of the forced round.")
@json_option("the garbage collection of each ledger directory")
def gc(
    server: BookieServer,
    force: bool,
    force_major: bool,
    force_minor: bool,
    suspend: str | None,
    resume: str | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Show or control the garbage collection of a running bookie.

    The options force a round, and suspend or resume compaction. The bookie needs its HTTP server:
    httpServerEnabled=true in its configuration. A forced level is compacted even if it is suspended, and even
    on a full disk. The round continues if this command is stopped.

    Exit codes: 1 the bookie rejects the request; 6 the bookie does not reply.
    """
    from dlog.cli.terminal.output import print_facts, print_json

    if suspend is not None:
        server.request("gc/suspend_compaction", _levels(suspend, "suspendMinor", "suspendMajor"))
    if resume is not None:
        server.request("gc/resume_compaction", _levels(resume, "resumeMinor", "resumeMajor"))
    if force_major or force_minor:
        server.request("gc", {"forceMajor": force_major, "forceMinor": force_minor})
    elif force:
        server.request("gc", {})
    if wait and (force or force_major or force_minor):
        _wait(server, quiet=as_json)
    details = server.request("gc_details")
    suspended = server.request("gc/suspend_compaction")
    if as_json:
        print_json({"suspended": suspended, "directories": details})
        return ExitCode.OK
    for one in details:
        print_facts((name, _shown(name, value)) for name, value in one.items())
    print_facts(suspended.items())
    return ExitCode.OK


def _levels(level: str, minor: str, major: str) -> dict[str, bool]:
    return {minor: level in ("minor", "all"), major: level in ("major", "all")}


def _wait(server: BookieServer, *, quiet: bool) -> None:
    from dlog.cli.terminal.output import console

    with console().status("collecting") if not quiet else _Silent() as status:
        while server.request("gc")["is_in_force_gc"] == "true":
            if status is not None:
                done = sum(one.get("compactedBytes", 0) for one in server.request("gc_details"))
                status.update(f"collecting; {done:,} bytes of entry logs compacted since the bookie started")
            time.sleep(_POLL_INTERVAL_S)


class _Silent:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _shown(name: str, value: object) -> str:
    if name.endswith("Time") and isinstance(value, int):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value / 1000)) if value else "never"
    if isinstance(value, dict):
        return "; ".join(map(str, value.values())) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
