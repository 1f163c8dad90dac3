"""``dlog bookie gc``: the garbage collection of a bookie that runs.

Inside: options, requests to the bookie's HTTP server, what is printed. Not inside: what the bookie does
(``bookie.gc``), its answers (``bookie.admin``). Works with Apache's bookies as well: paths and bodies are
theirs.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import click

from dlog.cli.exit_codes import ExitCode
from dlog.cli.target import json_option

_TIMEOUT_S = 10.0
_LOOK_EVERY_S = 0.5


@click.command("gc")
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The bookie's bk_server.conf, which tells where it listens.",
)
@click.option("--url", help="Where it listens instead, such as http://localhost:8080.")
@click.option("--force", is_flag=True, help="Begin a round now; compact as far as nothing is suspended.")
@click.option("--force-major", is_flag=True, help="Begin a round now with major compaction.")
@click.option("--force-minor", is_flag=True, help="Begin a round now with minor compaction.")
@click.option("--suspend", type=click.Choice(["minor", "major", "all"]), help="No compaction by itself.")
@click.option("--resume", type=click.Choice(["minor", "major", "all"]), help="Undo --suspend.")
@click.option("--wait", is_flag=True, help="Return when the forced round is over.")
@json_option("what each ledger directory's entry logs hold")
def gc(
    config_path: Path | None,
    url: str | None,
    force: bool,
    force_major: bool,
    force_minor: bool,
    suspend: str | None,
    resume: str | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Show the garbage collection of a running bookie; force it, suspend or resume its compaction.

    The bookie must have its HTTP server on (httpServerEnabled=true in its configuration). A level that is
    forced is compacted even if it is suspended, and on a full disk; it goes on if this command is stopped.

    Exit codes: 1 the bookie refuses; 6 nobody answers there.
    """
    from dlog.cli.output import print_facts, print_json, tell

    base = _base_url(config_path, url)
    try:
        if suspend is not None:
            _ask(base, "gc/suspend_compaction", _levels(suspend, "suspendMinor", "suspendMajor"))
        if resume is not None:
            _ask(base, "gc/resume_compaction", _levels(resume, "resumeMinor", "resumeMajor"))
        if force_major or force_minor:
            _ask(base, "gc", {"forceMajor": force_major, "forceMinor": force_minor})
        elif force:
            _ask(base, "gc", {})
        if wait and (force or force_major or force_minor):
            _wait(base, quiet=as_json)
        details = _ask(base, "gc_details")
        suspended = _ask(base, "gc/suspend_compaction")
    except urllib.error.HTTPError as exc:
        tell(f"{base} refuses: {exc.code} {exc.read().decode('utf-8', 'replace').strip()}")
        return ExitCode.FAILED
    except (OSError, ValueError) as exc:
        tell(f"{base} does not answer as a bookie: {getattr(exc, 'reason', exc)}")
        return ExitCode.UNAVAILABLE
    if as_json:
        print_json({"suspended": suspended, "directories": details})
        return ExitCode.OK
    for one in details:
        print_facts((name, _shown(name, value)) for name, value in one.items())
    print_facts(suspended.items())
    return ExitCode.OK


def _base_url(config_path: Path | None, url: str | None) -> str:
    if (config_path is None) == (url is None):
        raise click.UsageError("Give --config or --url.")
    if url is not None:
        return url.rstrip("/")
    from bookie.config import load_config

    assert config_path is not None
    admin = load_config(config_path).admin
    if admin is None:
        raise click.UsageError(
            f"{config_path}: the bookie's HTTP server is off; set httpServerEnabled=true and start it again"
        )
    host = "127.0.0.1" if admin.host == "0.0.0.0" else admin.host
    return f"http://{host}:{admin.port}"


def _ask(base: str, path: str, body: dict[str, bool] | None = None) -> Any:
    """GET, or PUT with a body."""
    request = urllib.request.Request(
        f"{base}/api/v1/bookie/{path}",
        data=None if body is None else json.dumps(body).encode() if body else b"",
        method="GET" if body is None else "PUT",
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return json.loads(answer.read())


def _levels(level: str, minor: str, major: str) -> dict[str, bool]:
    return {minor: level in ("minor", "all"), major: level in ("major", "all")}


def _wait(base: str, *, quiet: bool) -> None:
    from dlog.cli.output import console

    with console().status("collecting") if not quiet else _Silent() as status:
        while _ask(base, "gc")["is_in_force_gc"] == "true":
            if status is not None:
                done = sum(one.get("compactedBytes", 0) for one in _ask(base, "gc_details"))
                status.update(f"collecting; {done:,} bytes of entry logs compacted since the bookie started")
            time.sleep(_LOOK_EVERY_S)


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
