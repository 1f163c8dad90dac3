"""How strictly contexts verify: as Python's own contexts do, whatever form the authorities have."""

# covers: ledger/auth/tls.py

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie.auth.tls import TlsConfig, server_context
from bookie.config.admin_config import AdminTls
from bookie.http.secrets import admin_context
from ledger.auth.tls import client_context
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from tests.fakes.certificates import make_authority
from tests.places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "tls"
PASSWORD = (GOLDEN / "store-password").read_text().strip()
OWN = {"PEM": "authority.pem", "JKS": "trusted.jks", "PKCS12": "trusted.p12"}


def of_a_client(key: Path, authorities: Path, kind: str) -> ssl.SSLContext:
    return client_context(authorities=authorities, authorities_type=kind, authorities_password=PASSWORD)


def of_a_bookie(key: Path, authorities: Path, kind: str) -> ssl.SSLContext:
    config = TlsConfig(
        key=key,
        certificate=key,
        authorities=authorities,
        authorities_type=kind,
        authorities_password=GOLDEN / "store-password",
        demand_client_certificate=True,
    )
    return server_context(config)


def of_the_http_server(key: Path, authorities: Path, kind: str) -> ssl.SSLContext:
    return admin_context(AdminTls(key_store=key, trust_store=authorities, trust_store_password=PASSWORD))


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("make", [of_a_client, of_a_bookie, of_the_http_server])
@pytest.mark.parametrize("version", [(3, 12), (3, 13)])
def test_each_context_is_as_strict_as_those_of_python_whatever_the_authorities_are_in(
    make: Callable[[Path, Path, str], ssl.SSLContext],
    kind: str,
    version: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = make_authority().sign("bookie.test").write_pem(tmp_path / "key.pem")
    key.chmod(0o600)
    is_pythons_own = kind == "PEM" and make is of_a_client  # made by ``ssl.create_default_context``
    if not is_pythons_own:
        monkeypatch.setattr("ledger.auth.tls.sys", SimpleNamespace(version_info=version))
    context = make(key, GOLDEN / OWN[kind], kind)
    wanted = version >= (3, 13)
    if is_pythons_own:
        wanted = bool(ssl.create_default_context().verify_flags & ssl.VERIFY_X509_STRICT)
    assert bool(context.verify_flags & ssl.VERIFY_X509_STRICT) is wanted
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_context_for_zookeeper_is_as_strict(tmp_path: Path) -> None:
    authority = make_authority().write_pem(tmp_path / "authority.pem")
    context = ZooKeeperSecurity(tls=True, tls_authorities=authority).tls_context()
    own = ssl.create_default_context().verify_flags
    assert context.verify_flags & ssl.VERIFY_X509_STRICT == own & ssl.VERIFY_X509_STRICT
