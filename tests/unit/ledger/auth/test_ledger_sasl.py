"""The client's plug-ins: DIGEST-MD5, tokens, and plug-ins of other packages."""

# covers: ledger/auth/auth_plugins.py
# covers: ledger/auth/sasl.py
# covers: ledger/auth/token_auth.py

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ledger.auth import digest_md5
from ledger.auth.auth_plugins import client_auth
from ledger.auth.sasl import SaslAuth, SaslLogin
from ledger.auth.sasl_users import SaslUsers
from ledger.auth.tls import client_context
from ledger.auth.token_auth import TokenAuth
from ledger.transport.config import TransportConfig

PASSWORD = "correct horse"
TOKEN = "0123456789abcdef"
CHALLENGE = b'realm="bookkeeper",nonce="N",charset=utf-8,algorithm=md5-sess'


def test_a_client_answers_a_challenge_and_checks_the_proof() -> None:
    login = SaslLogin("alice", PASSWORD)
    assert login.first_token() == b""
    response = digest_md5.parse_message(login.next_token(CHALLENGE) or b"")
    exchange = digest_md5.Exchange("bookkeeper", "N", response["cnonce"])
    assert response["response"] == digest_md5.response_hash("alice", PASSWORD, exchange)
    assert response["digest-uri"] == "bookkeeper/bookkeeper"
    proof = digest_md5.response_hash("alice", PASSWORD, exchange, of_server=True)
    assert login.next_token(f"rspauth={proof}".encode()) is None
    assert PASSWORD not in repr(login)
    other = SaslLogin("alice", PASSWORD)
    assert digest_md5.parse_message(other.next_token(CHALLENGE) or b"")["cnonce"] != response["cnonce"]


@pytest.mark.parametrize("proof", [b"rspauth=" + b"0" * 32, b"rspauth=", b"", b"x", CHALLENGE])
def test_a_bookie_that_does_not_know_the_password_is_refused(proof: bytes) -> None:
    login = SaslLogin("alice", PASSWORD)
    login.next_token(CHALLENGE)
    with pytest.raises(ValueError, match=r"did not prove|does not parse"):
        login.next_token(proof)


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b'nonce="N"',
        b'algorithm=md5-sess,realm="r"',
        b'nonce="N",algorithm=md5-sess,qop="auth-conf"',
        b'nonce="N",nonce="M",algorithm=md5-sess',
        b"a" * 100_000,
    ],
)
def test_a_strange_challenge_is_refused(challenge: bytes) -> None:
    with pytest.raises(ValueError, match=r"challenge|DIGEST-MD5 message"):
        SaslLogin("alice", PASSWORD).next_token(challenge)


def test_a_login_comes_from_files_that_may_change(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(f"  {PASSWORD}\n")
    auth = SaslAuth(username="alice", password_file=password)
    assert auth() == SaslLogin("alice", PASSWORD)
    password.write_text("another\n")
    assert auth() == SaslLogin("alice", "another")
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(
        f'BookKeeper {{ M required username="bob" password="{PASSWORD}"; }}; Empty {{ M required; }};'
    )
    assert SaslAuth(jaas_file=jaas)() == SaslLogin("bob", PASSWORD)
    with pytest.raises(ValueError, match="username or password is missing"):
        SaslAuth(jaas_file=jaas, section="Empty")()
    with pytest.raises(ValueError, match="or a JAAS file"):
        SaslAuth(username="alice")
    with pytest.raises(ValueError, match="or a JAAS file"):
        SaslAuth(username="alice", password_file=password, jaas_file=jaas)


def test_a_token_needs_tls(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    auth = TokenAuth(path)
    login = auth()
    assert login.first_token() == TOKEN.encode()
    assert TOKEN not in repr(login)
    login.next_token(b"")
    with pytest.raises(ValueError, match="asks for more"):
        login.next_token(b"?")
    with pytest.raises(ValueError, match="over TLS only"):
        TransportConfig(auth=auth)
    assert TransportConfig(auth=auth, tls=client_context()).auth is auth


@pytest.mark.parametrize("token", ["", "short", "two words of a token", "\u00e9" * 20, "x" * 5000])
def test_a_weak_token_is_refused_without_quoting_it(tmp_path: Path, token: str) -> None:
    path = tmp_path / "token"
    path.write_text(token)
    with pytest.raises(ValueError, match="openssl rand") as caught:
        TokenAuth(path)()
    assert not token or token not in str(caught.value)


def test_our_plug_ins_by_name(tmp_path: Path) -> None:
    assert client_auth("token", {"tokenFile": "/t"}) == TokenAuth(Path("/t"))
    assert client_auth("sasl", {"username": "a", "passwordFile": "/p"}) == SaslAuth(
        username="a", password_file=Path("/p")
    )
    assert client_auth("sasl", {"jaasFile": "/j", "section": "S"}) == SaslAuth(
        jaas_file=Path("/j"), section="S"
    )
    with pytest.raises(ValueError, match="no setting 'password'"):
        client_auth("sasl", {"password": "p"})
    with pytest.raises(ValueError, match="needs the setting tokenFile"):
        client_auth("token", {})
    with pytest.raises(ValueError, match=r"no authentication plug-in 'kerberos'; there are .*sasl, token"):
        client_auth("kerberos", {})


def test_another_package_adds_a_plug_in_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "example_client_auth.py").write_text(
        "from ledger.auth.sasl import SaslLogin\n"
        "def open_client_auth(settings):\n"
        "    return lambda: SaslLogin('example', settings['password'])\n"
    )
    information = tmp_path / "example_client_auth-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: example-client-auth\nVersion: 1\n")
    (information / "entry_points.txt").write_text(
        "[dlog.auth.client]\nexample = example_client_auth:open_client_auth\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert client_auth("example", {"password": PASSWORD})() == SaslLogin("example", PASSWORD)
    del sys.modules["example_client_auth"]


def test_both_ends_agree(tmp_path: Path) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(f'Bookie {{ M required user_bookkeeper="{PASSWORD}" user_w="{PASSWORD}"; }};')
    users = SaslUsers(jaas)
    users.reload()
    login, exchange = SaslLogin("bookkeeper", PASSWORD), users.open()
    response = login.next_token(exchange.answer(login.first_token()).token)
    assert response is not None
    step = exchange.answer(response)
    assert step.identity is not None
    assert step.identity.name == "bookkeeper"
    assert login.next_token(step.token) is None
