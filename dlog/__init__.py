"""DLog: durable, replicated log streams, compatible with Apache DistributedLog and BookKeeper.

    async with dlog.open_namespace("file:///var/lib/shop/log") as ns:
        async with ns.open_writer("orders", create=True) as log:
            dlsn = await log.append(b"first")
        async with ns.open_reader("orders", follow=False) as reader:
            async for record in reader:
                print(record.dlsn, record.txid, record.payload)

``dlog.blocking`` offers the same without ``async``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dlog.config import NamespaceConfig, ReaderConfig, WriterConfig
from dlog.connect import open_namespace
from dlog.description import LogDescription, SegmentDescription
from dlog.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptLogError,
    CursorConflictError,
    DecryptionError,
    DLogError,
    EmbeddedStoreError,
    EncryptionKeyError,
    EndOfStreamError,
    EntryFormatError,
    InvalidCursorNameError,
    InvalidLogNameError,
    InvalidUriError,
    LogExistsError,
    LogFencedError,
    LogLockedError,
    LogMetadataError,
    LogNotFoundError,
    LogReaderStalledError,
    LogTruncatedError,
    LogUnavailableError,
    LogWriteError,
    NamespaceClosedError,
    NamespaceLostError,
    NamespaceNotBoundError,
    PositionConflictError,
    ReadOnlyError,
    RecordOutcome,
    RecordTooLongError,
    TxidOutOfOrderError,
    WriteError,
    WriterClosedError,
    WriterOverloadedError,
)
from dlog.format.compression import Compression
from dlog.format.dlsn import DLSN
from dlog.format.record import PAYLOAD_BYTES_MAX, Record
from dlog.metadata.cursor_nodes import Cursor
from dlog.metadata.retention import Retention
from dlog.namespace_handle import Namespace
from dlog.read.cursors import LogCursors
from dlog.read.log_reader import LogReader
from dlog.read.positioning import EARLIEST, LATEST, Start
from dlog.read.verifier import LogProblem, LogVerification
from dlog.write.log_writer import LogWriter
from dlog.write.pending import Pending
from ledger.digest import DigestType

# A library logs nothing unless its program configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from dlog import blocking as blocking
    from dlog import cluster as cluster

__all__ = [
    "DLSN",
    "EARLIEST",
    "LATEST",
    "PAYLOAD_BYTES_MAX",
    "AccessDeniedError",
    "Compression",
    "ConfigError",
    "CorruptLogError",
    "Cursor",
    "CursorConflictError",
    "DLogError",
    "DecryptionError",
    "DigestType",
    "EmbeddedStoreError",
    "EncryptionKeyError",
    "EndOfStreamError",
    "EntryFormatError",
    "InvalidCursorNameError",
    "InvalidLogNameError",
    "InvalidUriError",
    "LogCursors",
    "LogDescription",
    "LogExistsError",
    "LogFencedError",
    "LogLockedError",
    "LogMetadataError",
    "LogNotFoundError",
    "LogProblem",
    "LogReader",
    "LogReaderStalledError",
    "LogTruncatedError",
    "LogUnavailableError",
    "LogVerification",
    "LogWriteError",
    "LogWriter",
    "Namespace",
    "NamespaceClosedError",
    "NamespaceConfig",
    "NamespaceLostError",
    "NamespaceNotBoundError",
    "Pending",
    "PositionConflictError",
    "ReadOnlyError",
    "ReaderConfig",
    "Record",
    "RecordOutcome",
    "RecordTooLongError",
    "Retention",
    "SegmentDescription",
    "Start",
    "TxidOutOfOrderError",
    "WriteError",
    "WriterClosedError",
    "WriterConfig",
    "WriterOverloadedError",
    "blocking",
    "cluster",
    "open_namespace",
]


def __getattr__(name: str) -> Any:
    # Most programs need neither the blocking API nor a local cluster. So these are imported at the first use.
    if name in ("blocking", "cluster"):
        import importlib

        return importlib.import_module(f"dlog.{name}")
    raise AttributeError(f"module 'dlog' has no attribute {name!r}")
