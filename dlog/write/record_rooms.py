"""Which records a writer takes, how long they may be, and sealing them.

Inside: the limits with and without encryption, of one record and of several; the order of transaction ids.
Not inside: the encryption (``dlog.encryption``), which records share an entry (``batcher``).
Always: what is returned fits into the entries that the limits promise; nothing is taken yet.

Source: our own; docs/security.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlog.config import WriterConfig
from dlog.encryption import OVERHEAD_BYTES_MAX, PayloadOpener, PayloadSealer
from dlog.errors import RecordTooLongError, TxidOutOfOrderError
from dlog.format.arguments import as_txid
from dlog.format.attributes import check_room, check_rooms
from dlog.format.record import PAYLOAD_BYTES_MAX, TXID_MAX
from ledger.payloads import as_payload


class RecordRooms:
    """The limits and the keys of one writer."""

    def __init__(self, log: str, origin: str, config: WriterConfig) -> None:
        """Raises: what the provider of the keys raises."""
        self._log = log
        self.sealer: PayloadSealer | None = None
        self.opener: PayloadOpener | None = None
        if config.encryption is not None:
            self.sealer = PayloadSealer(origin, config.encryption)
            self.opener = PayloadOpener(log, config.encryption, origin=origin)
        self.payload_bytes_max = config.record_bytes_max
        self._takes_large = config.record_bytes_max > PAYLOAD_BYTES_MAX
        if self.sealer is not None and not self._takes_large:
            self.payload_bytes_max = min(config.record_bytes_max, PAYLOAD_BYTES_MAX - OVERHEAD_BYTES_MAX)
        # Of a payload with attributes. The overhead of the payload counts already.
        overhead = 0 if self.sealer is None or self._takes_large else OVERHEAD_BYTES_MAX
        self._bytes_max = self.payload_bytes_max - overhead

    def checked(
        self, payloads: Iterable[bytes | bytearray | memoryview], txids: Iterable[int] | None, last_txid: int
    ) -> tuple[list[bytes], list[int] | None]:
        """Several records and their transaction ids, as they may follow ``last_txid``.

        Raises: RecordTooLongError, TxidOutOfOrderError, ValueError, TypeError
        """
        records = [each if each.__class__ is bytes else as_payload(each) for each in payloads]
        if records and (longest := max(map(len, records))) > self.payload_bytes_max:
            raise RecordTooLongError(longest, self.payload_bytes_max)
        if txids is None:
            return records, None
        ids = [each if each.__class__ is int else as_txid(each) for each in txids]
        if len(ids) != len(records):
            raise ValueError(f"{len(records)} payloads and {len(ids)} txids: give one txid for each payload")
        for txid in ids:
            if not last_txid <= txid < TXID_MAX or txid < 0:
                raise TxidOutOfOrderError(self._log, txid, last_txid)
            last_txid = txid
        return records, ids

    def check_each(self, payloads: Sequence[bytes], attributes: Sequence[bytes | None] | None) -> None:
        """Raise if there is no room for a payload with its keys and headers."""
        check_rooms(payloads, attributes, self._bytes_max)

    def sealed(self, payload: bytes, txid: int, attributes: bytes) -> tuple[bytes, bytes]:
        """The payload and its attributes as they are stored; checked as in ``check_each``."""
        check_room(payload, attributes, self._bytes_max)
        if self.sealer is None:
            return payload, attributes
        return self.sealer.seal_with_attributes(payload, txid, attributes)

    def all_sealed(
        self, payloads: Sequence[bytes], txids: Sequence[int], attributes: Sequence[bytes | None] | None
    ) -> tuple[Sequence[bytes], Sequence[bytes | None] | None]:
        """The same for several records."""
        self.check_each(payloads, attributes)
        if self.sealer is None:
            return payloads, attributes
        if attributes is None:
            return [self.sealer.seal(*each) for each in zip(payloads, txids, strict=True)], None
        sealed = [self.sealer.seal_any(*each) for each in zip(payloads, txids, attributes, strict=True)]
        return [each for each, _ in sealed], [each for _, each in sealed]

    def has_large(self, payloads: Sequence[bytes]) -> bool:
        """True if one of them takes several entries."""
        return self._takes_large and max(map(len, payloads)) > PAYLOAD_BYTES_MAX
