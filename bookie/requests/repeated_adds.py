"""An add of an entry that the bookie holds: accepted if it is the same entry, refused otherwise.

A writer packs an entry once and sends the same bytes to each bookie. A recovery and a re-replication read the
entry and pack it again, with their own LAC. So the ledger id, the entry id, the cumulative length and the
payload of an entry never change; its LAC may change, and its digest with it. An add that changes anything
else comes from a peer that does not own the ledger, and the bookie refuses it, whatever its flags.

A bookie never writes over the held bytes, not even with the same entry. It acknowledges the add once the held
entry is durable.

The digest covers the LAC. A bookie can check CRC32C and CRC32. It cannot check a MAC, because it does not
have the password. So the rule is (``compare``):

======================================  ====================================================================
held bytes                              the offered bytes are the same entry if
======================================  ====================================================================
equal to the offered ones               always
match a CRC                             they match the same CRC; length field and payload are equal
match no CRC, the ledger has none       length field and bytes 52.. are equal, and the LACs differ; 52 is the
                                        end of a MAC
match no CRC, the ledger has one        the held bytes are damaged: the offered ones replace them if they
                                        match a CRC
======================================  ====================================================================

Inside: this rule, the log of refusals. Not inside: finding the held entry (``storage.entry_reads``), fences
and keys (``session``).
Always: an entry that can be read and whose digest may be right is never replaced.

Source: LedgerRecoveryOp.java, LedgerFragmentReplicator.java, PendingAddOp.java for what is sent again;
docs/protocol.md 9.2.
"""

from __future__ import annotations

import enum

import attrs

from bookie.digest_checker import checksum_type
from bookie.ledger_record import LedgerRecord
from ledger.digest import ENTRY_HEADER_BYTES, DigestType
from ledger.runtime.log_lines import get_logger

LOGGED_LEDGERS_MAX = 1000  # refusals in more ledgers than these are counted only

_LAC = slice(16, 24)
_LENGTH = slice(24, 32)
_MAC_END = ENTRY_HEADER_BYTES + DigestType.MAC.size_bytes

log = get_logger(__name__)


class Comparison(enum.Enum):
    """The result of comparing an offered entry with the held one."""

    SAME = "the same entry"
    OTHER = "another payload, or another cumulative length"
    MAY_BE_DAMAGED = "the held bytes match no checksum, and the offered bytes match one"


def compare(held: bytes, offered: bytes, *, has_checksums: bool | None = None) -> Comparison:
    """Compare two bodies, of at least 32 bytes, with the same ledger id and entry id.

    Args:
        has_checksums: True if the ledger's digests are CRC32C or CRC32; None: not known.

    Returns:
        ``MAY_BE_DAMAGED`` only if ``has_checksums`` is None or True. With True the held bytes are damaged.
    """
    if held == offered:
        return Comparison.SAME
    is_as_long = len(held) == len(offered) and held[_LENGTH] == offered[_LENGTH]
    digest_type = None if has_checksums is False else checksum_type(held)
    if digest_type is not None:
        at = ENTRY_HEADER_BYTES + digest_type.size_bytes
        is_same = is_as_long and held[at:] == offered[at:] and checksum_type(offered, digest_type) is not None
        return Comparison.SAME if is_same else Comparison.OTHER
    if has_checksums is not False and checksum_type(offered) is not None:
        return Comparison.MAY_BE_DAMAGED
    if has_checksums:
        return Comparison.OTHER
    # One LAC has one MAC. With another LAC the MAC differs, and only the password could tell if it is right.
    is_same = is_as_long and held[_LAC] != offered[_LAC] and held[_MAC_END:] == offered[_MAC_END:]
    return Comparison.SAME if is_same else Comparison.OTHER


@attrs.frozen(eq=False)
class StoredEntry:
    """An entry as it was just read from the disk, for an add that waits for it."""

    ledger: LedgerRecord
    body: bytes | None  # None: its bytes are lost
    has_checksums: bool | None = None  # the ledger's digests, by its metadata; None: not known

    def compare(self, offered: bytes) -> Comparison | None:
        """The comparison with the offered bytes; None if these may replace the stored ones."""
        if self.body is None:
            return None
        found = compare(self.body, offered, has_checksums=self.has_checksums)
        if found is Comparison.MAY_BE_DAMAGED and self.has_checksums:
            return None
        return found


class RefusedAdds:
    """Counts the refused adds, and logs the first one of each ledger."""

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[int] = set()

    def __repr__(self) -> str:
        return f"<RefusedAdds, {self.count}>"

    def note(self, ledger_id: int, entry_id: int) -> None:
        """An add of an entry with other bytes was refused."""
        self.count += 1
        if ledger_id in self._logged or len(self._logged) >= LOGGED_LEDGERS_MAX:
            return
        self._logged.add(ledger_id)
        log.error(
            "ledger %d: a peer sent entry %d with other bytes than the ones stored here. The add is refused,"
            " and the entry is unchanged. The peer knows the ledger's key and is not its writer: check which"
            " machines may connect, and whether the ledger has a password. Further adds like this one are"
            " counted, not logged",
            ledger_id,
            entry_id,
        )
