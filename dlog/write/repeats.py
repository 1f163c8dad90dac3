"""Whether an append repeats a record that the log has.

Not inside: finding the record (``dlog.read.read_only_log``).
Always: a record that cannot be compared counts as the one that is repeated, as its transaction id says.

Source: our own; docs/guide.md, "Repeated appends".
"""

from __future__ import annotations

from dlog.encryption import PayloadOpener, sealed_with
from dlog.errors import DecryptionError, EncryptionKeyError
from dlog.format.large_record import rest_of
from dlog.format.record import Record


def is_repeat_of(record: Record, payload: bytes, opener: PayloadOpener | None) -> bool:
    """False if the record, as it is stored, has another payload.

    Args:
        record: Of a large record that was cut into entries the last part. Only this part is compared.
        opener: Decrypts the records of this log; None: the log's writer does not encrypt.
    """
    stored = record.payload
    if opener is not None:
        try:
            stored = opener.open(stored, record.txid, record.dlsn)
        except (DecryptionError, EncryptionKeyError):
            # A part of a large record, a record from before encryption, or one with a key that is gone.
            return True
    elif sealed_with(stored) is not None:
        return True  # this writer has no key
    return stored in (payload, rest_of(payload))
