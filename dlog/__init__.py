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
import sys
from typing import TYPE_CHECKING

from dlog.own_packages import check_own_packages as _check_own_packages

_check_own_packages(__file__)

if "eventlet.patcher" in sys.modules:  # else a program pays for the import when it uses a name
    from ledger.runtime.green_threads import check_import as _check_import

    _check_import()

# The public names. Each is imported when it is first used (``ledger.runtime.lazy_names``).
if TYPE_CHECKING:
    __all__: list[str]
    __version__: str
    from dlog import aio as aio
    from dlog import backup as backup
    from dlog import blobs as blobs
    from dlog import blocking as blocking
    from dlog import cluster as cluster
    from dlog import events as events
    from dlog import groups as groups
    from dlog import shards as shards
    from dlog import typed as typed
    from dlog import wal as wal
    from dlog.config import HealConfig as HealConfig
    from dlog.config import NamespaceConfig as NamespaceConfig
    from dlog.config import ReaderConfig as ReaderConfig
    from dlog.config import WriterConfig as WriterConfig
    from dlog.connect import open_namespace as open_namespace
    from dlog.description import EntryTotals as EntryTotals
    from dlog.description import LogDescription as LogDescription
    from dlog.description import SegmentDescription as SegmentDescription
    from dlog.errors import AccessDeniedError as AccessDeniedError
    from dlog.errors import BatchTooLongError as BatchTooLongError
    from dlog.errors import ConfigError as ConfigError
    from dlog.errors import CorruptLogError as CorruptLogError
    from dlog.errors import CursorConflictError as CursorConflictError
    from dlog.errors import DecryptionError as DecryptionError
    from dlog.errors import DiskFullError as DiskFullError
    from dlog.errors import DLogError as DLogError
    from dlog.errors import EmbeddedStoreError as EmbeddedStoreError
    from dlog.errors import EncryptionKeyError as EncryptionKeyError
    from dlog.errors import EndOfStreamError as EndOfStreamError
    from dlog.errors import EntryFormatError as EntryFormatError
    from dlog.errors import InvalidCursorNameError as InvalidCursorNameError
    from dlog.errors import InvalidLogNameError as InvalidLogNameError
    from dlog.errors import InvalidUriError as InvalidUriError
    from dlog.errors import LogExistsError as LogExistsError
    from dlog.errors import LogFencedError as LogFencedError
    from dlog.errors import LogLockedError as LogLockedError
    from dlog.errors import LogLockLostError as LogLockLostError
    from dlog.errors import LogMetadataError as LogMetadataError
    from dlog.errors import LogMovedError as LogMovedError
    from dlog.errors import LogMovingError as LogMovingError
    from dlog.errors import LogNotFoundError as LogNotFoundError
    from dlog.errors import LogReaderIdleError as LogReaderIdleError
    from dlog.errors import LogReaderStalledError as LogReaderStalledError
    from dlog.errors import LogRenamedError as LogRenamedError
    from dlog.errors import LogRenameError as LogRenameError
    from dlog.errors import LogTruncatedError as LogTruncatedError
    from dlog.errors import LogUnavailableError as LogUnavailableError
    from dlog.errors import LogWriteError as LogWriteError
    from dlog.errors import NamespaceClosedError as NamespaceClosedError
    from dlog.errors import NamespaceLostError as NamespaceLostError
    from dlog.errors import NamespaceNotBoundError as NamespaceNotBoundError
    from dlog.errors import PositionConflictError as PositionConflictError
    from dlog.errors import PromotionError as PromotionError
    from dlog.errors import ReadOnlyError as ReadOnlyError
    from dlog.errors import RecordOutcome as RecordOutcome
    from dlog.errors import RecordTooLongError as RecordTooLongError
    from dlog.errors import SequenceReusedError as SequenceReusedError
    from dlog.errors import TooFewBookiesError as TooFewBookiesError
    from dlog.errors import TxidOutOfOrderError as TxidOutOfOrderError
    from dlog.errors import TxidReusedError as TxidReusedError
    from dlog.errors import WriteError as WriteError
    from dlog.errors import WriterClosedError as WriterClosedError
    from dlog.errors import WriterOverloadedError as WriterOverloadedError
    from dlog.format.compression import Compression as Compression
    from dlog.format.record import PAYLOAD_BYTES_MAX as PAYLOAD_BYTES_MAX
    from dlog.format.record import Record as Record
    from dlog.ledgers import open_ledgers as open_ledgers
    from dlog.namespace_handle import Namespace as Namespace
    from dlog.operations.health import NamespaceHealth as NamespaceHealth
    from dlog.promotion.progress import PromotionProgress as PromotionProgress
    from dlog.promotion.progress import PromotionStatus as PromotionStatus
    from dlog.read.cursors import LogCursors as LogCursors
    from dlog.read.entry_verifier import EntryFault as EntryFault
    from dlog.read.entry_verifier import EntryVerification as EntryVerification
    from dlog.read.entry_verifier import FaultKind as FaultKind
    from dlog.read.gaps import Gap as Gap
    from dlog.read.gaps import GapCause as GapCause
    from dlog.read.log_reader import LogReader as LogReader
    from dlog.read.positioning import EARLIEST as EARLIEST
    from dlog.read.positioning import LATEST as LATEST
    from dlog.read.positioning import Start as Start
    from dlog.read.record_batch import RecordBatch as RecordBatch
    from dlog.read.segment_watch import SegmentChange as SegmentChange
    from dlog.read.segment_watch import SegmentChangeKind as SegmentChangeKind
    from dlog.read.segment_watch import SegmentWatch as SegmentWatch
    from dlog.read.verifier import LogProblem as LogProblem
    from dlog.read.verifier import LogVerification as LogVerification
    from dlog.repair.findings import Finding as Finding
    from dlog.repair.findings import FindingKind as FindingKind
    from dlog.repair.mending import LogCheck as LogCheck
    from dlog.repair.mending import LogRepair as LogRepair
    from dlog.repair.orphans import OrphanLedger as OrphanLedger
    from dlog.repair.orphans import OrphanOrigin as OrphanOrigin
    from dlog.repair.orphans import OrphanOutcome as OrphanOutcome
    from dlog.scan.scan import Scan as Scan
    from dlog.write.health import WriterHealth as WriterHealth
    from dlog.write.health import WriterState as WriterState
    from dlog.write.log_writer import LogWriter as LogWriter
    from dlog.write.pending import Pending as Pending
    from ledger.digest import DigestType as DigestType
    from ledger.runtime.statistics.histogram import Histogram as Histogram
    from ledger.runtime.statistics.snapshot import Statistics as Statistics
    from namespace.access_control.entries import AccessControlEntry as AccessControlEntry
    from namespace.access_control.entries import Denial as Denial
    from namespace.access_control.nodes import AccessControlEntries as AccessControlEntries
    from namespace.cursor_nodes import Cursor as Cursor
    from namespace.dlsn import DLSN as DLSN
    from namespace.properties import LogProperties as LogProperties
    from namespace.properties import PropertiesConflictError as PropertiesConflictError
    from namespace.segments.retention import Retention as Retention

# A library logs nothing unless its program configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

if not TYPE_CHECKING:  # else a type checker would take any name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("dlog-streams")
        from ledger.runtime.lazy_names import lazy_name

        return lazy_name(__name__, name)

    def __dir__() -> list[str]:
        return list(__getattr__("__all__"))
