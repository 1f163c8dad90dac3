"""What a refused handshake means: the advice comes only where the form of a certificate is at fault."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

import pytest

from ledger.auth.tls import client_context
from ledger.runtime.tls_refusal import refusal_text
from tests.fakes.certificates import make_authority, refusal_of


def refused(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, f"certificate verify failed: {message}")
    error.verify_message = message
    return error


@pytest.mark.parametrize(
    "message",
    [
        "Missing Authority Key Identifier",
        "Missing Subject Key Identifier",
        "CA cert does not include key usage extension",
        "Basic Constraints of CA cert not marked critical",
        "Path length given without key usage keyCertSign",
    ],
)
def test_a_certificate_of_the_wrong_form_says_which_pythons_refuse_it_and_what_to_do(message: str) -> None:
    text = refusal_text(refused(message))
    assert message in text
    assert "Python 3.13 and newer" in text
    assert "docs/security.md" in text


@pytest.mark.parametrize(
    "message", ["certificate has expired", "self-signed certificate", "Hostname mismatch"]
)
def test_another_refusal_gets_no_such_advice(message: str) -> None:
    assert "3.13" not in refusal_text(refused(message))


def test_an_error_without_words_is_named() -> None:
    assert refusal_text(ConnectionResetError()) == "ConnectionResetError()"


@pytest.mark.parametrize("is_strict", [False, True])
def test_an_authority_without_key_usage_is_refused_as_this_python_does_and_with_this_advice(
    is_strict: bool, tmp_path: Path
) -> None:
    """Older versions are as strict as 3.13 if they are told so."""
    authority = make_authority(has_key_usage=False)
    context = client_context(authorities=authority.write_pem(tmp_path / "authority.pem"))
    if is_strict:
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    refusal = refusal_of(context, authority.sign("localhost"), "localhost", tmp_path / "bookie.pem")
    if not is_strict and sys.version_info < (3, 13):
        assert refusal is None
    else:
        assert refusal is not None
        assert "does not include key usage" in refusal_text(refusal)
        assert "docs/security.md" in refusal_text(refusal)
