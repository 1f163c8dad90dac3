"""Blobs: contents of any size under names, beside the logs of a namespace.

Inside: putting (``writer``), getting (``reader``), the nodes and what is left of interrupted uploads
(``uploads``), the calls of a namespace (``calls``). Not inside: the bytes of nodes
(``namespace.blob_nodes``). Entry point: ``Namespace.blobs``.
"""

from dlog.blobs.errors import (
    BlobConflictError,
    BlobExistsError,
    BlobGoneError,
    BlobNotFoundError,
    CorruptBlobError,
    InvalidBlobNameError,
    UploadLostError,
)
from dlog.blobs.reader import BlobReader
from dlog.blobs.uploads import BlobSweep
from dlog.blobs.writer import BlobWriter
from namespace.blob_nodes import Blob, BlobPiece

__all__ = [
    "Blob",
    "BlobConflictError",
    "BlobExistsError",
    "BlobGoneError",
    "BlobNotFoundError",
    "BlobPiece",
    "BlobReader",
    "BlobSweep",
    "BlobWriter",
    "CorruptBlobError",
    "InvalidBlobNameError",
    "UploadLostError",
]
