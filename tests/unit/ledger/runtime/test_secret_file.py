"""One rule for all files with secrets, and each reader of one obeys it."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from bookie.auth.reloading import Secrets
from bookie.auth.tls import TlsConfig, peer_context, server_context
from bookie.auth.tokens import BearerTokens
from bookie.config.admin_config import AdminTls
from bookie.config.bookie_config import load_config
from bookie.http.secrets import admin_context, read_tokens
from dlog.encryption import KeyFile
from dlog.settings.resolved import load_settings
from ledger.auth.sasl import SaslAuth
from ledger.auth.sasl_users import SaslUsers
from ledger.auth.tls import client_context
from ledger.auth.token_auth import TokenAuth
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from ledger.runtime.secret_file import (
    SecretFileError,
    SecretOf,
    check_secret,
    create_secret,
    load_secret,
    read_secret,
)
from ledger.transport.bookie_security import BookieSecurity
from tests.fakes.certificates import make_authority

TOKEN = "0123456789abcdef0123456789abcdef"
PASSWORD = "of the key"
BOTH = list(SecretOf)


def written(path: Path, mode: int, text: str = "secret\n") -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("of", BOTH)
@pytest.mark.parametrize("mode", [0o602, 0o620, 0o622, 0o666, 0o646])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int, of: SecretOf) -> None:
    path = written(tmp_path / "secret", mode)
    for read in (read_secret, load_secret, check_secret):
        with pytest.raises(
            SecretFileError, match=f"others? .*may change it.*mode {mode:o}.*chmod 600|users may"
        ):
            read(path, of)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o601, 0o610])
def test_a_file_of_ours_that_others_may_read_is_refused_and_one_of_apache_is_a_warning_once(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "secret", mode)
    with pytest.raises(SecretFileError, match=f"other users may read it \\(mode {mode:o}\\); run `chmod 600"):
        read_secret(path, SecretOf.OURS)
    for _ in range(3):
        assert read_secret(path, SecretOf.APACHE) == "secret"
    assert caplog.text.count("other users may read this file") == 1
    path.chmod(0o600)
    read_secret(path, SecretOf.APACHE)
    path.chmod(mode)
    read_secret(path, SecretOf.APACHE)  # it was closed meanwhile: news
    assert caplog.text.count("other users may read this file") == 2
    assert "secret\n" not in [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("of", BOTH)
def test_a_file_that_others_may_replace_in_its_directory_is_refused(tmp_path: Path, of: SecretOf) -> None:
    directory, elsewhere = tmp_path / "open", tmp_path / "closed"
    for each in (directory, elsewhere):
        each.mkdir()
    path = written(directory / "secret", 0o600)
    link = elsewhere / "link"
    link.symlink_to(path)
    directory.chmod(0o777)
    for name in (path, link):  # also behind a link
        with pytest.raises(SecretFileError, match=f"may replace it.*{directory}.*chmod o-w"):
            read_secret(name, of)
    directory.chmod(0o1777)  # sticky, as /tmp
    assert read_secret(path, of) == read_secret(link, of) == "secret"
    directory.chmod(0o700)
    elsewhere.chmod(0o777)  # the link itself could be replaced
    assert read_secret(path, of) == "secret"
    with pytest.raises(SecretFileError, match="may replace it"):
        read_secret(link, of)


def test_a_link_counts_as_the_file_behind_it(tmp_path: Path) -> None:
    path = written(tmp_path / "..data", 0o644)
    link = tmp_path / "token"
    link.symlink_to(path)
    with pytest.raises(SecretFileError, match="may read it"):
        read_secret(link, SecretOf.OURS)
    path.chmod(0o400)
    assert read_secret(link, SecretOf.OURS) == "secret"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(SecretFileError, match="no regular file"):
        read_secret(tmp_path / "pipe", SecretOf.OURS)
    with pytest.raises(IsADirectoryError):
        read_secret(tmp_path, SecretOf.OURS)
    long = written(tmp_path / "long", 0o600, "x" * 100)
    with pytest.raises(SecretFileError, match="more than 99 bytes"):
        load_secret(long, SecretOf.OURS, bytes_max=99)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "secret", 0o600)
    own = path.stat()
    monkeypatch.setattr("ledger.runtime.secret_file.os.geteuid", lambda: 4711)
    monkeypatch.setattr("ledger.runtime.secret_file.os.fstat", lambda fd: Owned(own.st_mode, 4712))
    with pytest.raises(SecretFileError, match="belongs to user 4712"):
        check_secret(path, SecretOf.APACHE)
    monkeypatch.setattr("ledger.runtime.secret_file.os.fstat", lambda fd: Owned(own.st_mode, 0))
    check_secret(path, SecretOf.OURS)


@attrs.frozen
class Owned:
    st_mode: int
    st_uid: int
    st_size: int = 0


def test_a_created_secret_is_for_its_owner_only_and_replaces_nothing(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_secret(tmp_path / "secret", "mine\n")
    finally:
        os.umask(before)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        create_secret(tmp_path / "secret", "other")
    assert read_secret(tmp_path / "secret", SecretOf.OURS) == "mine"


# --- each reader of a secret


def pem(path: Path) -> Path:
    return make_authority().sign("localhost").write_pem(path)


def configuration(path: Path) -> Path:
    path.write_text(
        "zkServers=127.0.0.1:2181\nhttpServerKeyStorePassword=changeit\n"
        f"journalDirectories={path}-j\nledgerDirectories={path}-l\n"
    )
    return path


def text(content: str) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_text(content)
        return path

    return write


JAAS = 'Bookie { M required user_a="b"; }; BookKeeper { M required username="a" password="b"; };'
Reader = tuple[SecretOf, Callable[[Path], Path], Callable[[Path, Path], object]]
# The second file is a key and its certificate, for what needs both a key and a password.
READERS: dict[str, Reader] = {
    "users of the bookie": (SecretOf.APACHE, text(JAAS), lambda path, _: SaslUsers(path).reload()),
    "tokens of the bookie": (
        SecretOf.OURS,
        text(f"alice {TOKEN}\n"),
        lambda path, _: BearerTokens(path).reload(),
    ),
    "key of the bookie": (
        SecretOf.APACHE,
        pem,
        lambda path, _: server_context(TlsConfig(key=path, certificate=path)),
    ),
    "key of the bookie as a client": (
        SecretOf.APACHE,
        pem,
        lambda path, _: peer_context(TlsConfig(key=path, certificate=path)),
    ),
    "password of the bookie's key": (
        SecretOf.APACHE,
        text(PASSWORD),
        lambda path, key: server_context(TlsConfig(key=key, certificate=key, key_password=path)),
    ),
    "key of the HTTP port": (SecretOf.APACHE, pem, lambda path, _: admin_context(AdminTls(key_store=path))),
    "token of the HTTP port": (SecretOf.OURS, text(TOKEN), lambda path, _: read_tokens(path)),
    "passwords in bk_server.conf": (SecretOf.APACHE, configuration, lambda path, _: load_config(path)),
    "JAAS file of a client": (SecretOf.APACHE, text(JAAS), lambda path, _: SaslAuth(jaas_file=path)()),
    "password of a client": (
        SecretOf.OURS,
        text(PASSWORD),
        lambda path, _: SaslAuth(username="a", password_file=path)(),
    ),
    "token of a client": (SecretOf.OURS, text(TOKEN), lambda path, _: TokenAuth(path)()),
    "key of a client": (SecretOf.OURS, pem, lambda path, _: client_context(certificate=path)),
    "password of a client's key": (
        SecretOf.OURS,
        text(PASSWORD),
        lambda path, key: BookieSecurity(
            tls=True, tls_certificate=key, tls_key=key, tls_key_password_file=path
        ).open(),
    ),
    "password for ZooKeeper": (
        SecretOf.OURS,
        text(PASSWORD),
        lambda path, _: ZooKeeperSecurity(scheme="digest", username="a", password_file=path).check_usable(),
    ),
    "key for ZooKeeper": (
        SecretOf.OURS,
        pem,
        lambda path, _: ZooKeeperSecurity(
            tls=True, tls_authorities=path, tls_certificate=path, tls_key=path
        ).check_usable(),
    ),
    "password of ledgers": (
        SecretOf.OURS,
        text(PASSWORD),
        lambda path, _: load_settings(
            "distributedlog://127.0.0.1:1/a", settings={"password_file": str(path)}, environment={}
        ).config("distributedlog"),
    ),
    "keys of payloads": (
        SecretOf.OURS,
        text(f"k {secrets.token_hex(32)}\n"),
        lambda path, _: KeyFile(path),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_each_reader_of_a_secret_obeys_the_rule(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of, write, read = READERS[name]
    key = pem(tmp_path / "other.pem")
    path = write(tmp_path / "secret")
    path.chmod(0o600)
    read(path, key)
    path.chmod(0o606)
    with pytest.raises(Exception, match="other users may change it") as caught:
        read(path, key)
    assert str(path) in str(caught.value)
    path.chmod(0o644)
    assert "other users may read" not in caplog.text
    if of is SecretOf.OURS:
        with pytest.raises(Exception, match="other users may read it"):
            read(path, key)
    else:
        read(path, key)
        assert "other users may read this file" in caplog.text


async def test_a_rotation_to_a_file_that_others_may_write_keeps_the_old_secret_and_logs_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = written(tmp_path / "tokens", 0o600, f"alice {TOKEN}\n")
    provider = BearerTokens(tokens)
    loaded = Secrets(None, provider)
    await loaded.load()
    tokens.write_text(f"mallory {TOKEN[::-1]}\n")
    tokens.chmod(0o666)
    for _ in range(3):
        await loaded.reload()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "other users may change it" in caplog.text
    identity = provider.answer(TOKEN.encode()).identity
    assert identity is not None
    assert identity.name == "alice"
