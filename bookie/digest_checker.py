"""Checks an entry's checksum without the writer's password.

CRC32 and CRC32C need no password. But bytes that match neither may be a sound entry with a MAC or without a
digest. Only the metadata of the ledger say which type its entries have: a peer that knows the ledger's master
key can add entries of any type, so nothing follows from the other entries.

Inside: the checksum of one entry. Not inside: the type of a ledger (``DigestTypeOf``).
Always: nothing here depends on other entries.

Source: DigestManager.java and its subclasses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ledger.digest import ENTRY_HEADER_BYTES, DigestType, EntryCodec

CHECKSUM_TYPES = (DigestType.CRC32C, DigestType.CRC32)

DigestTypeOf = Callable[[int], Awaitable[DigestType | None]]
"""The digest type of a ledger, from its metadata; None: not known now."""

_DIGESTS = [(digest_type, EntryCodec(digest_type, b"").digest) for digest_type in CHECKSUM_TYPES]


def checksum_type(body: bytes, only: DigestType | None = None) -> DigestType | None:
    """The type of checksum, CRC32C or CRC32, that the entry matches; None if it matches none.

    ``only``: try this type alone.
    """
    header = body[:ENTRY_HEADER_BYTES]
    for digest_type, digest in _DIGESTS:
        if only is not None and only is not digest_type:
            continue
        at = ENTRY_HEADER_BYTES + digest_type.size_bytes
        if len(body) >= at and digest(header, body[at:]) == body[ENTRY_HEADER_BYTES:at]:
            return digest_type
    return None
