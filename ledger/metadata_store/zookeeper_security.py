"""The identity of a session with ZooKeeper, the access list of the nodes that it creates, and TLS.

Inside: the settings, reading them from a file, secrets, the access list of a node, the context for TLS.
Not inside: sessions (``zookeeper``), what nodes mean (``ledger.catalog``, ``namespace``).
Always: no secret is in a ``repr``, a log line or an error; files with secrets and certificates are read again
for each connection or session, so that a rotation needs no restart; a setting that is not understood is an
error, never ignored.

Source: ZooKeeper administrator's guide (authentication, authorization); ZkUtils.java; docs/metadata.md 14.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import attrs

from ledger.metadata_store.errors import StoreSecurityError
from ledger.runtime.key_work import load_pem_key
from ledger.runtime.secret_file import SecretFileError, SecretOf, load_secret
from ledger.runtime.settings_file import SettingsFileError, read_settings_file

ENVIRONMENT_VARIABLE = "DLOG_ZK_SECURITY"  # a file for every session that is opened without settings

# Apache leaves these open, because programs with other identities change them (docs/metadata.md 14).
OPEN_NODES = frozenset({"idgen-long", "lostBookieRecoveryDelay"})

_PATHS = ("password_file", "tls_authorities", "tls_certificate", "tls_key", "tls_key_password_file")


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)


@attrs.frozen(kw_only=True)
class ZooKeeperSecurity:
    """The identity of sessions with ZooKeeper, the access list of new nodes, and TLS.

    Raises:
        StoreSecurityError: The settings contradict each other.
    """

    scheme: Literal["sasl", "digest"] | None = None
    """``sasl``: DIGEST-MD5, which the server verifies. ``digest``: ZooKeeper's own scheme, which sends name
    and password in clear text unless TLS is used; they only name an identity."""
    username: str | None = None
    password_file: Path | None = attrs.field(default=None, converter=_path)
    """The file with the password: UTF-8, one line."""
    password: str | None = attrs.field(default=None, repr=False)
    """The password itself, for programs that have it from elsewhere."""
    acl: Literal["creator", "open"] | None = None
    """``creator``: only this identity may use the nodes that a session creates. ``open``: every client may.
    None: ``creator`` if there is an identity."""
    tls: bool = False
    tls_authorities: Path | None = attrs.field(default=None, converter=_path)
    """The authorities of the server's certificate, in PEM. None: those of the system."""
    tls_certificate: Path | None = attrs.field(default=None, converter=_path)
    """The client's certificate chain in PEM; ZooKeeper takes its subject as an identity (``x509``)."""
    tls_key: Path | None = attrs.field(default=None, converter=_path)
    tls_key_password_file: Path | None = attrs.field(default=None, converter=_path)
    tls_check_hostname: bool = True
    """The server's certificate must name the host in the address."""

    def __attrs_post_init__(self) -> None:
        if self.scheme not in (None, "sasl", "digest"):
            raise StoreSecurityError(f"scheme {self.scheme!r}: there are 'sasl' and 'digest'")
        if self.acl not in (None, "creator", "open"):
            raise StoreSecurityError(f"acl {self.acl!r}: there are 'creator' and 'open'")
        has_password = (self.password is None) != (self.password_file is None)
        if self.scheme is None and (self.username or self.password or self.password_file):
            raise StoreSecurityError(
                "a user name or password without a scheme; set scheme to 'sasl' or 'digest'"
            )
        if self.scheme is not None and not (self.username and has_password):
            raise StoreSecurityError(
                f"scheme {self.scheme!r} needs a username, and either password_file or password"
            )
        if self.scheme == "digest" and self.username and ":" in self.username:
            raise StoreSecurityError("the user name of scheme 'digest' must not contain a colon")
        named = [name for name in _PATHS[1:] if getattr(self, name) is not None]
        if named and not self.tls:
            raise StoreSecurityError(f"{named[0]} is set, but TLS is off; set tls to true")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise StoreSecurityError("tls_certificate and tls_key belong together; set both or none")
        if self.acl == "creator" and not self.has_identity:
            raise StoreSecurityError(
                "acl 'creator' needs an identity, which becomes the owner of the nodes: set scheme, username"
                " and password_file, or tls_certificate and tls_key"
            )

    @property
    def has_identity(self) -> bool:
        """True if sessions have an identity that can own nodes."""
        return self.scheme is not None or self.tls_certificate is not None

    @property
    def protects_nodes(self) -> bool:
        """True if only the identity may use the nodes that a session creates."""
        return self.has_identity and self.acl != "open"

    def check_usable(self) -> None:
        """Read every file once, so that a mistake stops the start.

        Raises:
            StoreSecurityError: A file cannot be read or holds no password; certificate and key do not belong
                together; or a package is missing.
        """
        if self.scheme is not None:
            self.read_password()
        if self.scheme == "sasl" and find_spec("puresasl") is None:
            raise StoreSecurityError(
                "scheme 'sasl' needs the package pure-sasl: pip install '.[security]' in a checkout of DLog"
            )
        if self.tls:
            self.tls_context()

    def read_password(self) -> str:
        """The password as its file has it now.

        Raises:
            StoreSecurityError: The file cannot be read, or is empty.
        """
        if self.password_file is None:
            return self.password or ""
        return _read_secret(self.password_file)

    def tls_context(self) -> ssl.SSLContext:
        """A context for one connection, from the files as they are now.

        Raises:
            StoreSecurityError: A file cannot be read, or certificate and key do not belong together.
        """
        try:
            # Given authorities replace those of the system: any public authority could else name our server.
            context = ssl.create_default_context(
                cafile=None if self.tls_authorities is None else str(self.tls_authorities)
            )
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.check_hostname = self.tls_check_hostname
            if self.tls_certificate is not None:
                secret = None if (file := self.tls_key_password_file) is None else _read_secret(file)
                load_pem_key(
                    context, self.tls_certificate, self.tls_key, password=secret, named_by=SecretOf.OURS
                )
        except SecretFileError as exc:
            raise StoreSecurityError(f"TLS with ZooKeeper: {exc}") from None
        except (OSError, ValueError) as exc:  # also of ssl
            reason = (exc.strerror if isinstance(exc, OSError) else None) or exc
            raise StoreSecurityError(
                f"TLS with ZooKeeper: {self.tls_authorities}, {self.tls_certificate}, {self.tls_key}:"
                f" {reason}. All must be PEM; a key with a password needs tls_key_password_file"
            ) from exc
        return context

    def protects(self, path: str) -> bool:
        """True if only this identity may use a node that a session creates at the path."""
        return self.protects_nodes and OPEN_NODES.isdisjoint(path.split("/"))


NO_SECURITY = ZooKeeperSecurity()
_TYPES: Mapping[str, type] = {
    **{field.name: str for field in attrs.fields(ZooKeeperSecurity)},
    **dict.fromkeys(_PATHS, Path),
    **dict.fromkeys(("tls", "tls_check_hostname"), bool),
}


def load_zookeeper_security(path: Path) -> ZooKeeperSecurity:
    """Read settings from a file in TOML, whose keys are the attributes of ``ZooKeeperSecurity``.

    A file that the settings name is relative to the directory of this file. ``password`` itself is refused: a
    file with settings is shown and copied more freely than one with a secret.

    Raises:
        StoreSecurityError: The file cannot be read, has an unknown key, or contradicts itself.
    """
    try:
        values = read_settings_file(path, _TYPES, of="ZooKeeper", secrets={"password": "password_file"})
    except SettingsFileError as exc:
        raise StoreSecurityError(str(exc)) from None
    try:
        return ZooKeeperSecurity(**values)
    except StoreSecurityError as exc:
        raise StoreSecurityError(f"{path}: {exc}") from None


def security_of_environment() -> ZooKeeperSecurity:
    """The settings in the file that ``DLOG_ZK_SECURITY`` names; no security if it is not set.

    Raises:
        StoreSecurityError: see ``load_zookeeper_security``.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    return load_zookeeper_security(Path(named)) if named else NO_SECURITY


def _read_secret(path: Path) -> str:
    try:
        secret = load_secret(path, SecretOf.OURS).content.decode().rstrip("\r\n")
    except SecretFileError as exc:
        raise StoreSecurityError(str(exc)) from None
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise StoreSecurityError(f"{path}: the password cannot be read: {reason}") from None
    if not secret:
        raise StoreSecurityError(f"{path}: the file with the password is empty")
    return secret
