"""Requests of commands to the HTTP server of a running bookie, ours or Apache's.

Inside: the options that name the server, its token and certificates, a request, its failures. Not inside: the
commands (``command``, ``drain``), the server (``bookie.http``).
Always: a token stands in no ``repr`` and in no message.
"""

from __future__ import annotations

import functools
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from dlog.cli.terminal.exit_codes import ExitCode
from ledger.auth.tls import client_context
from ledger.runtime.secret_file import SecretFileError, SecretOf, load_secret

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(dir_okay=False, path_type=Path)
_TIMEOUT_S = 10.0


class RequestRejectedError(click.ClickException):
    """The bookie rejects a request."""

    exit_code = ExitCode.FAILED


class NoReplyError(click.ClickException):
    """Nothing at the address replies as a bookie does."""

    exit_code = ExitCode.UNAVAILABLE


@attrs.frozen
class BookieServer:
    """The address of a bookie's HTTP server, and what it asks for."""

    url: str
    token: str | None = attrs.field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def request(self, path: str, body: dict[str, bool] | None = None) -> Any:
        """GET without a body, PUT with one; return the decoded JSON reply.

        Args:
            path: Below ``/api/v1/bookie/``.

        Raises:
            RequestRejectedError, NoReplyError
        """
        wanted = urllib.request.Request(
            f"{self.url}/api/v1/bookie/{path}",
            data=None if body is None else json.dumps(body).encode() if body else b"",
            method="GET" if body is None else "PUT",
            headers={"Content-Type": "application/json"}
            | ({} if self.token is None else {"Authorization": f"Bearer {self.token}"}),
        )
        try:
            with urllib.request.urlopen(wanted, timeout=_TIMEOUT_S, context=self.tls) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as exc:
            text = exc.read().decode("utf-8", "replace").strip()
            raise RequestRejectedError(f"{self.url} rejects the request: {exc.code} {text}") from exc
        except (OSError, ValueError, RecursionError) as exc:
            raise NoReplyError(
                f"{self.url} does not reply as a bookie: {getattr(exc, 'reason', exc)}. Does the bookie run,"
                " with httpServerEnabled=true?"
            ) from exc


def server_options(command: Command) -> Command:
    """Add the options that name a bookie's HTTP server; the command gets a ``BookieServer`` as ``server``."""

    @functools.wraps(command)  # keeps the options that the command already has
    def gather(
        *arguments: Any,
        config_path: Path | None,
        url: str | None,
        token_file: Path | None,
        authorities: Path | None,
        certificate: Path | None,
        **more: Any,
    ) -> Any:
        server = _server(config_path, url, token_file, _tls(authorities, certificate))
        return command(*arguments, server=server, **more)

    decorated: Any = gather
    for option in (
        click.option(
            "--certificate",
            metavar="FILE",
            type=FILE,
            help="The client's certificate and key, in PEM, if the bookie demands one.",
        ),
        click.option(
            "--authorities",
            metavar="FILE",
            type=FILE,
            help="Certificates to trust, in PEM, for https. [default: those of the system]",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            type=FILE,
            help="The file with the bookie's token. [default: httpServerTokenPath of --config]",
        ),
        click.option("--url", help="The bookie's HTTP server, such as http://localhost:8080."),
        click.option(
            "--config",
            "config_path",
            metavar="FILE",
            type=FILE,
            help="The bookie's bk_server.conf; it has the address of the HTTP server.",
        ),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def _tls(authorities: Path | None, certificate: Path | None) -> ssl.SSLContext | None:
    if authorities is None and certificate is None:
        return None
    try:
        return client_context(authorities=authorities, certificate=certificate)
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"--authorities or --certificate cannot be used: {exc}") from exc


def _server(
    config_path: Path | None, url: str | None, token_file: Path | None, tls: ssl.SSLContext | None
) -> BookieServer:
    if (config_path is None) == (url is None):
        raise click.UsageError("give either --config or --url")
    if url is not None:
        return BookieServer(url.rstrip("/"), _token(token_file), tls)
    from bookie.config.bookie_config import load_config

    assert config_path is not None  # one of the two was given, and not the URL
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
        token = load_secret(file, SecretOf.OURS).content.decode("ascii").strip()
    except (OSError, UnicodeDecodeError, SecretFileError) as exc:
        raise click.UsageError(f"the token in {file} cannot be read: {exc}") from exc
    if len(token.split()) != 1:
        raise click.UsageError(
            f"{file} holds the tokens of several owners: write yours alone into a file, and name it with"
            " --token-file"
        )
    return token
