"""The plug-in ``sasl`` of a client: DIGEST-MD5 as Apache's bookies speak it.

    client  AUTH ""          -> bookie  the challenge
    client  AUTH response    -> bookie  rspauth

Inside: the order of messages, login names and passwords from files. Not inside: the messages and the hash
(``digest_md5``), the bookie's side (``ledger.auth.sasl_users``).
Always: the bookie must prove that it knows the password too; the files are read again for each connection, so
a changed password needs no restart.

Source: SASLClientAuthProvider.java, SaslClientState.java; docs/protocol.md 12.4.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import attrs

from ledger.auth import digest_md5
from ledger.auth.jaas import read_section
from ledger.runtime.secret_file import SecretOf, read_secret

PLUGIN = "sasl"
CLIENT_SECTION = "BookKeeper"  # Apache's default of ``saslJaasClientSectionName``


@attrs.define
class SaslLogin:
    """The exchange on one connection."""

    username: str
    _password: str = attrs.field(repr=False)
    plugin: str = attrs.field(default=PLUGIN, init=False)
    _proof: str | None = attrs.field(default=None, init=False, repr=False)  # that the bookie must send

    def first_token(self) -> bytes:
        """Empty: DIGEST-MD5 begins with the bookie's challenge."""
        return b""

    def next_token(self, challenge: bytes) -> bytes | None:
        """The response to the challenge; None once the bookie has proved that it knows the password.

        Raises:
            ValueError: The message is malformed, asks for another mechanism, or proves nothing.
        """
        message = digest_md5.parse_message(challenge)
        if self._proof is not None:
            if not digest_md5.is_hash(message.get("rspauth", ""), self._proof):
                raise ValueError("it did not prove that it knows the password")
            return None
        if "nonce" not in message or message.get("algorithm") != "md5-sess":
            raise ValueError("its challenge is not one of DIGEST-MD5")
        if "auth" not in message.get("qop", "auth").replace(" ", "").split(","):
            raise ValueError(f"its challenge offers the quality of protection {message['qop']!r}, not 'auth'")
        realm, nonce = message.get("realm", digest_md5.REALM), message["nonce"]
        cnonce = secrets.token_urlsafe(32)
        exchange = digest_md5.Exchange(realm, nonce, cnonce)
        response = digest_md5.response_hash(self.username, self._password, exchange)
        self._proof = digest_md5.response_hash(self.username, self._password, exchange, of_server=True)
        quoted = digest_md5.quoted
        return (
            f"charset=utf-8,username={quoted(self.username)},realm={quoted(realm)},nonce={quoted(nonce)},"
            f"nc={digest_md5.FIRST_USE},cnonce={quoted(cnonce)},digest-uri={quoted(digest_md5.DIGEST_URI)},"
            f"maxbuf=65536,response={response},qop=auth"
        ).encode()


@attrs.frozen
class SaslAuth:
    """Makes the authentication of each connection, for ``TransportConfig.auth``.

    Either ``username`` and ``password_file``, or ``jaas_file`` with a section that has both.
    """

    username: str | None = None
    password_file: Path | None = None
    jaas_file: Path | None = None
    section: str = CLIENT_SECTION

    def __attrs_post_init__(self) -> None:
        from_file = self.username is not None and self.password_file is not None
        if from_file == (self.jaas_file is not None):
            raise ValueError("SASL needs a user name and a password file, or a JAAS file")

    def __call__(self) -> SaslLogin:
        """The exchange of a new connection.

        Raises:
            OSError, ValueError: The files cannot be used.
        """
        if self.jaas_file is not None:
            section = read_section(self.jaas_file, self.section)
            login = section.options
            if "username" not in login or "password" not in login:
                raise ValueError(f"{self.jaas_file}, section {section.name}: username or password is missing")
            return SaslLogin(login["username"], login["password"])
        assert self.username is not None  # __attrs_post_init__ requires it without a JAAS file
        assert self.password_file is not None  # the same
        return SaslLogin(self.username, read_secret(self.password_file, SecretOf.OURS))

    def users(self) -> dict[str, str]:
        """The passwords by user that this program can compare.

        These are its own, and those that its section of the JAAS file has besides, as a bookie's has them.

        Raises:
            OSError, ValueError: The files cannot be used.
        """
        others = {} if self.jaas_file is None else read_section(self.jaas_file, self.section).users
        login = self()
        return {**others, login.username: login._password}
