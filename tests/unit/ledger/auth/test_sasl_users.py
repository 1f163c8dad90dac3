"""DIGEST-MD5 on the bookie's side, attacked: replays, guesses, malformed tokens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ledger.auth import digest_md5
from ledger.auth.authentication import AuthRefusedError
from ledger.auth.sasl import SaslLogin
from ledger.auth.sasl_users import SaslExchange, SaslUsers

PASSWORD = "correct horse battery"
NAME = "bookkeeper-1"


@pytest.fixture
def users(tmp_path: Path) -> SaslUsers:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(f'Bookie {{ M required user_{NAME}="{PASSWORD}" user_stranger="{PASSWORD}"; }};')
    made = SaslUsers(jaas)
    made.reload()
    return made


def response_to(exchange: SaslExchange, name: str = NAME, password: str = PASSWORD) -> bytes:
    token = SaslLogin(name, password).next_token(exchange.answer(b"").token)
    assert token is not None
    return token


def test_the_right_password_proves_the_user(users: SaslUsers) -> None:
    exchange = users.open()
    step = exchange.answer(response_to(exchange))
    assert step.identity is not None
    assert (step.identity.name, step.identity.mechanism) == (NAME, "sasl")
    assert step.token.startswith(b"rspauth=")


def test_a_recorded_response_is_worth_nothing_on_another_connection(users: SaslUsers) -> None:
    first = users.open()
    recorded = response_to(first)
    first.answer(recorded)
    second = users.open()
    second.answer(b"")
    with pytest.raises(AuthRefusedError, match="wrong nonce"):
        second.answer(recorded)


def test_a_response_counts_once_on_its_connection(users: SaslUsers) -> None:
    exchange = users.open()
    recorded = response_to(exchange)
    exchange.answer(recorded)
    with pytest.raises(AuthRefusedError, match="nonce of this connection was used"):
        exchange.answer(recorded)


def test_a_connection_has_one_guess(users: SaslUsers) -> None:
    exchange = users.open()
    wrong = response_to(exchange, password="guess")
    with pytest.raises(AuthRefusedError, match="unknown user or wrong password"):
        exchange.answer(wrong)
    with pytest.raises(AuthRefusedError, match="was used"):
        exchange.answer(b"")


@pytest.mark.parametrize("name", ["nobody", "", "bookkeeper-2", "x" * 1000, "a\r\n\x1b[31m"])
def test_an_unknown_user_and_a_wrong_password_look_the_same(users: SaslUsers, name: str) -> None:
    exchange = users.open()
    with pytest.raises(AuthRefusedError, match="unknown user or wrong password") as caught:
        exchange.answer(response_to(exchange, name, PASSWORD))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 150


def test_a_user_that_is_not_allowed_may_not_connect(users: SaslUsers) -> None:
    exchange = users.open()
    with pytest.raises(AuthRefusedError, match="saslJaasClientAllowedIds"):
        exchange.answer(response_to(exchange, "stranger"))
    users.allowed_ids = re.compile("stranger")
    exchange = users.open()
    assert exchange.answer(response_to(exchange, "stranger")).identity is not None
    users.allowed_ids = re.compile("stran")  # the whole name must match
    exchange = users.open()
    with pytest.raises(AuthRefusedError, match="saslJaasClientAllowedIds"):
        exchange.answer(response_to(exchange, "stranger"))


@pytest.mark.parametrize(
    ("directive", "other"),
    [
        ("realm", "realm=elsewhere"),
        ("nc", "nc=00000002"),
        ("digest-uri", 'digest-uri="bookkeeper/other"'),
        ("qop", "qop=auth-conf"),
        ("nonce", "nonce=mine"),
    ],
)
def test_every_value_of_the_response_is_checked(users: SaslUsers, directive: str, other: str) -> None:
    exchange = users.open()
    response = response_to(exchange).decode()
    changed = re.sub(rf'(^|,){directive}=("[^"]*"|[^,]*)', rf"\1{other}", response)
    assert changed != response
    with pytest.raises(AuthRefusedError, match=f"wrong {directive}"):
        exchange.answer(changed.encode())


def test_a_user_cannot_act_for_another_one(users: SaslUsers) -> None:
    exchange = users.open()
    challenge = digest_md5.parse_message(exchange.answer(b"").token)
    values = digest_md5.Exchange("bookkeeper", challenge["nonce"], "c", "stranger")
    response = digest_md5.response_hash(NAME, PASSWORD, values)
    with pytest.raises(AuthRefusedError, match="wrong authzid"):
        exchange.answer(
            f'username="{NAME}",realm="bookkeeper",nonce="{challenge["nonce"]}",nc=00000001,cnonce="c",'
            f'digest-uri="bookkeeper/bookkeeper",response={response},authzid="stranger"'.encode()
        )


def test_apaches_client_names_itself_twice(users: SaslUsers) -> None:
    exchange = users.open()
    challenge = digest_md5.parse_message(exchange.answer(b"").token)
    values = digest_md5.Exchange("bookkeeper", challenge["nonce"], "c", NAME)
    response = digest_md5.response_hash(NAME, PASSWORD, values)
    step = exchange.answer(
        f'charset=utf-8,username="{NAME}",realm="bookkeeper",nonce="{challenge["nonce"]}",nc=00000001,'
        f'cnonce="c",digest-uri="bookkeeper/bookkeeper",maxbuf=65536,response={response},qop=auth,'
        f'authzid="{NAME}"'.encode()
    )
    assert step.identity is not None


@pytest.mark.parametrize("token", [b"x", b"", b"\xff" * 50, b"a=" * 3000, b"=" * 100_000, b'a="'])
def test_a_malformed_token_is_refused(users: SaslUsers, token: bytes) -> None:
    exchange = users.open()
    exchange.answer(b"")
    with pytest.raises(AuthRefusedError):
        exchange.answer(token)
    with pytest.raises(AuthRefusedError, match="was used"):
        exchange.answer(b"")


def test_the_first_token_must_be_empty(users: SaslUsers) -> None:
    with pytest.raises(AuthRefusedError, match="empty token"):
        users.open().answer(b"username=x")


def test_nonces_do_not_repeat(users: SaslUsers) -> None:
    nonces = {digest_md5.parse_message(users.open().answer(b"").token)["nonce"] for _ in range(1000)}
    assert len(nonces) == 1000
    assert min(map(len, nonces)) >= 32


def test_no_secret_is_in_a_repr(users: SaslUsers) -> None:
    exchange = users.open()
    nonce = digest_md5.parse_message(exchange.answer(b"").token)["nonce"]
    for shown in (repr(users), repr(exchange), str(users)):
        assert PASSWORD not in shown
        assert nonce not in shown


def test_a_file_without_users_is_refused_and_the_old_users_stay(users: SaslUsers) -> None:
    users.jaas_file.write_text("Bookie { M required; };")
    with pytest.raises(ValueError, match="there is no user"):
        users.reload()
    exchange = users.open()
    assert exchange.answer(response_to(exchange)).identity is not None


def test_a_changed_password_counts_for_new_connections(users: SaslUsers) -> None:
    before = users.open()
    users.jaas_file.write_text(f'Bookie {{ M required user_{NAME}="changed"; }};')
    users.reload()
    assert before.answer(response_to(before)).identity is not None
    after = users.open()
    with pytest.raises(AuthRefusedError):
        after.answer(response_to(after))
