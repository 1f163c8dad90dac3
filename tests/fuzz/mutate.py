"""Changes to valid bytes: small ones that keep most of the structure, and arbitrary bytes.

Inside: the mutations. Not inside: how a format repairs its checksums (``targets``).
Always: the random generator decides everything, so one seed gives the same bytes again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

INPUT_BYTES_MAX = 64 * 1024
_NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    127,
    128,
    255,
    256,
    4096,
    65535,
    1 << 20,
    (1 << 31) - 1,
    -(1 << 31),
    (1 << 63) - 1,
)
_TEXTS = (
    *(b"0", b"-1", b"1e999", b"NaN", b"9" * 30, b"\xc2\xb2", b"\xff\xfe", b"\n", b"\0", b'"', b"{", b"\\"),
    *(b":", b";", b"//", b"..", b"%00", b"${env:X}", b"=", b",", b"\xe2\x80\xae", b"\x1b[2J"),
)


class Mutator:
    """Makes inputs from seeds."""

    def __init__(self, rng: random.Random, tokens: Sequence[bytes] = ()) -> None:
        self._rng = rng
        self._tokens = (*_TEXTS, *tokens)
        self._changes: tuple[Callable[[bytearray, Sequence[bytes]], None], ...] = (
            *(self._flip_bit, self._set_byte, self._number, self._number, self._near_number, self._delete),
            *(self._insert, self._token, self._repeat, self._truncate, self._splice, self._digit),
        )

    def mutate(self, seeds: Sequence[bytes]) -> bytes:
        """One input: usually a seed with one to six changes, sometimes arbitrary bytes."""
        rng = self._rng
        if not seeds or rng.random() < 0.05:
            return rng.randbytes(rng.choice((0, 1, 4, 20, 64, 300, 2000)))
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 6))):
            rng.choice(self._changes)(data, seeds)
        del data[INPUT_BYTES_MAX:]
        return bytes(data)

    def _at(self, data: bytearray, width: int = 1) -> int:
        """An offset; headers, at the front, are more likely."""
        end = max(len(data) - width, 0)
        return self._rng.randint(0, min(end, 40) if self._rng.random() < 0.6 else end)

    def _flip_bit(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        if data:
            data[self._at(data)] ^= 1 << self._rng.randrange(8)

    def _set_byte(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        if data:
            data[self._at(data)] = self._rng.choice((0, 1, 0x7F, 0x80, 0xFF, self._rng.randrange(256)))

    def _number(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        width = self._rng.choice((1, 2, 4, 4, 8, 8))
        number = self._rng.choice((*_NUMBERS, len(data), len(data) - 1, len(data) + 1, len(data) * 255))
        at = self._at(data, width)
        data[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "big")

    def _near_number(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        """A stored number that is slightly wrong: a count or a length beside the truth."""
        width = self._rng.choice((1, 2, 4, 8))
        at = self._at(data, width)
        number = int.from_bytes(data[at : at + width], "big") + self._rng.choice((-8, -1, 1, 4, 8))
        data[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "big")

    def _delete(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        at = self._at(data)
        del data[at : at + self._rng.choice((1, 1, 4, 8, 20, 200))]

    def _insert(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        at = self._at(data)
        data[at:at] = self._rng.randbytes(self._rng.choice((1, 1, 4, 8, 100)))

    def _token(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        at = self._at(data)
        data[at : at + self._rng.choice((0, 0, 1, 3))] = self._rng.choice(self._tokens)

    def _repeat(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        """The same piece many times: nesting, long lists, decompression."""
        at = self._at(data)
        piece = bytes(data[at : at + self._rng.choice((1, 2, 8, 24, 60))])
        data[at:at] = piece * self._rng.choice((1, 2, 10, 100, 2000))

    def _truncate(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        del data[self._at(data) :]

    def _splice(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        other = self._rng.choice(seeds)
        at, begin = self._at(data), self._rng.randint(0, len(other))
        data[at:] = other[begin:]

    def _digit(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        places = [at for at, byte in enumerate(data[:2000]) if 0x30 <= byte <= 0x39]
        if places:
            at = self._rng.choice(places)
            data[at : at + 1] = self._rng.choice((b"", b"-", b"0", b"9", b"9" * 20, b"1.5", b" "))
