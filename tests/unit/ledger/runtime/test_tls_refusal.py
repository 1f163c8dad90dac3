"""What a refused handshake means: the advice comes only where the form of a certificate is at fault."""

from __future__ import annotations

import ssl

import pytest

from ledger.runtime.tls_refusal import refusal_text


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
