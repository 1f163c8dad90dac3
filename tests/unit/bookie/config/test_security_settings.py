"""The keys for TLS, authentication and ZooKeeper's security."""

# covers: bookie/auth/plugins.py

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bookie.auth.certificate_roles import CertificateRoles
from bookie.auth.tokens import BearerTokens
from bookie.errors import BookieConfigError
from bookie.requests.permissions import PermissionsConfig
from ledger.auth.sasl import SaslAuth
from ledger.auth.sasl_users import SaslUsers
from tests.unit.bookie.config.test_config import parse


def test_tls_from_pem_files() -> None:
    config = parse(
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PEM\n"
        "tlsKeyStore=/k\ntlsCertificatePath=/c\ntlsTrustStoreType=PEM\ntlsTrustStore=/t\n"
        "tlsClientAuthentication=true\ntlsEnabledProtocols=TLSv1.2,TLSv1.3\n"
    ).tls
    assert config is not None
    assert (config.key, config.certificate, config.authorities) == (Path("/k"), Path("/c"), Path("/t"))
    assert config.demand_client_certificate
    assert config.protocols == ("TLSv1.2", "TLSv1.3")


TLS_KEYS = (
    "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PEM\n"
    "tlsKeyStore=/k\ntlsCertificatePath=/c\n"
)
ROLES = "bookieAuthProviderFactoryClass=org.apache.bookkeeper.tls.BookieAuthZFactory\n"


def test_clear_text_is_refused_where_a_certificate_is_demanded() -> None:
    assert parse().server.tls_required is False
    assert parse(TLS_KEYS).server.tls_required is False  # as with Apache's bookie
    assert parse(f"{TLS_KEYS}tlsRequired=true\n").server.tls_required
    assert parse(f"{TLS_KEYS}tlsClientAuthentication=true\n").server.tls_required


def test_the_names_of_other_bookies_are_verified_only_if_asked_for() -> None:
    for more, is_verified in (("", False), ("tlsHostnameVerificationEnabled=true\n", True)):
        tls = parse(TLS_KEYS + more).tls
        assert tls is not None
        assert tls.verify_host_names is is_verified


def test_roles_need_their_list_and_client_certificates() -> None:
    text = f"{TLS_KEYS}{ROLES}tlsClientAuthentication=true\nauthorizedRoles=writer,auditor\n"
    assert parse(text).server.auth == CertificateRoles(frozenset({"writer", "auditor"}))
    with pytest.raises(BookieConfigError, match="authorizedRoles is missing"):
        parse(f"{TLS_KEYS}{ROLES}tlsClientAuthentication=true\n")
    with pytest.raises(BookieConfigError, match="tlsClientAuthentication=true beside it"):
        parse(f"{TLS_KEYS}{ROLES}authorizedRoles=writer\n")
    with pytest.raises(BookieConfigError, match=r"authorizedRoles.*BookieAuthZFactory beside it"):
        parse(f"{TLS_KEYS}tlsClientAuthentication=true\nauthorizedRoles=writer\n")


def test_the_keys_of_sasl_are_those_of_apache() -> None:
    text = (
        "bookieAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory\n"
        "clientAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLClientProviderFactory\n"
        "java.security.auth.login.config=/jaas.conf\n"
    )
    users = parse(text).server.auth
    assert isinstance(users, SaslUsers)
    assert (users.jaas_file, users.section, users.allowed_ids.pattern) == (
        Path("/jaas.conf"),
        "Bookie",
        ".*bookkeeper.*",
    )
    assert parse(text).client_auth == SaslAuth(jaas_file=Path("/jaas.conf"), section="Auditor")
    more = "saslJaasBookieSectionName=B\nsaslJaasClientAllowedIds=[a-c]\nsaslJaasAuditorSectionName=A\n"
    users = parse(text + more).server.auth
    assert isinstance(users, SaslUsers)
    assert (users.section, users.allowed_ids.pattern) == ("B", "[a-c]")
    assert parse(text + more).client_auth == SaslAuth(jaas_file=Path("/jaas.conf"), section="A")
    with pytest.raises(BookieConfigError, match="a regular expression"):
        parse(f"{text}saslJaasClientAllowedIds=[\n")


def test_tokens_need_tls() -> None:
    token = "bookieAuthProviderFactoryClass=token\nauthTokenFile=/tokens\n"
    provider = parse(TLS_KEYS + token).server.auth
    assert isinstance(provider, BearerTokens)
    assert provider.token_file == Path("/tokens")
    with pytest.raises(BookieConfigError, match="it needs TLS"):
        parse(token)


def test_another_package_adds_a_plug_in_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "example_bookie_auth.py").write_text(
        "from pathlib import Path\n"
        "from bookie.auth.tokens import BearerTokens\n"
        "def open_provider(settings):\n"
        "    return BearerTokens(Path(settings['authPlugin.file']))\n"
    )
    information = tmp_path / "example_bookie_auth-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: example-bookie-auth\nVersion: 1\n")
    (information / "entry_points.txt").write_text(
        "[dlog.auth.bookie]\nexample = example_bookie_auth:open_provider\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = f"{TLS_KEYS}bookieAuthProviderFactoryClass=example\nauthPlugin.file=/mine\n"
    provider = parse(text).server.auth
    assert isinstance(provider, BearerTokens)
    assert provider.token_file == Path("/mine")
    del sys.modules["example_bookie_auth"]


SASL_KEYS = "bookieAuthProviderFactoryClass=sasl\njava.security.auth.login.config=/jaas.conf\n"


def test_policies_need_identities() -> None:
    assert parse(SASL_KEYS).permissions is None
    found = parse(f"{SASL_KEYS}policyNamespaces=/messaging/shop, /other,/other\npolicyCacheSeconds=30\n")
    assert found.permissions == PermissionsConfig(namespaces=("/messaging/shop", "/other"), lifetime_s=30)
    found = parse(f"{TLS_KEYS}tlsClientAuthentication=true\npolicyNamespaces=/n\n")
    assert found.permissions == PermissionsConfig(namespaces=("/n",))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("n", "begins with '/'"),
        ("/n/", "does not end with '/'"),
        ("/n/../m", "is no|is not a node name"),
        ("/", "the root is no namespace"),
        ("/n\npolicyCacheSeconds=9", "at least 10"),
    ],
)
def test_a_policy_that_could_not_be_found_stops_the_start(value: str, reason: str) -> None:
    with pytest.raises(BookieConfigError, match=reason):
        parse(f"{SASL_KEYS}policyNamespaces={value}\n")


def test_a_restriction_that_is_off_restricts_nothing() -> None:
    parse("tlsClientAuthentication=false\ntlsRequired=false\nzkEnableSecurity=false\nauthorizedRoles=\n")


def test_tls_from_java_key_stores() -> None:
    config = parse(
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsKeyStoreType=PKCS12\n"
        "tlsKeyStore=/k\ntlsKeyStorePasswordPath=/kp\ntlsTrustStore=/t\ntlsTrustStorePasswordPath=/tp\n"
    ).tls
    assert config is not None
    assert (config.key, config.key_password, config.key_type) == (Path("/k"), Path("/kp"), "PKCS12")
    assert config.certificate is None
    assert (config.authorities, config.authorities_password) == (Path("/t"), Path("/tp"))
    assert config.authorities_type == "JKS"  # Apache's default
    with pytest.raises(BookieConfigError, match="PEM, PKCS12 or JKS"):
        parse(f"{TLS_KEYS.replace('=PEM', '=BKS')}")


def test_security_of_zookeeper_needs_an_identity_that_owns_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "zookeeper.toml"
    monkeypatch.setenv("DLOG_ZK_SECURITY", str(file))
    identity = "scheme = 'sasl'\nusername = 'dlog'\npassword_file = 'password'\n"
    for text in ("", f"{identity}acl = 'open'\n"):
        file.write_text(text)
        with pytest.raises(BookieConfigError, match="an identity that owns the nodes"):
            parse("zkEnableSecurity=true\n")
    file.write_text("schema = 'sasl'\n")
    with pytest.raises(BookieConfigError, match=r"DLOG_ZK_SECURITY: .*unknown key 'schema'"):
        parse("zkEnableSecurity=true\n")
    file.write_text(identity)
    parse("zkEnableSecurity=true\n")
    parse("zkEnableSecurity=false\n")
