"""Checks the digests of a ledger's entries without the writer's password.

CRC32 and CRC32C need no password. All entries of a ledger have the same type of digest, but the bookie does
not know the type. The checker infers it from the entries that match it. An entry that does not match the type
of its ledger is damaged.

Inside: that rule for one ledger, the checksum of one entry. Not inside: reading entries (``scrubber``).
Always: no entry is called damaged before the type of its ledger is certain. For a ledger with MAC digests, or
without digests, the checker reports nothing.

Bytes that are no CRC match one with a chance of 1 in 4,000,000,000. So the type is certain after two matches
in one ledger, or after one match among the first few entries.

Source: DigestManager.java and its subclasses.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledger.digest import ENTRY_HEADER_BYTES, DigestType, EntryCodec

_TYPES = (DigestType.CRC32C, DigestType.CRC32)
_FIRST_ENTRIES = 16  # among these, one match suffices
_UNMATCHED_MAX = 10_000  # kept until the type is known

_DIGESTS = [(digest_type, EntryCodec(digest_type, b"").digest) for digest_type in _TYPES]


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


class DigestChecker:
    """Checks the entries of one ledger, given one after the other."""

    def __init__(self) -> None:
        self._seen = 0
        self._matches = dict.fromkeys(_TYPES, 0)
        self._unmatched: list[int] = []  # entries that match no type
        self._type: DigestType | None = None

    @property
    def digest_type(self) -> DigestType | None:
        """The ledger's digest type; None until it is certain."""
        return self._type

    def check(self, entries: Iterable[tuple[int, bytes]]) -> list[int]:
        """Check entries (id, body); return the ids of the damaged ones among these and the earlier ones.

        Give each entry only once; ``is_valid`` checks an entry again.
        """
        for entry_id, body in entries:
            self._seen += 1
            found = checksum_type(body, self._type)
            if found is None:
                if len(self._unmatched) < _UNMATCHED_MAX:
                    self._unmatched.append(entry_id)
            else:
                self._matches[found] += 1
        if self._type is None:
            most = max(_TYPES, key=self._matches.__getitem__)
            if self._matches[most] >= 2 or (self._matches[most] == 1 and self._seen <= _FIRST_ENTRIES):
                self._type = most
        if self._type is None:
            return []
        damaged, self._unmatched = self._unmatched, []
        return damaged

    def is_valid(self, body: bytes) -> bool:
        """True if the entry matches its digest. Call it only after the type is known."""
        assert self._type is not None
        return checksum_type(body, self._type) is self._type
