"""Which cluster's ledgers a command works on: `--service`, else DLOG_SERVICE, else those of the namespace in
DLOG_URI, else those of the user's own directory.

Inside: the option, and opening what it names: a metadata service URI (``zk://HOST:PORT/ledgers``) or the URI
of a namespace, whose ledgers are meant. Not inside: what the commands do.
Always: nothing is created where no ledgers were, not even a LAYOUT node.

Source: BookKeeper, BookieShell.java and BKCtl.java (``-u``); DistributedLog, BKDLConfig.java.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click
import trio

from dlog.cli.target import VARIABLE as URI_VARIABLE
from dlog.cli.target import default_uri
from dlog.errors import NamespaceNotBoundError
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.dial import dial_tcp
from ledger.paths import LAYOUT, Layout
from ledger.tls import client_context
from ledger.transport_config import TransportConfig
from namespace.store import MetadataStore
from namespace.uri import parse_metadata_service_uri, parse_namespace_uri

Command = TypeVar("Command", bound=Callable[..., Any])
VARIABLE = "DLOG_SERVICE"
LAYOUT_OF = {layout.uri_name: layout for layout in Layout if layout.uri_name}


@attrs.frozen(kw_only=True)
class Service:
    """What the options say."""

    uri: str
    tls_authorities: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_any_host_name: bool = False

    @property
    def config(self) -> ClientConfig:
        """Of the ledger client."""
        files = (self.tls_authorities, self.tls_certificate, self.tls_key)
        if not any(files):
            return ClientConfig()
        context = client_context(
            authorities=self.tls_authorities,
            certificate=self.tls_certificate,
            key=self.tls_key,
            check_host_name=not self.tls_any_host_name,
        )
        return ClientConfig(transport=TransportConfig(tls=context))


@attrs.frozen
class Ledgers:
    """An open cluster: its client, and where its nodes are."""

    client: LedgerClient
    store: MetadataStore
    root: str


def service_options(command: Command) -> Command:
    """`--service` and the options of TLS; the command gets a ``Service`` as ``service``."""
    existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)

    @functools.wraps(command)  # with the options it has already
    def gather(
        *arguments: Any,
        service: str,
        tls_authorities: Path | None,
        tls_certificate: Path | None,
        tls_key: Path | None,
        tls_any_host_name: bool,
        **more: Any,
    ) -> Any:
        if tls_key is not None and tls_certificate is None:
            raise click.UsageError("--tls-key without --tls-certificate")
        gathered = Service(
            uri=service,
            tls_authorities=tls_authorities,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            tls_any_host_name=tls_any_host_name,
        )
        return command(*arguments, service=gathered, **more)

    decorated: Any = gather
    for option in (
        click.option("--tls-any-host-name", is_flag=True, help="Bookies' certificates need not name them."),
        click.option("--tls-key", type=existing_file, help="Our private key (PEM), if not in the same file."),
        click.option(
            "--tls-certificate", type=existing_file, help="Our certificate (PEM), for bookies that ask."
        ),
        click.option("--tls-authorities", type=existing_file, help="Talk TLS to bookies; trust these (PEM)."),
        click.option(
            "--service",
            envvar=VARIABLE,
            default=lambda: os.environ.get(URI_VARIABLE) or default_uri(os.environ, Path.home()),
            show_default=f"${VARIABLE}, else ${URI_VARIABLE}",
            metavar="URI",
            help="The ledgers: zk://HOST:PORT/ledgers, or the URI of a namespace.",
        ),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@asynccontextmanager
async def open_ledgers(service: Service) -> AsyncIterator[Ledgers]:
    """Open the cluster.

    Raises:
        InvalidUriError: Of ``dlog`` or of ``namespace``.
        NamespaceNotBoundError: There are no ledgers at this place.
        namespace.errors.NamespaceError: The metadata store is out of reach.
    """
    scheme = service.uri.strip().partition(":")[0].lower()
    if scheme == "file":
        async with _open_directory(service) as ledgers:
            yield ledgers
        return
    from namespace.zookeeper import open_zookeeper_store

    layout = None
    if scheme.startswith("zk"):
        where = parse_metadata_service_uri(service.uri)
        hosts, root, layout = where.hosts, where.ledgers_root, where.layout
    else:
        hosts, root = await _bound(service.uri)
    async with open_zookeeper_store(hosts) as store:
        if await store.exists(f"{root}/{LAYOUT}") is None:
            raise NamespaceNotBoundError(
                f"{service.uri}: no ledgers below {root} (it has no node {LAYOUT}). Is the path right? A"
                " cluster's own bookies name it in metadataServiceUri"
            )
        async with open_ledger_client(
            store, dial_tcp, service.config, root=root, layout=None if layout is None else LAYOUT_OF[layout]
        ) as client:
            yield Ledgers(client, store, root)


async def _bound(uri: str) -> tuple[str, str]:
    """Hosts and root of the ledgers of a namespace."""
    from namespace.bindings import resolve_binding
    from namespace.zookeeper import open_zookeeper_store

    where = parse_namespace_uri(uri)
    async with open_zookeeper_store(where.hosts) as store:
        binding = await resolve_binding(store, where.path)
    return binding.bk_hosts, binding.ledgers_root


@asynccontextmanager
async def _open_directory(service: Service) -> AsyncIterator[Ledgers]:
    from dlog.embedded import LEDGERS_ROOT, open_embedded_stack

    directory = Path(parse_namespace_uri(service.uri).path)
    if not await trio.Path(directory).is_dir():
        raise NamespaceNotBoundError(f"{service.uri}: there is no such directory; `dlog log create` makes it")
    async with open_embedded_stack(directory, service.config) as stack:
        yield Ledgers(stack.client, stack.store, LEDGERS_ROOT)
