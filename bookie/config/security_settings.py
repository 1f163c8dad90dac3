"""The keys of ``bk_server.conf`` that restrict access: TLS, authentication, roles.

Inside: which keys belong together, and the refusal of a key by which an operator meant to close what would be
open. Another key without effect in its context is a warning, as files for Apache's bookie have many.
Not inside: certificates (``bookie.auth.tls``), mechanisms (``ledger.auth.authentication``).
Always: a key that closes something is obeyed, or the bookie does not start.

Source: ServerConfiguration.java, AbstractConfiguration.java; docs/protocol.md 12.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from bookie.auth.certificate_roles import CertificateRoles
from bookie.auth.plugins import JAAS_FILE_KEY, TOKEN_FILE_KEY, open_provider
from bookie.auth.tls import TlsConfig
from bookie.config.keys import PLUGIN_PREFIX
from bookie.config.settings import Settings
from bookie.errors import BookieConfigError
from bookie.requests.permissions import PermissionsConfig
from ledger.auth.authentication import AuthProvider
from ledger.auth.sasl import SaslAuth
from ledger.metadata_store.errors import InvalidPathError, StoreSecurityError
from ledger.metadata_store.store import check_path
from ledger.metadata_store.zookeeper_security import ENVIRONMENT_VARIABLE, security_of_environment

_PROVIDER = "bookieAuthProviderFactoryClass"
_TLS_FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
_SASL_FACTORY = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
_CLIENT_SASL_FACTORY = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
_CLIENT_PROVIDER = "clientAuthProviderFactoryClass"
_ROLES_FACTORY = "org.apache.bookkeeper.tls.BookieAuthZFactory"


@attrs.frozen
class _Restriction:
    """A key that restricts access only under a condition."""

    key: str
    is_obeyed: Callable[[Settings], bool]
    expectation: str  # the text of the remedy, if it is not obeyed
    closes: bool = True  # False: alone it closes nothing, so it is a warning


def _has_tls(settings: Settings) -> bool:
    return settings.text("tlsProviderFactoryClass") is not None


def _has_roles(settings: Settings) -> bool:
    return _class_name(settings.text(_PROVIDER)) == _class_name(_ROLES_FACTORY)


def _has_sasl(settings: Settings) -> bool:
    return (settings.text(_PROVIDER) or "").rpartition(".")[2] in ("sasl", "SASLBookieAuthProviderFactory")


def _has_provider(settings: Settings) -> bool:
    return settings.text(_PROVIDER) is not None


def _has_identities(settings: Settings) -> bool:
    return _has_provider(settings) or settings.value("tlsClientAuthentication")


def _has_policies(settings: Settings) -> bool:
    return settings.text("policyNamespaces") is not None


def _protects_nodes(settings: Settings) -> bool:
    try:
        return security_of_environment().protects_nodes
    except StoreSecurityError as exc:
        raise BookieConfigError(f"{ENVIRONMENT_VARIABLE}: {exc}") from exc


_NEEDS_TLS = f"tlsProviderFactoryClass={_TLS_FACTORY} beside it; without it every connection is clear text"

# A value of "false" restricts nothing.
RESTRICTIONS = (
    *(_Restriction(key, _has_tls, _NEEDS_TLS) for key in ("tlsClientAuthentication", "tlsRequired")),
    *(
        _Restriction(key, _has_tls, _NEEDS_TLS, closes=False)
        for key in (
            "tlsHostnameVerificationEnabled",
            "tlsKeyStore",
            "tlsCertificatePath",
            "tlsTrustStore",
            "tlsEnabledCipherSuites",
            "tlsEnabledProtocols",
        )
    ),
    _Restriction(
        "authorizedRoles",
        _has_roles,
        f"{_PROVIDER}={_ROLES_FACTORY} beside it; without it no role is checked",
    ),
    *(
        _Restriction(
            key,
            _has_sasl,
            f"{_PROVIDER}={_SASL_FACTORY} beside it; without it no user is checked",
            closes=key == "saslJaasClientAllowedIds",
        )
        for key in ("saslJaasClientAllowedIds", "saslJaasBookieSectionName")
    ),
    _Restriction(
        TOKEN_FILE_KEY, _has_provider, f"{_PROVIDER}=token beside it; without it no token is checked"
    ),
    _Restriction(
        "policyNamespaces",
        _has_identities,
        f"{_PROVIDER} or tlsClientAuthentication=true beside it; a peer that does not authenticate has no"
        " identity, and a policy cannot name it",
    ),
    _Restriction(
        "policyCacheSeconds",
        _has_policies,
        "policyNamespaces beside it; without it no policy is obeyed",
        closes=False,
    ),
    _Restriction(
        "zkEnableSecurity",
        _protects_nodes,
        f"false, or an identity that owns the nodes: the variable {ENVIRONMENT_VARIABLE} must name a file"
        " with scheme, username and password_file, and without acl = 'open'; without an identity every client"
        " of ZooKeeper could change the nodes",
    ),
)


def refuse_unobeyed(settings: Settings) -> list[str]:
    """The warnings about keys of security that have no effect.

    Raises:
        BookieConfigError: One of them was meant to close what would be open.
    """
    warnings = []
    for restriction in RESTRICTIONS:
        key = restriction.key
        is_set = settings.value(key) is not False and key in settings
        if is_set and not restriction.is_obeyed(settings):
            if restriction.closes:
                raise settings.error(key, restriction.expectation)
            warnings.append(f"{key}: has no effect; it needs {restriction.expectation}")
    for key in settings.first_values():
        if key.startswith(PLUGIN_PREFIX) and not _has_provider(settings):
            raise settings.error(key, f"{_PROVIDER} with the name of the plug-in beside it")
    return warnings


def read_tls(settings: Settings) -> TlsConfig | None:
    """The keys ``tls*``; None without TLS. Raises ``BookieConfigError``."""
    provider, files = settings.text("tlsProviderFactoryClass"), settings.values_of(TlsConfig)
    key_type, trust_type = (settings.value(key).upper() for key in ("tlsKeyStoreType", "tlsTrustStoreType"))
    if provider is None:
        return None
    if _class_name(provider) != _class_name(_TLS_FACTORY):
        raise settings.error("tlsProviderFactoryClass", _TLS_FACTORY)
    for name, store_type in (("tlsKeyStoreType", key_type), ("tlsTrustStoreType", trust_type)):
        if store_type not in ("JKS", "PKCS12", "PEM"):
            raise settings.error(name, "PEM, PKCS12 or JKS")
    if "key" not in files:
        raise settings.error("tlsKeyStore", f"the file of the private key, of tlsKeyStoreType {key_type}")
    if "certificate" not in files and key_type == "PEM":
        raise settings.error("tlsCertificatePath", "the file of the certificate chain, in PEM")
    return TlsConfig(key_type=key_type, authorities_type=trust_type, **files)


def read_tls_required(settings: Settings) -> bool:
    """True if nothing but START_TLS may be answered in clear text.

    ``tlsRequired`` is a key of this bookie. Apache's bookie with ``tlsClientAuthentication`` still serves
    connections in clear text.
    """
    return any(settings.value(key) for key in ("tlsRequired", "tlsClientAuthentication"))


def read_authentication(settings: Settings) -> AuthProvider | None:
    """The plug-in of ``bookieAuthProviderFactoryClass``; None without one. Raises ``BookieConfigError``."""
    name = settings.text(_PROVIDER)
    roles = settings.texts("authorizedRoles")
    if name is None:
        return None
    if _class_name(name) == _class_name(_ROLES_FACTORY):
        if not roles:
            raise settings.error("authorizedRoles", f"the roles that may connect, for {_PROVIDER}")
        if not (_has_tls(settings) and settings.value("tlsClientAuthentication")):
            raise settings.error(
                _PROVIDER, "tlsClientAuthentication=true beside it: roles are read from client certificates"
            )
        return CertificateRoles(frozenset(roles))
    try:
        provider = open_provider(name, settings.first_values())
    except (ValueError, OSError) as exc:
        raise settings.error(_PROVIDER, str(exc)) from exc
    if provider.needs_tls and not _has_tls(settings):
        raise settings.error(_PROVIDER, f"tlsProviderFactoryClass={_TLS_FACTORY} beside it: it needs TLS")
    return provider


def read_permissions(settings: Settings) -> PermissionsConfig | None:
    """Which policies the bookie obeys; None: none. Raises ``BookieConfigError``."""
    paths = settings.texts("policyNamespaces")
    try:
        namespaces = tuple(dict.fromkeys(check_path(path) for path in paths))
        if "/" in namespaces:
            raise InvalidPathError("/", "the root is no namespace")
    except InvalidPathError as exc:
        raise settings.error(
            "policyNamespaces", f"paths of namespaces, such as /messaging/shop ({exc})"
        ) from exc
    config = settings.fill(PermissionsConfig, namespaces=namespaces)
    return config if namespaces else None


def read_client_authentication(settings: Settings) -> SaslAuth | None:
    """How this bookie authenticates when it reads from other bookies. Raises ``BookieConfigError``."""
    name = settings.text(_CLIENT_PROVIDER)
    jaas_file = settings.text(JAAS_FILE_KEY)
    section = settings.value("saslJaasAuditorSectionName")
    if name is None:
        return None
    if _class_name(name) != _class_name(_CLIENT_SASL_FACTORY):
        raise settings.error(_CLIENT_PROVIDER, _CLIENT_SASL_FACTORY)
    if jaas_file is None:
        raise settings.error(
            _CLIENT_PROVIDER, f"{JAAS_FILE_KEY}, the JAAS file with section {section}, beside it"
        )
    return SaslAuth(jaas_file=Path(jaas_file), section=section)


def _class_name(name: str | None) -> str | None:
    return None if name is None else name.rpartition(".")[2]
