"""Precedence: a file, variables, the query, keywords. The configuration that is made of them."""

# covers: dlog/settings/resolved.py

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import attrs
import pytest
import trio

import dlog
import dlog.blocking
from dlog.config import given_settings
from dlog.errors import ConfigError
from dlog.settings import Source, load_settings, namespace_uri_of
from dlog.settings.resolved import ClientSettings
from ledger.placement.config import PlacementConfig, PlacementPolicy, TableLocations

URI = "distributedlog://zk1/shop"
KEY = bytes(range(32))


def settings_of(
    tmp_path: Path, toml: str = "", query: str = "", *more: dict[str, object], **variables: str
) -> ClientSettings:
    file = tmp_path / "dlog.toml"
    file.write_text(toml)
    return load_settings(
        f"{URI}{query}", config_file=file, settings=more[0] if more else None, environment=variables
    )


def config_of(
    tmp_path: Path,
    toml: str = "",
    query: str = "",
    *,
    keyword: dlog.NamespaceConfig | None = None,
    scheme: str = "distributedlog",
    **variables: str,
) -> dlog.NamespaceConfig:
    return settings_of(tmp_path, toml, query, **variables).config(scheme, keyword)


def key_file(directory: Path, name: str = "keys") -> Path:
    file = directory / name
    file.touch(0o600)
    file.write_text(f"1 {KEY.hex()}\n")
    return file


def test_without_places_nothing_changes() -> None:
    given = dlog.NamespaceConfig(ack_quorum=3)
    assert load_settings(URI, environment={}).config("distributedlog", given) is given
    assert load_settings(URI, environment={}).config("distributedlog") == dlog.NamespaceConfig()


def test_a_later_place_is_stronger(tmp_path: Path) -> None:
    """File, environment, query, argument, keyword: each gives one more than the one before."""
    toml = "[writer]\n" + "".join(f"{name} = 1\n" for name in ("lock_timeout_s", "retry_timeout_s"))
    toml = "ensemble_size = 10\nwrite_quorum = 10\nack_quorum = 10\nsession_timeout_ms = 10\n" + toml
    found = settings_of(
        tmp_path,
        toml,
        "?ack_quorum=8&session_timeout_ms=8",
        {"session_timeout_ms": 7},
        DLOG_WRITE_QUORUM="9",
        DLOG_ACK_QUORUM="9",
        DLOG_SESSION_TIMEOUT_MS="9",
    )
    sources = [found.given[name].source for name in ("ensemble_size", "write_quorum", "ack_quorum")]
    assert sources == [Source.FILE, Source.ENVIRONMENT, Source.QUERY]
    config = found.config("distributedlog")
    assert (config.ensemble_size, config.write_quorum, config.ack_quorum) == (10, 9, 8)
    assert config.session_timeout_ms == 7
    keyword = dlog.NamespaceConfig(
        session_timeout_ms=6, writer=dlog.WriterConfig(retry_timeout_s=60.0)
    )  # 60 is the default, and yet it is given
    config = found.config("distributedlog", keyword)
    assert config.session_timeout_ms == 6
    assert (config.writer.lock_timeout_s, config.writer.retry_timeout_s) == (1, 60)
    assert config.ensemble_size == 10


def test_a_configuration_knows_which_settings_its_caller_named() -> None:
    config = dlog.NamespaceConfig(ack_quorum=2, create=True)
    assert given_settings(config) == {"ack_quorum", "create"}
    assert given_settings(pickle.loads(pickle.dumps(config))) == {"ack_quorum", "create"}
    assert given_settings(copy.copy(config)) == {"ack_quorum", "create"}
    assert "writer" in given_settings(attrs.evolve(config, create=False))
    assert config == dlog.NamespaceConfig(create=True)


def test_every_section_reaches_its_part(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        'compression = "lz4"\n[reader]\ncheck_positions = false\n[placement]\npolicy = "rack-aware"\n'
        'locations = "table:racks"\n[bookies]\ntls = true\n[zookeeper]\nscheme = "digest"\nusername = "u"\n'
        'password_file = "p"\n',
    )
    assert config.compression is dlog.Compression.LZ4
    assert not config.reader.check_positions
    assert config.placement == PlacementConfig(
        policy=PlacementPolicy.RACK_AWARE, locations=TableLocations(path=tmp_path / "racks")
    )
    assert config.bookie_security is not None
    assert config.bookie_security.tls
    assert config.zookeeper_security is not None
    assert config.zookeeper_security.password_file == tmp_path / "p"


def test_keys_and_the_password_come_from_files(tmp_path: Path) -> None:
    key_file(tmp_path)
    (tmp_path / "password").write_text("open-sesame\n")
    config = config_of(tmp_path, 'key_file = "keys"\npassword_file = "password"\n')
    assert config.password == b"open-sesame"
    for keys in (config.writer.encryption, config.reader.encryption):
        assert keys is not None
        assert keys.current() == ("1", KEY)
    assert "open-sesame" not in repr(config)
    assert KEY.hex() not in repr(config)


@pytest.mark.parametrize("name", ["key_file", "password_file", "bookie_security", "zk_security"])
def test_a_file_that_cannot_be_used_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"dlog.toml, line 1: {name}: .*missing"):
        config_of(tmp_path, f'{name} = "missing"')


def test_an_empty_file_is_no_password(tmp_path: Path) -> None:
    """An empty password is public."""
    (tmp_path / "password").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        config_of(tmp_path, 'password_file = "password"')


def test_a_keyword_replaces_what_it_holds(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        'password_file = "missing"\n[placement]\npolicy = "rack-aware"\n[bookies]\ntls = true\n',
        keyword=dlog.NamespaceConfig(password=b"p", placement=PlacementConfig(), auth=lambda: None),  # type: ignore[arg-type,return-value]
    )
    assert config.password == b"p"
    assert config.placement == PlacementConfig()
    assert config.bookie_security is None


def test_settings_that_contradict_each_other_are_named_with_their_places(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, "write_quorum = 2\n", DLOG_ACK_QUORUM="3")
    assert "each may be at most as large as the one before" in str(caught.value)
    assert f"write_quorum from {tmp_path / 'dlog.toml'}, line 1" in str(caught.value)
    assert "ack_quorum from the variable DLOG_ACK_QUORUM" in str(caught.value)


def test_a_security_file_beside_its_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"DLOG_BOOKIE_SECURITY gives .*line 2 gives bookies\.tls"):
        config_of(tmp_path, "[bookies]\ntls = true\n", DLOG_BOOKIE_SECURITY="/b.toml")


def test_settings_of_a_cluster_in_a_file_or_variable_do_not_count_for_a_directory(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        '[bookies]\ntls = true\n[placement]\npolicy = "rack-aware"\n',
        scheme="file",
        DLOG_ACK_QUORUM="1",
    )
    assert config == dlog.NamespaceConfig()
    assert config.for_scheme("file").ack_quorum == 1


def test_settings_of_a_program_may_be_for_the_cluster_that_logs_were_promoted_to(tmp_path: Path) -> None:
    found = settings_of(tmp_path, "", "", {"ack_quorum": 1})
    assert found.config("file") == dlog.NamespaceConfig()
    assert found.config("distributedlog").ack_quorum == 1


def test_a_setting_of_a_cluster_in_the_query_of_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ack_quorum has no effect on a file: namespace"):
        config_of(tmp_path, query="?ack_quorum=1", scheme="file")


def test_the_file_is_the_one_of_the_argument_else_of_the_variable(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("ack_quorum = 1")
    two.write_text("ack_quorum = 2")
    environment = {"DLOG_CONFIG": str(one)}
    assert load_settings(URI, environment=environment).value("ack_quorum") == 1
    assert load_settings(URI, config_file=two, environment=environment).value("ack_quorum") == 2


def test_no_file_is_read_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the working directory nor in the user's own."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for place in ("dlog.toml", ".dlog.toml", "config.toml", "dlog/config.toml", ".config/dlog/config.toml"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("nonsense = 1")
    assert load_settings(URI).given == {}


def test_the_namespace_of_commands_is_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "dlog.toml"
    file.write_text(f'uri = "{URI}"')
    assert namespace_uri_of(file) == URI
    assert (
        load_settings(URI, config_file=file, environment={}).config("distributedlog")
        == dlog.NamespaceConfig()
    )


@pytest.mark.slow
async def test_a_namespace_takes_its_settings_from_every_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dlog.toml"
    file.write_text("[writer]\nretry_pause_s = 0.5\nclose_timeout_s = 9\npurge = false\n")
    monkeypatch.setenv("DLOG_WRITER_CLOSE_TIMEOUT_S", "8")
    uri = (tmp_path / "log").as_uri() + "?digest_type=MAC"
    async with dlog.open_namespace(
        uri,
        config=dlog.NamespaceConfig(writer=dlog.WriterConfig(hash_chain=True)),
        config_file=file,
        settings={"reader.read_bytes_max": "1M"},
    ) as namespace:
        config = namespace.config
        async with namespace.open_writer("log", create=True, config=dlog.WriterConfig(purge=True)) as writer:
            await writer.append(b"one")
        assert (await namespace.repair.verify("log")).chained_records == 1
    assert config.digest_type is dlog.DigestType.MAC
    assert (config.writer.retry_pause_s, config.writer.close_timeout_s) == (0.5, 8)
    assert config.reader.read_bytes_max == 1 << 20


@pytest.mark.slow
async def test_the_settings_of_one_writer_keep_those_that_it_does_not_name(tmp_path: Path) -> None:
    """Keys of the namespace must not be lost with a writer that names another setting."""
    keys = key_file(tmp_path)
    async with dlog.open_namespace(
        (tmp_path / "log").as_uri(), settings={"key_file": str(keys)}
    ) as namespace:
        config = dlog.WriterConfig(hash_chain=True)
        async with namespace.open_writer("log", create=True, config=config) as writer:
            await writer.append(b"open-sesame")
    async with (
        dlog.open_namespace((tmp_path / "log").as_uri()) as namespace,
        namespace.open_reader("log", follow=False) as reader,
    ):
        assert b"open-sesame" not in [record.payload async for record in reader]


def test_the_blocking_api_takes_the_same_places(tmp_path: Path) -> None:
    file = tmp_path / "dlog.toml"
    file.write_text('compression = "lz4"\n')
    with dlog.blocking.open_namespace(
        (tmp_path / "log").as_uri(), config_file=file, settings={"reader.read_bytes_max": "1M"}
    ) as namespace:
        assert namespace._inner.config.compression is dlog.Compression.LZ4


@pytest.mark.parametrize("uri", ["?writer.purge=maybe", "?writer.prge=no"])
def test_nothing_is_opened_with_a_wrong_setting(tmp_path: Path, uri: str) -> None:
    async def opened() -> None:
        async with dlog.open_namespace((tmp_path / "log").as_uri() + uri):
            raise AssertionError("opened")

    with pytest.raises(dlog.InvalidUriError):
        trio.run(opened)
    assert not (tmp_path / "log").exists()
