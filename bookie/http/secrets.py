"""The files of the HTTP port that may change while the bookie runs: tokens, and the stores for TLS.

The file of ``httpServerTokenPath`` holds one token, or lines with an owner's name and a token each, as the
file of the plug-in ``token``. The audit log names the owner.

Inside: reading the files, all of them or none; the SSL context of stores in JKS, PKCS12 and PEM. The content
shows the format, because Apache's keys have no type. Not inside: comparing tokens (``guard``), when the files
are read (``bookie.auth.reloading``).
Always: memory has only hashes of tokens; a file that cannot be used changes nothing. With a trust store, a
client without a certificate of its authorities gets no HTTP reply.

Source: VertxHttpServer.java (client certificates are required); docs/security.md.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from bookie.auth.tokens import parse_tokens
from bookie.config.admin_config import AdminConfig, AdminTls
from bookie.errors import BookieConfigError
from ledger.auth.java_stores import load_key, read_store
from ledger.auth.tls import load_authorities
from ledger.runtime.key_work import load_pem_key
from ledger.runtime.secret_file import SecretFileError, SecretOf, load_secret

TOKEN_BYTES_MIN = 16
_PEM = b"-----BEGIN"


@attrs.frozen
class Token:
    """One token that opens the HTTP port."""

    digest: bytes  # SHA-256
    owner: str = ""  # empty: the file has a single token without a name


class AdminSecrets:
    """Implements ``ReloadedFiles``."""

    def __init__(self, config: AdminConfig) -> None:
        self._config = config
        self.tokens: tuple[Token, ...] | None = None  # None: there is no file
        self.context: ssl.SSLContext | None = None  # None: no TLS
        self.context_changed = trio.Event()  # replaced at each change
        self._stores: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return f"<AdminSecrets with {len(self.tokens or ())} tokens>"

    def read(self) -> Callable[[], None]:
        """See ``ReloadedFiles``."""
        tokens = None if self._config.token_path is None else read_tokens(self._config.token_path)
        tls, context, stores = self._config.tls, self.context, self._stores
        if tls is not None:
            # First: if a store changes meanwhile, the next call sees that it differs.
            stores = tuple(_digest(path) for path in (tls.key_store, tls.trust_store))
            if context is None or stores != self._stores:
                context = admin_context(tls)

        def apply() -> None:
            self.tokens, self._stores = tokens, stores
            if context is not self.context:
                self.context = context
                self.context_changed.set()
                self.context_changed = trio.Event()

        return apply


def _digest(path: Path | None) -> bytes:
    try:
        return b"" if path is None else hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return b""  # reading it again says what is wrong


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens in a file.

    Raises:
        BookieConfigError: The file cannot be read, others may read it, or it does not parse.
    """
    try:
        text = load_secret(path, SecretOf.OURS).content.strip()
    except SecretFileError as exc:
        raise BookieConfigError(f"httpServerTokenPath {exc}") from exc
    except OSError as exc:
        raise BookieConfigError(f"httpServerTokenPath {path} cannot be read: {exc.strerror or exc}") from exc
    if len(text.split()) > 1:
        try:
            found = parse_tokens(text.decode("ascii"), str(path))
        except ValueError as exc:
            reason = "it is not ASCII" if isinstance(exc, UnicodeDecodeError) else str(exc)
            raise BookieConfigError(
                f"httpServerTokenPath {path}: expected a token, or a name and a token in each line: {reason}"
            ) from None
        return tuple(Token(digest, owner) for digest, owner in found)
    if len(text) < TOKEN_BYTES_MIN or any(byte <= 0x20 or byte >= 0x7F for byte in text):
        raise BookieConfigError(
            f"httpServerTokenPath {path}: expected at least {TOKEN_BYTES_MIN} printable characters without"
            " spaces, such as the output of `openssl rand -hex 32`"
        )
    return (Token(hashlib.sha256(text).digest()),)


def admin_context(tls: AdminTls) -> ssl.SSLContext:
    """The context of the HTTP server.

    Raises:
        BookieConfigError: A store cannot be read or used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    password = tls.key_store_password
    try:
        if _is_pem(tls.key_store):
            load_pem_key(context, tls.key_store, password=password, named_by=SecretOf.APACHE)
        else:
            load_key(context, read_store(tls.key_store, password, named_by=SecretOf.APACHE))
    except (OSError, ValueError) as exc:
        raise _unusable("httpServerKeyStorePath", tls.key_store, exc) from exc
    if tls.trust_store is not None:
        try:
            kind = "PEM" if _is_pem(tls.trust_store) else "JKS"
            load_authorities(context, tls.trust_store, kind, tls.trust_store_password)
        except (OSError, ValueError) as exc:
            raise _unusable("httpServerTrustStorePath", tls.trust_store, exc) from exc
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _is_pem(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_PEM)) == _PEM


def _unusable(key: str, path: Path, exc: Exception) -> BookieConfigError:
    reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
    return BookieConfigError(
        f"{key} {path} cannot be used: {reason}. It must be a JKS or PKCS12 store, or PEM with"
        " the key and its certificate; a password goes into the key with Password in its name"
    )
