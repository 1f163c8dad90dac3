"""Whether entries are what their writer sealed, as far as that can be told without his password.

CRC32 and CRC32C need no password. All entries of a ledger carry the same type of digest, but a bookie is not
told which: so the entries that hold one type bear witness against those that do not.

Inside: that rule for one ledger. Not inside: reading entries (``scrubber``).
Always: an entry is doubted only once its ledger's type is beyond coincidence; of a ledger with MAC digests or
none nothing is ever said.

By chance one entry in 4,000,000,000 holds a CRC that nobody put there: two such in one ledger are proof of
the type, or one among the first few.

Source: DigestManager.java and its subclasses.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledger.digest import ENTRY_HEADER_BYTES, DigestType, EntryCodec

_TYPES = (DigestType.CRC32C, DigestType.CRC32)
_FEW = 16
_DOUBTED_MAX = 10_000  # kept while the type is not known

_DIGESTS = [(digest_type, EntryCodec(digest_type, b"").digest) for digest_type in _TYPES]


class DigestWitness:
    """The entries of one ledger, seen one after the other."""

    def __init__(self) -> None:
        self._seen = 0
        self._held = dict.fromkeys(_TYPES, 0)
        self._doubted: list[int] = []  # entries that hold no type
        self._type: DigestType | None = None

    @property
    def digest_type(self) -> DigestType | None:
        """The ledger's, once it is beyond coincidence."""
        return self._type

    def look(self, entries: Iterable[tuple[int, bytes]]) -> list[int]:
        """Take entries, id and body; give back the ids of those, of now or before, that must be damaged.

        Each entry is taken once: to look again ``holds`` is there.
        """
        for entry_id, body in entries:
            self._seen += 1
            found = self._type_of(body)
            if found is None:
                if len(self._doubted) < _DOUBTED_MAX:
                    self._doubted.append(entry_id)
            else:
                self._held[found] += 1
        if self._type is None:
            most = max(_TYPES, key=self._held.__getitem__)
            if self._held[most] >= 2 or (self._held[most] == 1 and self._seen <= _FEW):
                self._type = most
        if self._type is None:
            return []
        damaged, self._doubted = self._doubted, []
        return damaged

    def holds(self, body: bytes) -> bool:
        """Whether an entry that was seen before holds its digest now. Only once the type is known."""
        assert self._type is not None
        return self._type_of(body) is self._type

    def _type_of(self, body: bytes) -> DigestType | None:
        header = body[:ENTRY_HEADER_BYTES]
        for digest_type, digest in _DIGESTS:
            if self._type is not None and self._type is not digest_type:
                continue
            at = ENTRY_HEADER_BYTES + digest_type.size_bytes
            if len(body) >= at and digest(header, body[at:]) == body[ENTRY_HEADER_BYTES:at]:
                return digest_type
        return None
