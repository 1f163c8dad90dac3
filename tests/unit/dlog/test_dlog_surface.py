"""The public surface of ``dlog``: its names, its errors, its settings."""

# covers: dlog/config.py

from __future__ import annotations

import inspect
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

import dlog
import dlog.errors
from dlog.connect import client_config
from dlog.errors import as_dlog_error
from ledger import errors as ledger_errors
from ledger.auth.sasl import SaslAuth
from ledger.auth.token_auth import TokenAuth
from ledger.metadata_store import errors as store_errors
from ledger.placement.config import PlacementConfig, PlacementPolicy

PUBLIC = [
    "DLSN",
    "EARLIEST",
    "LATEST",
    "PAYLOAD_BYTES_MAX",
    "AccessControlEntries",
    "AccessControlEntry",
    "AccessDeniedError",
    "BatchTooLongError",
    "Compression",
    "ConfigError",
    "CorruptLogError",
    "Cursor",
    "CursorConflictError",
    "DLogError",
    "DecryptionError",
    "DiskFullError",
    "Denial",
    "DigestType",
    "EmbeddedStoreError",
    "EncryptionKeyError",
    "EndOfStreamError",
    "EntryFault",
    "EntryFormatError",
    "EntryTotals",
    "EntryVerification",
    "FaultKind",
    "Finding",
    "FindingKind",
    "InvalidCursorNameError",
    "InvalidLogNameError",
    "InvalidUriError",
    "LogCheck",
    "Gap",
    "GapCause",
    "HealConfig",
    "LogCursors",
    "LogDescription",
    "LogExistsError",
    "LogFencedError",
    "LogLockLostError",
    "LogLockedError",
    "LogMetadataError",
    "LogNotFoundError",
    "LogMovedError",
    "LogMovingError",
    "LogProblem",
    "LogProperties",
    "LogReader",
    "LogReaderIdleError",
    "LogReaderStalledError",
    "LogRenameError",
    "LogRenamedError",
    "LogRepair",
    "LogTruncatedError",
    "LogUnavailableError",
    "LogVerification",
    "LogWriteError",
    "LogWriter",
    "Namespace",
    "NamespaceClosedError",
    "NamespaceConfig",
    "NamespaceHealth",
    "NamespaceLostError",
    "NamespaceNotBoundError",
    "OrphanLedger",
    "OrphanOrigin",
    "OrphanOutcome",
    "Pending",
    "PositionConflictError",
    "PropertiesConflictError",
    "PromotionError",
    "PromotionProgress",
    "PromotionStatus",
    "ReadOnlyError",
    "ReaderConfig",
    "Record",
    "RecordBatch",
    "RecordOutcome",
    "RecordTooLongError",
    "Retention",
    "Scan",
    "SequenceReusedError",
    "SegmentChange",
    "SegmentChangeKind",
    "SegmentDescription",
    "SegmentWatch",
    "Histogram",
    "Start",
    "Statistics",
    "TooFewBookiesError",
    "TxidOutOfOrderError",
    "TxidReusedError",
    "WriteError",
    "WriterClosedError",
    "WriterHealth",
    "WriterConfig",
    "WriterOverloadedError",
    "WriterState",
    "backup",
    "blobs",
    "blocking",
    "cluster",
    "aio",
    "open_ledgers",
    "open_namespace",
    "events",
    "groups",
    "shards",
    "typed",
    "wal",
]


def test_the_public_names_are_these() -> None:
    assert sorted(dlog.__all__) == sorted(PUBLIC)
    assert all(getattr(dlog, name) is not None for name in PUBLIC)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dlog.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_every_public_object_has_a_docstring() -> None:
    for name in PUBLIC:
        thing = getattr(dlog, name)
        if inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing):
            assert inspect.getdoc(thing), name


def test_importing_dlog_imports_nothing_until_a_name_is_used() -> None:
    heavy = ["trio", "attr", "attrs", "ledger", "namespace", "bookie", "asyncio", "ssl", "google", "crc32c"]
    heavy += ["opentelemetry"]
    heavy += ["kazoo", "rocksdict", "click", "pyspark", "sqlite3", "snappy", "cramjam", "dlog.errors"]
    script = f"import sys, dlog; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_using_dlog_imports_no_server_no_zookeeper_and_no_spark() -> None:
    heavy = ["kazoo", "rocksdict", "bookie", "click", "pyspark", "sqlite3"]
    script = (
        "import sys, dlog; names = set(dlog.__all__) - {'cluster', 'open_ledgers'};"
        "[getattr(dlog, name) for name in sorted(names)];"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_first_append_to_a_directory_imports_no_repair_and_no_authentication(tmp_path: Path) -> None:
    heavy = ["dlog.repair", "dlog.bulk.attaching", "dlog.read.verifier", "dlog.read.entry_verifier"]
    heavy += ["ledger.auth.sasl", "ledger.auth.tls", "ledger.auth.token_auth", "bookie.http", "asyncio"]
    heavy += ["dlog.aio", "kazoo", "click", "statistics", "decimal", "difflib", "opentelemetry"]
    script = f"""
import sys, dlog.blocking
with dlog.blocking.open_namespace({tmp_path.as_uri()!r}) as namespace:
    with namespace.open_writer("log", create=True) as writer:
        print(writer.append(b"first"), [m for m in {heavy} if m in sys.modules])
"""
    # A variable that looks like a setting is compared with all of them.
    env = {name: value for name, value in os.environ.items() if not name.startswith("DLOG_")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "1:0:0 []"


def test_a_public_name_is_looked_up_once() -> None:
    script = "import dlog; dlog.DLSN; print('DLSN' in vars(dlog), dlog.DLSN.__module__, 'DLSN' in dir(dlog))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "namespace.dlsn", "True"]


@pytest.mark.parametrize(
    "exc",
    [
        ledger_errors.NotEnoughBookiesError(3, 1),
        ledger_errors.LedgerReadError(1, 2, {"b": ledger_errors.BookieUnavailableError("b", "refused")}),
        ledger_errors.NoSuchLedgerError(4),
        ledger_errors.MetadataFormatError("bad"),
        ledger_errors.CorruptEntryError(1, 2, "digest"),
        store_errors.ConnectionLostError("/x"),
        store_errors.SessionExpiredError("/x"),
        store_errors.StoreUnreachableError("no reply"),
        store_errors.StoreFormatError("bad"),
        store_errors.NoNodeError("/x"),
        store_errors.InvalidStoreAddressError("URI 'x': it has no scheme"),
    ],
)
def test_every_error_of_ledger_and_namespace_is_translated(exc: Exception) -> None:
    ours = as_dlog_error(exc, "log", "doing something")
    assert isinstance(ours, dlog.DLogError)
    assert len(str(ours)) > 10


def test_an_error_about_a_record_has_its_outcome() -> None:
    error = dlog.LogWriteError("log", "no bookies")
    assert error.outcome is dlog.RecordOutcome.UNKNOWN
    other = error.about(dlog.RecordOutcome.NOT_WRITTEN)
    assert type(other) is dlog.LogWriteError
    assert "not written" in str(other)
    assert error.outcome is dlog.RecordOutcome.UNKNOWN
    assert other.log == "log"


def test_a_namespace_shared_with_java_refuses_what_java_cannot_read() -> None:
    snappy = dlog.NamespaceConfig(compression=dlog.Compression.SNAPPY)
    with pytest.raises(dlog.ConfigError, match=r"SNAPPY.*use LZ4"):
        snappy.for_scheme("distributedlog")
    assert snappy.for_scheme("file").compression is dlog.Compression.SNAPPY
    ours = dlog.NamespaceConfig(compression=dlog.Compression.SNAPPY, shared_with_java=False)
    assert ours.for_scheme("distributedlog").compression is dlog.Compression.SNAPPY
    with pytest.raises(dlog.ConfigError, match=r"CRC32C.*CRC32 only"):
        dlog.NamespaceConfig(digest_type=dlog.DigestType.CRC32C).for_scheme("distributedlog")


def test_tls_is_refused_for_a_directory() -> None:
    config = dlog.NamespaceConfig(tls=ssl.create_default_context())
    assert config.for_scheme("distributedlog").tls is config.tls
    with pytest.raises(dlog.ConfigError, match="tls"):
        config.for_scheme("file")


def test_authentication_is_refused_for_a_directory_and_reaches_the_client(tmp_path: Path) -> None:
    auth = SaslAuth(username="alice", password_file=tmp_path / "password")
    config = dlog.NamespaceConfig(auth=auth)
    assert client_config(config.for_scheme("distributedlog")).transport.auth is auth
    with pytest.raises(dlog.ConfigError, match="auth: a directory"):
        config.for_scheme("file")
    with pytest.raises(dlog.ConfigError, match="over TLS only"):
        dlog.NamespaceConfig(auth=TokenAuth(tmp_path / "token"))


def test_placement_is_refused_for_a_directory() -> None:
    config = dlog.NamespaceConfig(placement=PlacementConfig(policy=PlacementPolicy.RACK_AWARE))
    assert config.for_scheme("distributedlog").placement is config.placement
    with pytest.raises(dlog.ConfigError, match="placement: a directory has one bookie"):
        config.for_scheme("file")


def test_defaults_follow_the_kind_of_namespace() -> None:
    cluster = dlog.NamespaceConfig().for_scheme("distributedlog")
    assert (cluster.ensemble_size, cluster.write_quorum, cluster.ack_quorum) == (3, 3, 2)
    assert cluster.digest_type is dlog.DigestType.CRC32
    directory = dlog.NamespaceConfig().for_scheme("file")
    assert (directory.ensemble_size, directory.write_quorum, directory.ack_quorum) == (1, 1, 1)
    assert directory.digest_type is dlog.DigestType.CRC32C


def test_contradicting_settings_are_refused() -> None:
    with pytest.raises(dlog.ConfigError, match="ack_quorum=3"):
        dlog.NamespaceConfig(ensemble_size=3, write_quorum=2, ack_quorum=3)
    with pytest.raises(dlog.ConfigError, match="at most"):
        dlog.WriterConfig(entry_bytes_target=2_000_000)
    with pytest.raises(ValueError, match="segment_bytes_max"):
        dlog.WriterConfig(segment_bytes_max=0)
