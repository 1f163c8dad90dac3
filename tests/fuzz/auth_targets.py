"""Targets of authentication: key stores of Java, JAAS files, messages of DIGEST-MD5."""

from __future__ import annotations

import hashlib

from ledger.auth.digest_md5 import parse_message
from ledger.auth.jaas import parse_jaas
from ledger.auth.java_stores import KeyStoreError, _read_jks
from ledger.runtime.key_work import KeyWork
from tests.fuzz.engine import Target
from tests.places import GOLDEN_FILES

TLS = GOLDEN_FILES / "tls"
PASSWORD = (TLS / "store-password").read_text().strip()
DIGEST_BYTES = 20

JAAS = b"""// a bookie's file
Bookie {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_hd="secret" /* and */ user_b='x';
};
"""
CHALLENGE = b'realm="default",nonce="OA6MG9tEQGm2hh",charset=utf-8,algorithm=md5-sess,qop="auth"'
RESPONSE = (
    b'charset=utf-8,username="hd",realm="default",nonce="OA6M",nc=00000001,cnonce="x\\"y",'
    b'digest-uri="bookkeeper/bookkeeper",maxbuf=65536,response=d388dad90d4bbd760a152321f2143af7,qop=auth'
)


def stores() -> list[bytes]:
    return [(TLS / name).read_bytes() for name in ("bookie.jks", "trusted.jks")]


def with_store_digest(data: bytes) -> bytes:
    """The store with the digest that its password gives, so that what it holds is decoded."""
    body = data[:-DIGEST_BYTES]
    secret = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return body + hashlib.sha1(secret + body, usedforsecurity=False).digest()


AUTH_TARGETS = [
    Target(
        name="jks_store",
        seeds=stores,
        decode=lambda data: _read_jks(data, PASSWORD),
        errors=(KeyStoreError,),
        repair=with_store_digest,
    ),
    Target(
        name="pkcs12_work",
        seeds=lambda: [(TLS / name).read_bytes() for name in ("bookie.p12", "trusted.p12")],
        decode=lambda data: KeyWork(data).check(needs_mac=True),
        errors=(ValueError,),
        tokens=[b"\x30\x80", b"\x24\x80", b"\x04\x00\x02\x01\x00", b"\x02\x84\x7f\xff\xff\xff"],
    ),
    Target(
        name="jaas_file",
        seeds=lambda: [JAAS],
        decode=lambda data: parse_jaas(data.decode("utf-8", "replace"), "f"),
        errors=(ValueError,),
        tokens=[b"required", b"{", b"};", b"/*", b"//", b'="'],
        lines_per_byte=200,
        input_bytes_max=2000,
    ),
    Target(
        name="digest_md5",
        seeds=lambda: [CHALLENGE, RESPONSE],
        decode=parse_message,
        errors=(ValueError,),
        tokens=[b'nonce="', b"qop=auth", b"\\"],
    ),
]
