"""Limits of the stored formats that several parts of a bookie share.

Source: docs/storage-format.md.
"""

from __future__ import annotations

# The longest record of a journal and of an entry log. It is part of the format. A reader applies this limit,
# not the configured frame limit, so an entry added under a larger frame limit stays readable. The storage
# stages no longer record.
RECORD_BYTES_MAX = 16 << 20
