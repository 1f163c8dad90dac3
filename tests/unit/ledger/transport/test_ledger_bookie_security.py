"""The file with the settings of TLS and authentication for bookies."""

# covers: ledger/runtime/settings_file.py
# covers: ledger/transport/bookie_security.py

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trio

import dlog
import ledger
from dlog.errors import ConfigError
from ledger.auth.sasl import SaslAuth
from ledger.auth.token_auth import TokenAuth
from ledger.causes import cause_of
from ledger.deploy.deployment import open_client
from ledger.errors import SecuritySettingsError
from ledger.transport.bookie_security import (
    ENVIRONMENT_VARIABLE,
    NO_SECURITY,
    BookieSecurity,
    load_bookie_security,
    security_of_environment,
)
from tests.fakes.certificates import is_trusted, make_authority, private_copy
from tests.places import GOLDEN_FILES

STORES = GOLDEN_FILES / "tls"
SECRET = "open-sesame-open-sesame"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    authority = make_authority()
    authority.write_pem(tmp_path / "ca.pem")
    authority.sign("client.test").write_pem(tmp_path / "client.pem")
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "store-password").write_text("of the stores\n")
    for name in ("bookie.jks", "bookie.p12"):
        private_copy(STORES / name, tmp_path)
    return tmp_path


def loaded(home: Path, text: str) -> BookieSecurity:
    file = home / "bookies.toml"
    file.write_text(text)
    return load_bookie_security(file)


def test_files_are_relative_to_the_settings_and_no_secret_is_shown(home: Path) -> None:
    security = loaded(home, "tls = true\ntls_authorities = 'ca.pem'\nauth = 'token'\ntoken_file = 'secret'")
    context, auth = security.open()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    assert auth == TokenAuth(home / "secret")
    assert auth().first_token() == SECRET.encode()
    assert SECRET not in f"{security!r} {auth!r} {auth()!r}"


@pytest.mark.parametrize("kind", ["PEM", "JKS"])
def test_given_authorities_replace_those_of_the_system(
    home: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_system, own = make_authority("system.test"), make_authority("own.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(of_system.write_pem(home / "system.pem")))
    own.write_pem(home / "own.pem")
    given = {"PEM": BookieSecurity(tls=True, tls_authorities=home / "own.pem")}.get(kind) or BookieSecurity(
        tls=True,
        tls_authorities=STORES / "trusted.jks",
        tls_authorities_type="JKS",
        tls_authorities_password_file=home / "store-password",
    )
    signed = of_system.sign("bookie.test")
    default, _ = BookieSecurity(tls=True).open()
    context, _ = given.open()
    assert default is not None
    assert context is not None
    assert is_trusted(default, signed, "bookie.test", home / "server.pem")
    assert not is_trusted(context, signed, "bookie.test", home / "server.pem")
    if kind == "PEM":
        assert is_trusted(context, own.sign("bookie.test"), "bookie.test", home / "server.pem")
        assert not is_trusted(context, own.sign("other.test"), "bookie.test", home / "server.pem")


def test_client_certificate_without_the_check_of_host_names(home: Path) -> None:
    security = loaded(
        home,
        "tls = true\ntls_authorities = 'ca.pem'\ntls_certificate = 'client.pem'\ntls_check_hostname = false",
    )
    context, auth = security.open()
    assert context is not None
    assert auth is None
    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_stores_of_java(home: Path, kind: str) -> None:
    ending = {"JKS": "jks", "PKCS12": "p12"}[kind]
    context, _ = loaded(
        home,
        f"tls = true\ntls_authorities = '{STORES}/trusted.{ending}'\ntls_authorities_type = '{kind}'\n"
        f"tls_authorities_password_file = 'store-password'\ntls_key = 'bookie.{ending}'\n"
        f"tls_key_type = '{kind}'\ntls_key_password_file = 'store-password'",
    ).open()
    assert context is not None
    assert len(context.get_ca_certs()) == 1


def test_sasl_by_password_or_by_jaas_file(home: Path) -> None:
    (home / "jaas").write_text(f'Shop {{ a.Module required username="bob" password="{SECRET}"; }};')
    _, auth = loaded(home, "auth = 'sasl'\nusername = 'bob'\npassword_file = 'secret'").open()
    assert isinstance(auth, SaslAuth)
    assert auth().username == "bob"
    _, auth = loaded(home, "auth = 'sasl'\njaas_file = 'jaas'\njaas_section = 'Shop'").open()
    assert isinstance(auth, SaslAuth)
    assert auth().username == "bob"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tls_authority = 'ca.pem'", "unknown key 'tls_authority'; there are auth, auth_settings"),
        ("tls = 'yes'", "the value of tls must be a bool"),
        ("tls = true\ntls_key = 7", "the value of tls_key must be the name of a file"),
        ("auth = true", "the value of auth must be a text"),
        ("tls", "not TOML"),
        (f"password = '{SECRET}'", "put the password into a file of its own and name it in password_file"),
        (f"token = '{SECRET}'", "put the token into a file of its own and name it in token_file"),
        (f"tls_key_password = '{SECRET}'", "name it in tls_key_password_file"),
        ("tls_authorities = 'ca.pem'", "tls_authorities is set, but TLS is off"),
        ("tls_check_hostname = false", "tls_check_hostname is set, but TLS is off"),
        ("tls = true\ntls_key_type = 'DER'", "tls_key_type 'DER': there are PEM, PKCS12, JKS"),
        ("tls = true\ntls_key = 'client.pem'", "tls_key is set without tls_certificate"),
        ("tls = true\ntls_key_type = 'JKS'", "needs tls_key, a store"),
        ("tls = true\ntls_key_password_file = 'secret'", "set without tls_key"),
        ("username = 'bob'", "username is set without auth"),
        ("auth = 'token'\ntoken_file = 'secret'", "over TLS only: set tls to true"),
        ("tls = true\nauth = 'token'", "needs token_file"),
        ("auth = 'sasl'", "needs either username and password_file"),
        ("auth = 'sasl'\nusername = 'bob'", "needs either username and password_file"),
        (
            "auth = 'sasl'\nusername = 'a'\npassword_file = 'secret'\njaas_section = 'b'",
            "jaas_section with it",
        ),
        ("auth = 'sasl'\ntoken_file = 'secret'", "token_file is no setting of auth 'sasl'"),
        ("auth = 'other'\nusername = 'bob'", "username is no setting of auth 'other'"),
        ("auth = 'other'\nauth_settings = { port = 7 }", "values of auth_settings must be texts"),
    ],
)
def test_settings_that_are_not_understood_are_refused(text: str, reason: str, home: Path) -> None:
    with pytest.raises(SecuritySettingsError, match=reason) as caught:
        loaded(home, text)
    assert str(caught.value).startswith(f"{home}/bookies.toml: ")
    assert SECRET not in f"{caught.value} {cause_of(caught.value)!r}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "tls = true\ntls_authorities = 'missing'",
            "tls_authorities: .*missing cannot be read: No such file",
        ),
        ("tls = true\ntls_authorities = '.'", "tls_authorities: .* cannot be read: Is a directory"),
        ("tls = true\ntls_authorities = 'secret'", "must be of tls_authorities_type"),
        ("tls = true\ntls_certificate = 'ca.pem'", "key and certificate must belong together"),
        (
            "tls = true\ntls_key = 'bookie.jks'\ntls_key_type = 'JKS'\ntls_key_password_file = 'secret'",
            "the password is wrong",
        ),
        (
            "auth = 'sasl'\nusername = 'bob'\npassword_file = 'missing'",
            "password_file: .*missing cannot be read",
        ),
        ("auth = 'sasl'\njaas_file = 'secret'", "secret, line 1: the file ends"),
        ("tls = true\nauth = 'token'\ntoken_file = 'short'", "16 to 4096 ASCII characters"),
        ("auth = 'other'", "there is no authentication plug-in 'other'; there are sasl, token"),
    ],
)
def test_files_that_cannot_be_used_are_named(text: str, reason: str, home: Path) -> None:
    (home / "short").write_text("sesame\n")
    with pytest.raises(SecuritySettingsError, match=reason) as caught:
        loaded(home, text).open()
    assert SECRET not in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_settings_file_that_cannot_be_read_is_named(home: Path) -> None:
    with pytest.raises(
        SecuritySettingsError, match=r"missing: the settings for bookies cannot be read: No such"
    ):
        load_bookie_security(home / "missing")
    (home / "bytes").write_bytes(b"token = '\xff\xfe'")
    with pytest.raises(SecuritySettingsError, match="are not UTF-8"):
        load_bookie_security(home / "bytes")


def test_the_environment_counts_for_clients_without_settings(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    assert security_of_environment() == NO_SECURITY
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(home / "missing"))

    async def open_ledgers() -> None:
        async with open_client("zk://127.0.0.1:1/ledgers", connect_timeout_s=0.1):
            raise AssertionError("opened")

    with pytest.raises(SecuritySettingsError, match="missing: the settings for bookies"):
        trio.run(open_ledgers)


@pytest.mark.parametrize("other", ["tls", "auth"])
def test_settings_are_given_once(home: Path, other: str) -> None:
    values = {"tls": ssl.create_default_context(), "auth": SaslAuth("a", home / "secret")}
    given = {other: values[other]}
    with pytest.raises(ConfigError, match="leave out tls and auth"):
        dlog.NamespaceConfig(bookie_security=NO_SECURITY, **given)  # type: ignore[arg-type]
    config = ledger.ClientConfig(transport=ledger.TransportConfig(**given))  # type: ignore[arg-type]

    async def open_ledgers() -> None:
        async with open_client("zk://127.0.0.1:1/ledgers", config=config, bookie_security=NO_SECURITY):
            raise AssertionError("opened")

    with pytest.raises(SecuritySettingsError, match="leave out tls and auth"):
        trio.run(open_ledgers)


def test_a_directory_has_no_bookies_to_secure(tmp_path: Path) -> None:
    async def open_log() -> None:
        config = dlog.NamespaceConfig(bookie_security=NO_SECURITY)
        async with dlog.open_namespace(tmp_path.as_uri(), config=config):
            raise AssertionError("opened")

    with pytest.raises(ConfigError, match="bookie_security: a directory"):
        trio.run(open_log)
