"""A scrubber of a directory that a test damages."""

from __future__ import annotations

from typing import Any

import trio

from bookie.damage.scrubber import Scrubber, ScrubConfig
from bookie.digest_checker import DigestTypeOf
from ledger.digest import DigestType
from tests.fakes.directory_by_hand import Directory


def scrubber_of(directory: Directory, **config: Any) -> Scrubber:
    return Scrubber(
        directory.entries,
        ScrubConfig(bytes_per_s=1 << 40, **config),
        digest_type_of=metadata_of(directory),
    )


def metadata_of(directory: Directory) -> DigestTypeOf:
    async def digest_type_of(ledger_id: int) -> DigestType | None:
        await trio.lowlevel.checkpoint()
        directory.asked.append(ledger_id)
        return directory.digest_types.get(ledger_id, DigestType.CRC32C)

    return digest_type_of


def flip(directory: Directory, ledger_id: int, entry_id: int, at: int, mask: int = 1) -> None:
    """Damage the byte ``at`` of an entry on the disk."""
    location = directory.index.locate(ledger_id, entry_id)[0]
    path = directory.path / f"{location >> 32:x}.log"
    data = bytearray(path.read_bytes())
    data[(location & 0xFFFF_FFFF) + at] ^= mask
    path.write_bytes(data)


async def found_in(directory: Directory) -> list[tuple[int, int]]:
    return [(error.ledger_id, error.entry_id) for error in await scrubber_of(directory).scrub()]
