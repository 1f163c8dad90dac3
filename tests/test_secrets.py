"""No secret is shown: not by a ``repr``, not by an error, not by the arguments of a command."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
import trio

import dlog
import dlog.blocking
import ledger
import ledger.blocking
from bookie.config.bookie_config import load_config
from bookie.config.properties import parse_properties
from bookie.config.settings import Settings
from bookie.errors import BookieConfigError
from dlog.cli.main import COMMANDS, main, program
from dlog.errors import InvalidUriError
from ledger.causes import cause_of
from ledger.metadata_store.errors import InvalidStoreAddressError, StoreSecurityError
from ledger.metadata_store.service_uri import (
    parse_directory_uri,
    parse_metadata_service_uri,
    without_user_info,
)
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from namespace.namespace_uri import parse_namespace_uri
from spark_integration.errors import OptionError
from spark_integration.options import parse_options
from tests.places import ROOT
from tests.source_tree import PACKAGES

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once

SECRET = "open-sesame"
SECRET_NAME = re.compile(r"passw|secret|token|master_key|credential|encryption|(^|_)(key|auth|users|owners)$")
# Of a type that holds no secret: a file, a number, the name of one.
HARMLESS_TYPE = re.compile(r"(Path|bool|int|float|re\.Pattern\[str\]|Key|frozenset\[str\])( \| None)?")
# Fields with another name that hold secrets.
MORE = {
    ("ledger.wire.messages", "AuthRequest", "payload"),
    ("ledger.wire.messages", "AuthReply", "payload"),
    ("ledger.auth.jaas", "JaasSection", "options"),
    ("bookie.config.properties", "FileSetting", "values"),
    ("bookie.config.properties", "FileSetting", "written"),
}
# Fields with such a name that hold none.
NO_SECRET = {
    ("bookie.config.security_settings", "_Restriction", "key"),  # a key of bk_server.conf
    ("ledger.transport.bookie_security", "BookieSecurity", "auth"),  # the name of a plug-in
    ("ledger.catalog.service_info", "Endpoint", "auth"),  # names of mechanisms
    ("bookie.config.classes", "BookieConfig", "client_auth"),  # SaslAuth, which has names of files
    ("bookie.config.report", "KeyReport", "key"),  # a key of bk_server.conf
    ("dlog.cli.logs.write", "_Wanted", "key"),  # of a record, as its payload
    # SQL expressions that choose which records of a log are kept:
    ("spark_integration.commands.compact", "_Wanted", "key"),
    ("spark_integration.pipelines.compacting.compactor", "Compaction", "key"),
    ("spark_integration.pipelines.compacting.manifest", "SnapshotManifest", "key"),
    ("spark_integration.pipelines.compacting.rows", "Wanted", "key"),
}
NO_SECRET_OPTIONS = {
    "dlog pipeline compact --key",  # an SQL expression
    "dlog write --key",  # of the records, as their payloads
}


def attrs_classes() -> Iterator[type]:
    for package in (*sorted(PACKAGES), "spark_integration"):
        for file in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if file.name == "__main__.py" or file.name.endswith("_pb2.py") or "discovery" in name:
                continue
            for value in vars(importlib.import_module(name)).values():
                if isinstance(value, type) and attrs.has(value) and value.__module__ == name:
                    yield value


def holds_secret(cls: type, field: Any) -> bool:
    where = (cls.__module__, cls.__name__, field.name)
    if where in MORE:
        return True
    harmless = HARMLESS_TYPE.fullmatch(str(field.type)) is not None
    return SECRET_NAME.search(field.name) is not None and not harmless and where not in NO_SECRET


def with_secrets(cls: type) -> tuple[object, int]:
    """An object of the class whose secrets are ``SECRET``, and their number."""
    one: object = object.__new__(cls)
    count = 0
    for field in attrs.fields(cls):
        secret = holds_secret(cls, field)
        count += secret
        object.__setattr__(one, field.name, SECRET if secret else None)
    return one, count


def test_no_repr_of_a_class_shows_a_secret() -> None:
    shown, found = [], 0
    for cls in attrs_classes():
        one, count = with_secrets(cls)
        found += count
        if count and SECRET in repr(one):
            shown.append(f"{cls.__module__}.{cls.__name__}")
    assert shown == [], "give the field repr=False"
    assert found > 25


def test_the_names_in_the_tables_of_this_test_exist() -> None:
    known = {
        (cls.__module__, cls.__name__, field.name) for cls in attrs_classes() for field in attrs.fields(cls)
    }
    assert known >= MORE | NO_SECRET


class Provider:
    """A plug-in of another package, whose ``repr`` is its secret."""

    def __repr__(self) -> str:
        return SECRET

    def current(self) -> tuple[str, bytes]:
        return "1", bytes(32)

    def key(self, key_id: str) -> bytes:
        return bytes(32)

    def __call__(self) -> Any:
        raise AssertionError


def test_a_configuration_shows_neither_its_password_nor_its_plug_ins() -> None:
    config = dlog.NamespaceConfig(
        password=SECRET.encode(),
        auth=Provider(),
        zookeeper_security=ZooKeeperSecurity(scheme="sasl", username="u", password=SECRET),
        writer=dlog.WriterConfig(encryption=Provider()),
        reader=dlog.ReaderConfig(encryption=Provider()),
    )
    client = ledger.ClientConfig(transport=ledger.TransportConfig(auth=Provider()))
    assert SECRET not in f"{config!r} {config} {client!r} {client}"


WITH_SECRETS = [
    f"zk+hierarchical://admin:{SECRET}@zk1:2181/ledgers",
    f"zk://admin:{SECRET}@zk1:2181;admin:{SECRET}@zk2:2181/ledgers",
    f"zk://admin:{SECRET}/{SECRET}@zk1:2181/ledgers",
    f"zk://admin/{SECRET}@zk1:2181/ledgers",
    f"zk://{SECRET}@zk1/ledgers",
    f"zk://zk1/ledgers?password={SECRET}",
    f"zk://zk1/ledgers#{SECRET}",
    f"zk:admin:{SECRET}@zk1/ledgers",
    f"distributedlog://admin:{SECRET}@zk1:2181/shop",
    f"distributedlog://admin:{SECRET}/@zk1:2181/shop",
    f"distributedlog://admin/{SECRET}@zk1:2181/shop",
    f"distributedlog://zk1/shop?password={SECRET}",
    f"file://admin:{SECRET}@host/var/log",
    f"file:///var/log?password={SECRET}",
    f"admin:{SECRET}@zk1/ledgers",
]


async def open_async(uri: str) -> None:
    async with dlog.open_namespace(uri):
        raise AssertionError("opened")


async def open_ledgers(uri: str) -> None:
    async with ledger.open_client(uri):
        raise AssertionError("opened")


@pytest.mark.parametrize("uri", WITH_SECRETS)
@pytest.mark.parametrize(
    "opened",
    [
        parse_namespace_uri,
        parse_metadata_service_uri,
        parse_directory_uri,
        lambda uri: trio.run(open_async, uri),
        lambda uri: trio.run(open_ledgers, uri),
        dlog.blocking.open_namespace,
        ledger.blocking.open_client,
        lambda uri: parse_options({"uri": uri, "stream": "orders"}, streaming=True),
    ],
    ids=[
        *("namespace", "service", "directory", "open_namespace", "open_client"),
        *("blocking namespace", "blocking client", "spark"),
    ],
)
def test_a_uri_with_a_secret_is_refused_and_not_quoted(uri: str, opened: Callable[[str], Any]) -> None:
    with pytest.raises((InvalidUriError, InvalidStoreAddressError, OptionError)) as caught:
        opened(uri)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r}"
        error = cause_of(error)


@pytest.mark.parametrize("uri", WITH_SECRETS)
@pytest.mark.parametrize(
    "arguments", [["log", "list", "--uri"], ["ledger", "list", "--service"], ["bookies", "init"]]
)
def test_a_command_with_a_secret_in_a_uri_fails_without_printing_it(
    uri: str, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, uri]) == 2
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err
    if "@" in uri and uri.startswith("distributedlog://"):
        assert "DLOG_ZK_SECURITY" in printed.err


def test_hosts_with_a_password_are_refused_and_not_quoted() -> None:
    async def opened() -> None:
        async with open_zookeeper_store(f"admin:{SECRET}@zk1:2181"):
            raise AssertionError("opened")

    with pytest.raises(InvalidStoreAddressError, match="DLOG_ZK_SECURITY") as caught:
        trio.run(opened)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("zk://a:b@zk1:2181/ledgers", "zk://***@zk1:2181/ledgers"),
        ("zk://a:b@zk1;a:b@zk2/ledgers", "zk://***@zk2/ledgers"),
        ("a:b@zk1", "a:***@zk1"),
        ("zk://zk1:2181;zk2:2181/ledgers", "zk://zk1:2181;zk2:2181/ledgers"),
        ("file:///home/me@work/log", "file:///home/me@work/log"),
        ("file:/home/me@work/log", "file:/home/me@work/log"),
        ("file://a:b@host/log", "file://***@host/log"),
        ("zk://zk1/l?password=b", "zk://zk1/l?***"),
    ],
)
def test_a_uri_is_shown_without_user_and_query(text: str, shown: str) -> None:
    assert without_user_info(text) == shown


def test_an_at_sign_in_a_path_is_no_password() -> None:
    assert parse_namespace_uri("file:///home/me@work/log").path == "/home/me@work/log"
    assert parse_namespace_uri("distributedlog://zk1/a@b").path == "/a@b"
    assert parse_metadata_service_uri("zk://zk1:2181,zk2/a@b").ledgers_root == "/a@b"


@pytest.mark.parametrize(
    "line",
    [
        f"metadataServiceUri=zk+null://admin:{SECRET}@zk1:2181/ledgers",
        f"metadataServiceUri=zk+null://admin:{SECRET}@zk1:2181,admin:{SECRET}@zk2/ledgers",
        f"zkServers=admin:{SECRET}@zk1:2181",
        f"httpServerKeyStorePassword={SECRET}\nhttpServerTlsEnable=true",
        f"zkServers=zk1\nhttpServerKeyStorePassword={SECRET}\nhttpServerPort=nonsense",
    ],
)
def test_an_error_of_a_bookie_quotes_no_secret(line: str, tmp_path: Path) -> None:
    file = tmp_path / "bk_server.conf"
    file.write_text(f"journalDirectory={tmp_path}/j\nledgerDirectories={tmp_path}/l\n{line}\n")
    with pytest.raises(BookieConfigError) as caught:
        load_config(file)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r}"
        error = cause_of(error)


def test_an_error_about_a_password_of_a_bookie_does_not_quote_it() -> None:
    key = "httpServerTrustStorePassword"
    settings = Settings("bk_server.conf", parse_properties(f"{key}={SECRET}"))
    assert str(settings.error(key, "a text")) == f"bk_server.conf, line 1: {key} = '***': expected a text"


def test_settings_for_zookeeper_quote_no_secret() -> None:
    with pytest.raises(StoreSecurityError) as caught:
        ZooKeeperSecurity(username="u", password=SECRET)
    assert SECRET not in repr(caught.value)


def options_of(command: click.Command, path: str) -> Iterator[tuple[str, click.Option]]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield path, parameter
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from options_of(child, f"{path} {name}")


def test_no_command_takes_a_secret_as_an_argument() -> None:
    """Other users of the machine read the arguments of a process. Secrets come from files."""
    taken = []
    count = 0
    for name in COMMANDS:
        command = program.get_command(click.Context(program), name)
        assert command is not None
        for path, option in options_of(command, name):
            count += 1
            long = max(option.opts, key=len)
            names_a_secret = re.search(r"passw|secret|token|key|credential", long) is not None
            if (
                names_a_secret
                and not option.is_flag
                and not (long.endswith("-file") or isinstance(option.type, click.Path))
            ):
                taken.append(f"dlog {path} {long}")
    assert set(taken) == NO_SECRET_OPTIONS
    assert count > 50
