"""Identities: what a certificate says, and that no value in it can forge another one."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.auth.authentication import PeerCertificate, certificate_identity, parse_certificate


def decoded(*subject: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"subject": tuple((pair,) for pair in subject), **more}


def test_a_certificate_is_parsed() -> None:
    certificate = parse_certificate(
        decoded(
            ("countryName", "CH"),
            ("organizationalUnitName", "0:a,b;1:c"),
            ("commonName", "client"),
            subjectAltName=(("DNS", "client.test"), ("IP Address", "10.0.0.1")),
        )
    )
    assert certificate == PeerCertificate(
        "CN=client,OU=0:a\\2Cb\\3B1:c,C=CH", ("0:a,b;1:c",), ("DNS:client.test", "IP Address:10.0.0.1")
    )
    assert certificate.roles == ("a", "b")
    assert certificate_identity(certificate).roles == ("a", "b")


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_certificate_is_none(nothing: dict[str, Any] | None) -> None:
    assert parse_certificate(nothing) is None


def test_a_value_cannot_look_like_another_subject() -> None:
    forged = parse_certificate(decoded(("commonName", "x,OU=0:admin")))
    real = parse_certificate(decoded(("organizationalUnitName", "0:admin"), ("commonName", "x")))
    assert forged is not None
    assert real is not None
    assert forged.subject != real.subject
    assert forged.roles == ()


def test_control_characters_do_not_reach_the_log() -> None:
    certificate = parse_certificate(decoded(("commonName", "a\r\n\x1b[31m\x85b")))
    assert certificate is not None
    assert certificate.subject.isprintable()
