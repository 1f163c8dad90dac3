"""TLS and authentication with bookies as settings in a file.

Inside: the settings, reading them from a file, making the TLS context and the authentication of them.
Not inside: contexts (``tls``), mechanisms (``sasl``, ``token_auth``), settings for ZooKeeper
(``ledger.metadata_store.zookeeper_security``).
Always: no secret is in a ``repr`` or an error; a setting without effect is an error, never ignored.

Source: docs/security.md, "Authentication, TLS and certificates" (the names are ours).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ledger.errors import SecuritySettingsError
from ledger.runtime.secret_file import SecretOf, read_secret
from ledger.runtime.settings_file import SettingsFileError, read_settings_file

if TYPE_CHECKING:
    from ledger.auth.auth import AuthFactory

ENVIRONMENT_VARIABLE = "DLOG_BOOKIE_SECURITY"  # a file for every client that is opened without settings

_STORE_TYPES = ("PEM", "PKCS12", "JKS")
# The keys of each plug-in, and its own name for the setting. Other plug-ins have ``auth_settings``.
_PLUG_INS: Mapping[str, Mapping[str, str]] = {
    "sasl": {
        "username": "username",
        "password_file": "passwordFile",
        "jaas_file": "jaasFile",
        "jaas_section": "section",
    },
    "token": {"token_file": "tokenFile"},
}
_PATHS = (
    *("tls_authorities", "tls_authorities_password_file", "tls_certificate", "tls_key"),
    *("tls_key_password_file", "password_file", "jaas_file", "token_file"),
)
_PLUG_IN_KEYS = ("username", "password_file", "jaas_file", "jaas_section", "token_file", "auth_settings")


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)


@attrs.frozen(kw_only=True)
class BookieSecurity:
    """TLS and authentication of a client's connections with bookies.

    Raises:
        SecuritySettingsError: The settings contradict each other.
    """

    tls: bool = False
    tls_authorities: Path | None = attrs.field(default=None, converter=_path)
    """The authorities of the bookies' certificates. None: those of the system."""
    tls_authorities_type: str = "PEM"
    """``PEM``, ``PKCS12`` or ``JKS``."""
    tls_authorities_password_file: Path | None = attrs.field(default=None, converter=_path)
    tls_certificate: Path | None = attrs.field(default=None, converter=_path)
    """The client's certificate chain in PEM, for bookies that require one."""
    tls_key: Path | None = attrs.field(default=None, converter=_path)
    """The client's private key; a store of ``PKCS12`` or ``JKS`` has the certificate too."""
    tls_key_type: str = "PEM"
    tls_key_password_file: Path | None = attrs.field(default=None, converter=_path)
    tls_check_hostname: bool = True
    """A bookie's certificate must name the host of its address."""
    auth: str | None = None
    """``sasl`` (DIGEST-MD5), ``token``, or a plug-in of another package (``ledger.client_auth``)."""
    username: str | None = None
    password_file: Path | None = attrs.field(default=None, converter=_path)
    jaas_file: Path | None = attrs.field(default=None, converter=_path)
    """For ``sasl``, in place of ``username`` and ``password_file``."""
    jaas_section: str | None = None
    token_file: Path | None = attrs.field(default=None, converter=_path)
    auth_settings: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    """The settings of a plug-in of another package."""

    def __attrs_post_init__(self) -> None:
        for name in ("tls_authorities_type", "tls_key_type"):
            if getattr(self, name) not in _STORE_TYPES:
                raise SecuritySettingsError(
                    f"{name} {getattr(self, name)!r}: there are {', '.join(_STORE_TYPES)}"
                )
        for field in attrs.fields(BookieSecurity):
            if not self.tls and field.name.startswith("tls_") and getattr(self, field.name) != field.default:
                raise SecuritySettingsError(f"{field.name} is set, but TLS is off; set tls to true")
        self._check_key()
        self._check_plug_in()

    def _check_key(self) -> None:
        if self.tls_key_type != "PEM" and (self.tls_key is None or self.tls_certificate is not None):
            raise SecuritySettingsError(
                f"tls_key_type {self.tls_key_type!r} needs tls_key, a store with key and certificate, and no"
                " tls_certificate"
            )
        if self.tls_key_type == "PEM" and self.tls_key is not None and self.tls_certificate is None:
            raise SecuritySettingsError(
                "tls_key is set without tls_certificate; name the file with the certificate"
            )
        if self.tls_key_password_file is not None and self.tls_key is self.tls_certificate is None:
            raise SecuritySettingsError("tls_key_password_file is set without tls_key; name the key")

    def _check_plug_in(self) -> None:
        given = [name for name in _PLUG_IN_KEYS if getattr(self, name) is not None]
        if self.auth is None:
            if given:
                raise SecuritySettingsError(f"{given[0]} is set without auth; set auth to 'sasl' or 'token'")
            return
        known = _PLUG_INS.get(self.auth, {"auth_settings": ""})
        if unknown := [name for name in given if name not in known]:
            raise SecuritySettingsError(
                f"{unknown[0]} is no setting of auth {self.auth!r}, which has {', '.join(known)}"
            )
        if self.auth == "token" and not (self.token_file and self.tls):
            raise SecuritySettingsError(
                "auth 'token' needs token_file, and sends the token over TLS only: set tls to true"
            )
        if self.auth == "sasl" and (
            (self.username is None) != (self.password_file is None)
            or (self.username is None) == (self.jaas_file is None)
            or (self.jaas_section is not None and self.jaas_file is None)
        ):
            raise SecuritySettingsError(
                "auth 'sasl' needs either username and password_file, or jaas_file, and jaas_section with it"
            )

    def open(self) -> tuple[ssl.SSLContext | None, AuthFactory | None]:
        """The TLS context and the authentication for ``TransportConfig``; reads each file once.

        Raises:
            SecuritySettingsError: A file cannot be read or used, or there is no such plug-in.
        """
        self._check_files()
        return self._tls_context(self.tls_check_hostname), self._authentication()

    def open_for_programs(self) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None, AuthFactory | None]:
        """The same for connections with other programs: TLS that dials, TLS that is dialled, authentication.

        Both sides need a certificate, which names no host.

        Raises:
            SecuritySettingsError: As ``open``; or there is TLS without a certificate, or without authorities.
        """
        self._check_files()
        return self._tls_context(check_host_name=False), self._listening_context(), self._authentication()

    def _check_files(self) -> None:
        for name in _PATHS:
            path: Path | None = getattr(self, name)
            try:
                if path is not None:
                    path.open("rb").close()
            except OSError as exc:
                raise SecuritySettingsError(f"{name}: {path} cannot be read: {exc.strerror}") from None

    def _tls_context(self, check_host_name: bool) -> ssl.SSLContext | None:
        from ledger.auth.tls import client_context

        if not self.tls:
            return None
        with self._tls_errors():
            return client_context(
                authorities=self.tls_authorities,
                certificate=self.tls_certificate,
                key=self.tls_key,
                key_password=_secret(self.tls_key_password_file),
                check_host_name=check_host_name,
                key_type=self.tls_key_type,
                authorities_type=self.tls_authorities_type,
                authorities_password=_secret(self.tls_authorities_password_file),
            )

    def _listening_context(self) -> ssl.SSLContext | None:
        from ledger.auth.tls import program_context

        if not self.tls:
            return None
        if self.tls_authorities is None or self.tls_certificate is self.tls_key is None:
            raise SecuritySettingsError(
                "programs that share a log over TLS prove by certificates who they are: set tls_authorities,"
                " tls_certificate and tls_key"
            )
        with self._tls_errors():
            return program_context(
                authorities=self.tls_authorities,
                certificate=self.tls_certificate,
                key=self.tls_key,
                key_password=_secret(self.tls_key_password_file),
                key_type=self.tls_key_type,
                authorities_type=self.tls_authorities_type,
                authorities_password=_secret(self.tls_authorities_password_file),
            )

    @contextmanager
    def _tls_errors(self) -> Iterator[None]:
        try:
            yield
        except ssl.SSLError as exc:
            named = [self.tls_authorities, self.tls_certificate, self.tls_key]
            raise SecuritySettingsError(
                f"TLS with bookies: {', '.join(str(one) for one in named if one)}: {exc.reason or exc}. Files"
                " must be of tls_authorities_type and tls_key_type, key and certificate must belong together,"
                " and a key with a password needs tls_key_password_file"
            ) from None
        except (OSError, ValueError) as exc:
            raise SecuritySettingsError(f"TLS with bookies: {exc}") from None

    def _authentication(self) -> AuthFactory | None:
        from ledger.auth.auth_plugins import client_auth

        if self.auth is None:
            return None
        keys = _PLUG_INS.get(self.auth)
        settings = dict(self.auth_settings or {})
        for key, name in (keys or {}).items():
            if (value := getattr(self, key)) is not None:
                settings[name] = str(value)
        try:
            factory = client_auth(self.auth, settings)
            if keys is not None:
                factory()  # reads the files with the secret
        except (OSError, ValueError) as exc:
            raise SecuritySettingsError(f"auth {self.auth!r}: {exc}") from None
        if getattr(factory, "needs_tls", False) and not self.tls:
            raise SecuritySettingsError(f"auth {self.auth!r} sends its secret over TLS only: set tls to true")
        return factory


NO_SECURITY = BookieSecurity()

_TYPES: dict[str, type] = {
    **{field.name: str for field in attrs.fields(BookieSecurity)},
    **dict.fromkeys(_PATHS, Path),
    **dict.fromkeys(("tls", "tls_check_hostname"), bool),
    "auth_settings": dict,
}
_SECRETS = {
    "password": "password_file",
    "token": "token_file",
    "tls_key_password": "tls_key_password_file",
    "tls_authorities_password": "tls_authorities_password_file",
}


def load_bookie_security(path: str | Path) -> BookieSecurity:
    """Read settings from a file in TOML, whose keys are the attributes of ``BookieSecurity``.

    A file that the settings name is relative to the directory of this file.

    Raises:
        SecuritySettingsError: The file cannot be read, has an unknown key, or contradicts itself.
    """
    path = Path(path)
    try:
        values: dict[str, Any] = read_settings_file(path, _TYPES, of="bookies", secrets=_SECRETS)
    except SettingsFileError as exc:
        raise SecuritySettingsError(str(exc)) from None
    if not all(isinstance(value, str) for value in values.get("auth_settings", {}).values()):
        raise SecuritySettingsError(f"{path}: the values of auth_settings must be texts")
    try:
        return BookieSecurity(**values)
    except SecuritySettingsError as exc:
        raise SecuritySettingsError(f"{path}: {exc}") from None


def security_of_environment() -> BookieSecurity:
    """The settings in the file that ``DLOG_BOOKIE_SECURITY`` names; no security if it is not set.

    Raises:
        SecuritySettingsError: see ``load_bookie_security``.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    return load_bookie_security(named) if named else NO_SECURITY


def _secret(path: Path | None) -> str | None:
    return None if path is None else read_secret(path, SecretOf.OURS)
