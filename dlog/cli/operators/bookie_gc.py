"""``dlog bookie gc``: the garbage collection of a running bookie.

Inside: options, requests to the bookie's HTTP server, output. Not inside: the collection
(``bookie.gc.collector``), the bookie's replies (``bookie.http``).
Always: paths and bodies of the requests are those of Apache's bookie, so the command works with both.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import attrs
import click

from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from ledger.auth.tls import client_context

_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.5


@click.command("gc")
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The bookie's bk_server.conf; it has the address of the HTTP server.",
)
@click.option("--url", help="The bookie's HTTP server, such as http://localhost:8080.")
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file with the bookie's token. [default: httpServerTokenPath of --config]",
)
@click.option(
    "--authorities",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Certificates to trust, in PEM, for https. [default: those of the system]",
)
@click.option(
    "--certificate",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The client's certificate and key, in PEM, if the bookie demands one.",
)
@click.option("--force", is_flag=True, help="Start a round now, with compaction that is not suspended.")
@click.option("--force-major", is_flag=True, help="Start a round now with major compaction.")
@click.option("--force-minor", is_flag=True, help="Start a round now with minor compaction.")
@click.option("--suspend", type=click.Choice(["minor", "major", "all"]), help="Suspend automatic compaction.")
@click.option("--resume", type=click.Choice(["minor", "major", "all"]), help="Undo --suspend.")
@click.option("--wait", is_flag=True, help="Wait for the end of the forced round.")
@json_option("the garbage collection of each ledger directory")
def gc(
    config_path: Path | None,
    url: str | None,
    token_file: Path | None,
    authorities: Path | None,
    certificate: Path | None,
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
    from dlog.cli.terminal.output import print_facts, print_json, print_note

    base = server_of(config_path, url, token_file, authorities, certificate)
    try:
        if suspend is not None:
            request(base, "gc/suspend_compaction", _levels(suspend, "suspendMinor", "suspendMajor"))
        if resume is not None:
            request(base, "gc/resume_compaction", _levels(resume, "resumeMinor", "resumeMajor"))
        if force_major or force_minor:
            request(base, "gc", {"forceMajor": force_major, "forceMinor": force_minor})
        elif force:
            request(base, "gc", {})
        if wait and (force or force_major or force_minor):
            _wait(base, quiet=as_json)
        details = request(base, "gc_details")
        suspended = request(base, "gc/suspend_compaction")
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
        print_json({"suspended": suspended, "directories": details})
        return ExitCode.OK
    for one in details:
        print_facts((name, _shown(name, value)) for name, value in one.items())
    print_facts(suspended.items())
    return ExitCode.OK


@attrs.frozen
class BookieServer:
    """The address of a bookie's HTTP server, and what it asks for."""

    url: str
    token: str | None = attrs.field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return self.url


def _tls(authorities: Path | None, certificate: Path | None) -> ssl.SSLContext | None:
    if authorities is None and certificate is None:
        return None
    try:
        return client_context(authorities=authorities, certificate=certificate)
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"--authorities or --certificate cannot be used: {exc}") from exc


def server_of(
    config_path: Path | None,
    url: str | None,
    token_file: Path | None,
    authorities: Path | None,
    certificate: Path | None,
) -> BookieServer:
    """The HTTP server that the options of a command name."""
    tls = _tls(authorities, certificate)
    if (config_path is None) == (url is None):
        raise click.UsageError("give either --config or --url")
    if url is not None:
        return BookieServer(url.rstrip("/"), _token(token_file), tls)
    from bookie.config.bookie_config import load_config

    assert config_path is not None
    admin = load_config(config_path).admin
    if admin is None:
        raise click.UsageError(
            f"{config_path}: the bookie's HTTP server is off; set httpServerEnabled=true and restart the"
            " bookie"
        )
    host = "127.0.0.1" if admin.host == "0.0.0.0" else admin.host
    scheme = "http" if admin.tls is None else "https"
    return BookieServer(f"{scheme}://{host}:{admin.port}", _token(token_file or admin.token_path), tls)


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"the token in {file} cannot be read: {exc}") from exc
    if len(token.split()) != 1:
        raise click.UsageError(
            f"{file} holds the tokens of several owners: write yours alone into a file, and name it with"
            " --token-file"
        )
    return token


def request(server: BookieServer, path: str, body: dict[str, bool] | None = None) -> Any:
    """GET without a body, PUT with one; return the decoded JSON reply."""
    wanted = urllib.request.Request(
        f"{server.url}/api/v1/bookie/{path}",
        data=None if body is None else json.dumps(body).encode() if body else b"",
        method="GET" if body is None else "PUT",
        headers={"Content-Type": "application/json"}
        | ({} if server.token is None else {"Authorization": f"Bearer {server.token}"}),
    )
    with urllib.request.urlopen(wanted, timeout=_TIMEOUT_S, context=server.tls) as reply:
        return json.loads(reply.read())


def _levels(level: str, minor: str, major: str) -> dict[str, bool]:
    return {minor: level in ("minor", "all"), major: level in ("major", "all")}


def _wait(base: BookieServer, *, quiet: bool) -> None:
    from dlog.cli.terminal.output import console

    with console().status("collecting") if not quiet else _Silent() as status:
        while request(base, "gc")["is_in_force_gc"] == "true":
            if status is not None:
                done = sum(one.get("compactedBytes", 0) for one in request(base, "gc_details"))
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
