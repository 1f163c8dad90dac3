"""A bookie's TLS context: what is loaded, what is refused."""

from __future__ import annotations

import ssl

import attrs
import pytest

from bookie.auth.tls import TlsConfig, peer_context, server_context
from bookie.errors import BookieConfigError
from tests.places import GOLDEN_FILES

TLS = GOLDEN_FILES / "tls"
CONFIG = TlsConfig(key=TLS / "bookie.pem", certificate=TLS / "bookie.pem")


def test_old_protocols_are_not_spoken() -> None:
    assert server_context(CONFIG).minimum_version is ssl.TLSVersion.TLSv1_2
    only = server_context(attrs.evolve(CONFIG, protocols=("TLSv1.2", "TLSv1")))
    assert (only.minimum_version, only.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)


def test_the_names_of_other_bookies_are_verified_if_asked_for() -> None:
    assert peer_context(CONFIG).check_hostname is False
    assert peer_context(attrs.evolve(CONFIG, verify_host_names=True)).check_hostname is True


def test_javas_cipher_names_are_understood() -> None:
    names = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256", "ECDHE-RSA-AES256-GCM-SHA384")
    context = server_context(attrs.evolve(CONFIG, ciphers=names))
    old = {cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"}
    assert old == {"ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": TLS / "absent.pem"}, "tlsKeyStore"),
        ({"certificate": TLS / "client.pem"}, "belong together"),
        ({"authorities": TLS / "README.md"}, "tlsTrustStore"),
        ({"demand_client_certificate": True}, "tlsTrustStore is missing"),
        ({"protocols": ("TLSv1",)}, "TLSv1.2 and TLSv1.3"),
        ({"protocols": ("TLSv9",)}, "TLSv1.2 and TLSv1.3"),
        ({"ciphers": ("NONSENSE",)}, "tlsEnabledCipherSuites"),
        ({"key_password": TLS / "absent"}, "tlsKeyStore"),
    ],
)
def test_what_cannot_be_used_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(BookieConfigError, match=words):
        server_context(attrs.evolve(CONFIG, **change))  # type: ignore[arg-type]
