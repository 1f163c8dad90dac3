"""Rows on their way to the driver, and what tells the rows of one batch from others.

Inside: a block (rows as a few large objects), the contents of a batch (rows and a digest) as they are stored.
Not inside: Spark, namespaces.
Always: the digest does not depend on the order of rows and their division among tasks, because Spark may run
a batch again with other tasks.

Source: our own; docs/spark.md.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise

import attrs
from attrs.validators import instance_of

from dlog.format.attributes import decode_attributes

ROW_DIGEST_BYTES = 8
_SUM_MASK = (1 << 8 * ROW_DIGEST_BYTES) - 1
_TXID = struct.Struct(">q")


@attrs.frozen
class Block:
    """Rows of one stream. Pickling it costs no time for each row, as a list of payloads would."""

    data: bytes = attrs.field(repr=False)  # the payloads, one after the other
    lengths: array[int] = attrs.field(repr=False)
    txids: array[int] | None = attrs.field(default=None, repr=False)  # None: the batch has one for all
    attributes: tuple[bytes | None, ...] | None = attrs.field(default=None, repr=False)  # encoded

    @classmethod
    def of(
        cls,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None = None,
        attributes: Sequence[bytes | None] | None = None,
    ) -> Block:
        """The block of these rows. ``attributes`` are as ``dlog.format.attributes`` encodes them."""
        return cls(
            b"".join(payloads),
            array("I", map(len, payloads)),
            None if txids is None else array("q", txids),
            None if attributes is None else tuple(attributes),
        )

    @property
    def size_bytes(self) -> int:
        """Of the payloads, lengths, transaction ids, keys and headers."""
        rest = 0 if self.txids is None else self.txids.itemsize * len(self.txids)
        rest += sum(len(each) for each in self.attributes or () if each is not None)
        return len(self.data) + self.lengths.itemsize * len(self.lengths) + rest

    def payloads(self) -> list[bytes]:
        """The payload of each row."""
        data = self.data
        return [data[first:stop] for first, stop in pairwise(accumulate(self.lengths, initial=0))]

    def keys_and_headers(self) -> tuple[list[bytes | None], list[dict[str, bytes]]] | tuple[None, None]:
        """The key and the headers of each row; None if no row has any."""
        if self.attributes is None:
            return None, None
        decoded = [(None, (), None) if each is None else decode_attributes(each) for each in self.attributes]
        return [key for key, _, _ in decoded], [dict(headers) for _, headers, _ in decoded]


@attrs.frozen
class Contents:
    """How many rows there are for a stream, and the sum of their digests."""

    rows: int = 0
    digests: int = 0

    def __add__(self, other: Contents) -> Contents:
        return Contents(self.rows + other.rows, (self.digests + other.digests) & _SUM_MASK)

    @classmethod
    def of(
        cls,
        payloads: Iterable[bytes],
        txids: Iterable[int] | None,
        attributes: Iterable[bytes | None] | None = None,
    ) -> Contents:
        """The contents of these rows."""
        if txids is not None:
            pack = _TXID.pack
            payloads = [pack(txid) + payload for txid, payload in zip(txids, payloads, strict=True)]
        if attributes is None:
            found = [blake2b(payload, digest_size=ROW_DIGEST_BYTES).digest() for payload in payloads]
        else:
            found = [
                blake2b(payload, digest_size=ROW_DIGEST_BYTES, salt=_salt(each)).digest()
                for payload, each in zip(payloads, attributes, strict=True)
            ]
        digests = sum(struct.unpack(f">{len(found)}Q", b"".join(found)))
        return cls(len(found), digests & _SUM_MASK)


def _salt(attributes: bytes | None) -> bytes:
    """Tells rows with different keys and headers apart; a row without has the digest it always had."""
    return b"" if attributes is None else blake2b(attributes, digest_size=blake2b.SALT_SIZE).digest()


def together(contents: Iterable[Mapping[str, Contents]]) -> dict[str, Contents]:
    """The contents of several parts, by stream."""
    total: dict[str, Contents] = {}
    for each in contents:
        for stream, added in each.items():
            total[stream] = total.get(stream, Contents()) + added
    return total


@attrs.frozen
class BatchRecord:
    """The stored digest of the last batch of a series."""

    number: int = attrs.field(validator=instance_of(int))
    rows: int = attrs.field(validator=instance_of(int))
    digest: str = attrs.field(validator=instance_of(str))

    @classmethod
    def of(cls, number: int, contents: Mapping[str, Contents]) -> BatchRecord:
        """The record of a batch with these rows."""
        said = [[stream, each.rows, each.digests] for stream, each in sorted(contents.items()) if each.rows]
        digest = blake2b(json.dumps(said).encode(), digest_size=16).hexdigest()
        return cls(number, sum(each.rows for each in contents.values()), digest)

    def encode(self) -> str:
        """As it is stored in a property."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def decode(cls, text: str | None, number: int) -> BatchRecord | None:
        """The stored record of a batch; None if nothing is known of its contents, as for older batches."""
        if text is None:
            return None
        try:
            found = cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError):
            return None  # of another version
        return found if found.number == number else None
