"""Bearer tokens on the bookie's side."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bookie.auth.tokens import BearerTokens, parse_tokens
from ledger.auth.authentication import AuthRefusedError, PeerIdentity

FIRST, SECOND = "0123456789abcdef-first", "0123456789abcdef-second"


@pytest.fixture
def tokens(tmp_path: Path) -> BearerTokens:
    path = tmp_path / "tokens"
    hashed = hashlib.sha256(SECOND.encode()).hexdigest()
    path.write_text(f"# owners\n\nalice {FIRST}\nbob@example sha256:{hashed}\n")
    made = BearerTokens(path)
    made.reload()
    return made


def test_a_token_proves_its_owner(tokens: BearerTokens) -> None:
    connection = tokens.open()
    connection.on_tls(None)
    assert connection.answer(FIRST.encode()).identity == PeerIdentity("alice", "dlog-token")
    assert connection.answer(SECOND.encode()).identity == PeerIdentity("bob@example", "dlog-token")
    assert tokens.needs_tls
    assert FIRST not in repr(tokens)


@pytest.mark.parametrize(
    "token", [b"", b"x", FIRST[:-1].encode(), FIRST.encode() + b"\n", b"\xff" * 64, b"x" * 100_000]
)
def test_any_other_token_is_refused_without_quoting_it(tokens: BearerTokens, token: bytes) -> None:
    with pytest.raises(AuthRefusedError) as caught:
        tokens.open().answer(token)
    assert len(str(caught.value)) < 100
    assert FIRST[:10] not in str(caught.value)


def test_the_hash_in_the_file_is_no_token(tokens: BearerTokens) -> None:
    hashed = hashlib.sha256(SECOND.encode()).hexdigest()
    for token in (hashed, f"sha256:{hashed}"):
        with pytest.raises(AuthRefusedError):
            tokens.open().answer(token.encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no token"),
        ("alice", "line 1: expected the owner's name and a token"),
        ("alice 1 2", "line 1: expected the owner's name and a token"),
        ("al\x1bice 0123456789abcdef", "line 1: expected the owner's name and a token"),
        ("alice secret", "line 1: a token must have 16"),
        ("alice sha256:secret", "line 1: sha256: needs 64"),
        (f"alice {FIRST}\nbob {FIRST}", "line 2: two owners have the same token"),
    ],
)
def test_a_bad_file_is_refused_without_quoting_it(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="tokens") as caught:
        parse_tokens(text, "tokens")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert FIRST not in str(caught.value)


def test_a_removed_token_opens_nothing_after_a_reload(tokens: BearerTokens) -> None:
    tokens.token_file.write_text(f"alice {SECOND}\n")
    tokens.reload()
    with pytest.raises(AuthRefusedError):
        tokens.open().answer(FIRST.encode())
