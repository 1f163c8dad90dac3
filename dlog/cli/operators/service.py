"""The option `--service`: the cluster of ledgers that a command works on.

It defaults to the variable DLOG_SERVICE, else to the ledgers of the namespace in DLOG_URI or in the
configuration file, else to those of the user's own directory. A value is a metadata service URI
(``zk://HOST:PORT/ledgers``), or the URI of a namespace for the ledgers of that namespace.

Inside: the option, the options of TLS. Not inside: the commands, opening a cluster (``dlog.ledgers``).
Always: if there are no ledgers at the place, nothing is created, not even a LAYOUT node.

Source: BookKeeper, BookieShell.java and BKCtl.java (``-u``); DistributedLog, BKDLConfig.java.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from dlog.cli.terminal.options import VARIABLE as URI_VARIABLE
from dlog.cli.terminal.options import default_of_option
from dlog.config import NamespaceConfig
from dlog.connect import client_config
from dlog.ledgers import open_ledger_deployment
from ledger.auth.auth import AuthFactory
from ledger.auth.auth_plugins import client_auth
from ledger.auth.tls import client_context
from ledger.config import ClientConfig
from ledger.deploy import Deployment

Command = TypeVar("Command", bound=Callable[..., Any])
VARIABLE = "DLOG_SERVICE"


@attrs.frozen(kw_only=True)
class Service:
    """The values of the options."""

    uri: str
    tls_authorities: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_any_host_name: bool = False
    auth: AuthFactory | None = attrs.field(default=None, repr=False)

    def client_config(self, settings: NamespaceConfig) -> ClientConfig:
        """The configuration of the ledger client: that of the client, with the options of this command."""
        files = (self.tls_authorities, self.tls_certificate, self.tls_key)
        context = None
        if any(files):
            context = client_context(
                authorities=self.tls_authorities,
                certificate=self.tls_certificate,
                key=self.tls_key,
                check_host_name=not self.tls_any_host_name,
            )
        config = client_config(settings)
        transport = attrs.evolve(config.transport, tls=context, auth=self.auth)
        return attrs.evolve(config, transport=transport)


def service_options(command: Command) -> Command:
    """Add `--service` and the options of TLS; the command gets a ``Service`` as ``service``."""
    existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)

    @functools.wraps(command)  # keeps the options that the command already has
    def gather(
        *arguments: Any,
        service: str,
        tls_authorities: Path | None,
        tls_certificate: Path | None,
        tls_key: Path | None,
        tls_any_host_name: bool,
        auth: str | None,
        auth_setting: tuple[str, ...],
        **more: Any,
    ) -> Any:
        if tls_key is not None and tls_certificate is None:
            raise click.UsageError("--tls-key needs --tls-certificate")
        opened = _auth(auth, auth_setting)
        if getattr(opened, "needs_tls", False) and tls_authorities is None:
            raise click.UsageError(f"--auth {auth} sends its secret over TLS only: add --tls-authorities")
        gathered = Service(
            uri=service,
            tls_authorities=tls_authorities,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            tls_any_host_name=tls_any_host_name,
            auth=opened,
        )
        return command(*arguments, service=gathered, **more)

    decorated: Any = gather
    for option in (
        click.option(
            "--auth-setting",
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting of --auth: username, passwordFile, jaasFile, section; tokenFile.",
        ),
        click.option("--auth", metavar="PLUGIN", help="Authenticate with bookies: sasl, token or another."),
        click.option(
            "--tls-any-host-name", is_flag=True, help="Accept a bookie's certificate without its name."
        ),
        click.option("--tls-key", type=existing_file, help="Our private key (PEM), if it has its own file."),
        click.option("--tls-certificate", type=existing_file, help="Our certificate (PEM), for mutual TLS."),
        click.option("--tls-authorities", type=existing_file, help="Use TLS; trust these authorities (PEM)."),
        click.option(
            "--service",
            envvar=VARIABLE,
            default=default_of_option,
            show_default=f"${VARIABLE}, else ${URI_VARIABLE}, else that of --config",
            metavar="URI",
            help="The cluster: zk://HOST:PORT/ledgers, or the URI of a namespace.",
        ),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@asynccontextmanager
async def open_ledgers(service: Service, *, read_only: bool = False) -> AsyncIterator[Deployment]:
    """Open the cluster; close it at the end of the block.

    Raises:
        InvalidUriError, ledger.metadata_store.errors.InvalidStoreAddressError: The URI cannot be parsed.
        NamespaceNotBoundError: There are no ledgers at this place.
        ledger.metadata_store.errors.MetadataError: The metadata store is out of reach.
    """
    async with open_ledger_deployment(
        service.uri, read_only=read_only, client=service.client_config
    ) as deployment:
        yield deployment


def _auth(plugin: str | None, settings: tuple[str, ...]) -> AuthFactory | None:
    if plugin is None:
        if settings:
            raise click.UsageError("--auth-setting needs --auth")
        return None
    pairs = [setting.partition("=") for setting in settings]
    if not all(separator for _, separator, _ in pairs):
        raise click.UsageError("--auth-setting: write KEY=VALUE")
    try:
        return client_auth(plugin, {key: value for key, _, value in pairs})
    except ValueError as exc:
        raise click.UsageError(f"--auth {plugin}: {exc}") from exc
