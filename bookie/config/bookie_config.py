"""The configuration of a bookie: Apache's ``bk_server.conf``, read into one small frozen class for each part.

Inside: the classes, the defaults, the reading of a file. Not inside: the syntax (``properties``), the table
of keys (``config.keys``), typed values (``settings``).
Always: an error or ``warnings`` names each key that has no effect. It is an error if ignoring the key
would weaken a promise: access control, permission to write.

Source: ServerConfiguration.java, conf/bk_server.conf; docs/protocol.md 10.3.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from bookie.auth.tls import TlsConfig
from bookie.cluster.autorecovery import AutoRecoveryConfig
from bookie.cluster.startup_check import StartupCheckConfig
from bookie.config.admin_config import AdminConfig, read_admin
from bookie.config.autorecovery_settings import read_auto_recovery
from bookie.config.gc_settings import read_compaction, read_gc, read_new_ledgers, read_per_ledger_logs
from bookie.config.key_check import check_keys
from bookie.config.properties import PropertiesError, Setting, parse_properties
from bookie.config.security_settings import (
    read_client_authentication,
    read_permissions,
    read_tls,
    refuse_unobeyed,
)
from bookie.config.server_settings import read_server
from bookie.config.settings import Settings, holds_secret
from bookie.damage.scrubber import ScrubConfig
from bookie.disk.descriptor_limit import descriptor_limit
from bookie.disk.fullness import FullnessConfig
from bookie.entrylog.reader import READ_BYTES_MAX
from bookie.errors import BookieConfigError
from bookie.gc.collector import GcConfig
from bookie.healing.integrity import IntegrityConfig
from bookie.identity.address import AddressConfig
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.index.page_cache import PageIndexConfig
from bookie.journal.files import JournalConfig
from bookie.journal.format import ALIGNMENT_BYTES
from bookie.requests.new_ledgers import NewLedgersConfig
from bookie.requests.permissions import PermissionsConfig
from bookie.server.config import ServerConfig
from bookie.storage.config import StorageConfig
from bookie.storage.entry_reads import ReadConfig
from ledger.auth.sasl import SaslAuth
from ledger.catalog.paths import Layout
from ledger.errors import LocationError
from ledger.metadata_store.errors import InvalidPathError, InvalidStoreAddressError
from ledger.metadata_store.service_uri import ServiceUri, parse_metadata_service_uri
from ledger.metadata_store.store import check_path
from ledger.placement.topology import parse_location
from ledger.runtime.secret_file import SecretFileError, SecretOf, check_secret

_MIB = 1 << 20
_INDEX_PAGES_BYTES = 64 * _MIB
_INDEX_KINDS = {
    "DbLedgerStorage": IndexKind.CHUNKS,
    "SortedLedgerStorage": IndexKind.PAGES,
    "InterleavedLedgerStorage": IndexKind.PAGES,
}
_LAYOUTS = {layout.uri_name: layout for layout in Layout if layout.uri_name}


@attrs.frozen(kw_only=True)
class MetadataConfig:
    """The metadata store of the cluster."""

    hosts: str  # ZooKeeper's connect string
    ledgers_root: str = "/ledgers"
    layout: Layout | None = None  # None: the layout of the cluster
    session_timeout_ms: int = 10_000


@attrs.frozen(kw_only=True)
class DirectoryConfig:
    """The directories as written in the file; the cookie has the same text."""

    journal: tuple[str, ...]
    ledger: tuple[str, ...]
    index: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class BookieConfig:
    """The whole configuration of one bookie."""

    metadata: MetadataConfig
    directories: DirectoryConfig
    storage: StorageConfig
    startup_check: StartupCheckConfig = attrs.field(factory=StartupCheckConfig)
    integrity: IntegrityConfig = attrs.field(factory=IntegrityConfig)
    address: AddressConfig = attrs.field(factory=AddressConfig)
    server: ServerConfig = attrs.field(factory=ServerConfig)
    tls: TlsConfig | None = None
    secrets_refresh_s: float = 0  # certificates and secrets are read again so often; 0: on SIGHUP only
    permissions: PermissionsConfig | None = None  # None: authenticated peers may do everything
    client_auth: SaslAuth | None = None  # for reading from other bookies
    fullness: FullnessConfig = attrs.field(factory=FullnessConfig)
    read_only: bool = False
    persist_status: bool = False  # keep over restarts whether it was read-only
    sync_adds: bool = True
    network_location: str | None = None  # announced for placement by racks; Apache has no such key
    admin: AdminConfig | None = None  # HTTP for operators
    auto_recovery: AutoRecoveryConfig | None = None  # in this process; None: only elsewhere
    gc: GcConfig = attrs.field(factory=GcConfig)
    new_ledgers: NewLedgersConfig = attrs.field(factory=NewLedgersConfig)
    shown: Mapping[str, str] = attrs.field(factory=dict, repr=False, eq=False)  # the file, without secrets
    warnings: tuple[str, ...] = ()  # to be logged at the start, such as keys without effect


def load_config(
    path: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    strict: bool = False,
    with_auto_recovery: bool = False,
) -> BookieConfig:
    """Read a ``bk_server.conf``.

    Args:
        strict: An unknown key is an error, and not only a warning.
        with_auto_recovery: As if the file had ``autoRecoveryDaemonEnabled=true``, whatever it has.

    Raises:
        BookieConfigError: It cannot be read, or a key or value in it cannot be obeyed, or an unknown key may
            be meant to restrict or to protect something.
    """
    text = read_text(path)
    config = parse_config(text, str(path), environment, strict=strict, with_auto_recovery=with_auto_recovery)
    if holds_secret(parse_properties(text, environment)):
        try:
            check_secret(path, SecretOf.APACHE)
        except (OSError, SecretFileError) as exc:
            raise BookieConfigError(f"a password is in the configuration {exc}") from exc
    return config


def read_text(path: Path) -> str:
    """The text of a ``bk_server.conf``; ``BookieConfigError`` if it cannot be read."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return path.read_text("latin-1")  # the encoding that java.util.Properties expects
    except OSError as exc:
        raise BookieConfigError(f"configuration {path} cannot be read: {exc.strerror or exc}") from exc


def parse_config(
    text: str,
    source: str,
    environment: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
    with_auto_recovery: bool = False,
) -> BookieConfig:
    """Read the text of a ``bk_server.conf``; ``source`` is for messages.

    Raises:
        BookieConfigError: As ``load_config``.
    """
    try:
        parsed = parse_properties(text, environment)
    except PropertiesError as exc:
        raise BookieConfigError(f"{source}, {exc}") from exc
    if with_auto_recovery:
        key = "autoRecoveryDaemonEnabled"
        parsed[key] = Setting(("true",), parsed[key].line if key in parsed else 1)
    return build_config(parsed, source, strict=strict)


def build_config(parsed: Mapping[str, Setting], source: str, *, strict: bool = False) -> BookieConfig:
    """The configuration of parsed keys. Raises as ``load_config``."""
    settings = Settings(source, parsed)
    warnings = check_keys(settings, source, parsed, strict=strict)
    _refuse_unsafe_keys(settings, warnings)
    directories = _directories(settings)
    storage = _storage(settings, directories)
    return BookieConfig(
        metadata=_metadata(settings),
        directories=directories,
        storage=storage,
        startup_check=_startup_check(settings),
        address=_address(settings),
        server=read_server(settings, storage),
        tls=read_tls(settings),
        secrets_refresh_s=settings.integer(
            "tlsCertFilesRefreshDurationSeconds", 0, most=2**31 - 1, unit="seconds"
        ),
        permissions=read_permissions(settings),
        client_auth=read_client_authentication(settings),
        fullness=_fullness(settings),
        read_only=settings.boolean("forceReadOnlyBookie", False),
        persist_status=settings.boolean("persistBookieStatusEnabled", False),
        sync_adds=settings.boolean("journalSyncData", True),
        network_location=_network_location(settings),
        admin=read_admin(settings),
        auto_recovery=read_auto_recovery(settings, warnings),
        gc=read_gc(settings),
        new_ledgers=read_new_ledgers(settings),
        shown=settings.shown_values(),
        warnings=tuple(warnings),
    )


def _refuse_unsafe_keys(settings: Settings, warnings: list[str]) -> None:
    warnings += refuse_unobeyed(settings)
    if not settings.boolean("dataIntegrityChecking", True):
        warnings.append(
            "dataIntegrityChecking=false: if its disks have lost acknowledged entries, this bookie denies"
            " them, and recoveries close ledgers without them"
        )
    if settings.boolean("skipReplayJournalInvalidRecord", False):
        warnings.append(
            "skipReplayJournalInvalidRecord=true: the replay skips damage in the journal, so each start puts"
            " all ledgers in limbo and copies the missing entries; remove it after one start"
        )
    if not settings.boolean("journalWriteData", True):
        warnings.append("journalWriteData=false: has no effect; the journal is always written")
    if not settings.boolean("useTransactionalCompaction", True):
        warnings.append("useTransactionalCompaction=false: has no effect; compaction is always transactional")
    if not settings.boolean("journalSyncData", True):
        warnings.append(
            "journalSyncData=false: adds are acknowledged before they are synced; a power failure loses"
            " acknowledged entries of this bookie"
        )
    users = settings.texts("permittedStartupUsers")
    if users and getpass.getuser() not in users:
        raise settings.error(
            "permittedStartupUsers", f"the user who starts it, {getpass.getuser()}, to be in it"
        )
    if settings.boolean("disableServerSocketBind", False):
        raise settings.error("disableServerSocketBind", "false: this bookie always listens on bookiePort")


def _network_location(settings: Settings) -> str | None:
    text = settings.text("networkLocation")
    try:
        return None if text is None else parse_location(text)
    except LocationError as exc:
        raise settings.error("networkLocation", f"such as /rack or /region/rack ({exc})") from exc


def _metadata(settings: Settings) -> MetadataConfig:
    timeout_ms = settings.integer("zkTimeout", 10_000, least=100, most=2**31 - 1, unit="milliseconds")
    root = settings.text("zkLedgersRootPath") or "/ledgers"
    hosts = settings.texts("zkServers")
    manager = settings.text("ledgerManagerFactoryClass") or settings.text("ledgerManagerType")
    # Apache's reader splits the value at commas and loses all hosts but the first. Here all hosts count.
    parts = settings.texts("metadataServiceUri")
    uri: ServiceUri
    try:
        if parts:
            uri = parse_metadata_service_uri(",".join(parts))
        elif hosts:
            uri = parse_metadata_service_uri(f"zk+null://{';'.join(hosts)}{check_path(root)}")
        else:
            raise settings.error(
                "metadataServiceUri", "the cluster, such as zk+null://localhost:2181/ledgers"
            )
    except (InvalidStoreAddressError, InvalidPathError) as exc:
        key = "metadataServiceUri" if parts else "zkServers"
        raise settings.error(key, f"zk+null://host:port;host:port/ledgers or its parts ({exc})") from exc
    layout = _LAYOUTS[uri.layout] if uri.layout else None
    if layout is None and manager is not None and not parts:
        layout = next(
            (one for one in Layout if manager == one.uri_name or manager.rpartition(".")[2] == one.value),
            None,
        )
        if layout is None:
            key = (
                "ledgerManagerFactoryClass"
                if "ledgerManagerFactoryClass" in settings
                else "ledgerManagerType"
            )
            raise settings.error(key, f"one of {', '.join(sorted(_LAYOUTS))} or its factory's class")
    return MetadataConfig(
        hosts=uri.hosts, ledgers_root=uri.ledgers_root, layout=layout, session_timeout_ms=timeout_ms
    )


def _directories(settings: Settings) -> DirectoryConfig:
    # ``journalDirectory`` is the older spelling, which old files still have.
    journal_by_old_key = settings.texts("journalDirectory")
    journal = settings.texts("journalDirectories") or journal_by_old_key
    ledger = settings.texts("ledgerDirectories")
    for key, directories in (("journalDirectories", journal), ("ledgerDirectories", ledger)):
        if not directories:
            # Apache's default is in the system's temporary directory, which a reboot clears.
            raise settings.error(key, "a directory that survives a reboot")
    index = settings.texts("indexDirectories")
    for key, directories in (
        ("journalDirectories", journal),
        ("ledgerDirectories", ledger),
        ("indexDirectories", index),
    ):
        if len(set(map(Path, directories))) != len(directories):
            raise settings.error(key, "each directory once")
    if index and len(index) != len(ledger):
        raise settings.error(
            "indexDirectories",
            f"one for each of the {len(ledger)} ledgerDirectories, in their order, or none",
        )
    return DirectoryConfig(
        journal=journal,
        ledger=ledger,
        index=index,
    )


def _startup_check(settings: Settings) -> StartupCheckConfig:
    return StartupCheckConfig(
        allow_expansion=settings.boolean("allowStorageExpansion", False),
        replace_lost_directories=settings.boolean("dataIntegrityStampMissingCookies", False),
        # Apache's default is false: then a bookie that lost its disk makes recoveries cut off entries.
        limbo=settings.boolean("dataIntegrityChecking", True),
        sync_adds=settings.boolean("journalSyncData", True),
    )


def _storage(settings: Settings, directories: DirectoryConfig) -> StorageConfig:
    most = 2**31 - 1
    config = StorageConfig(
        journal_directories=_paths(directories.journal),
        ledger_directories=_paths(directories.ledger),
        index_directories=_paths(directories.index),
        entry_log_bytes_max=settings.integer("logSizeLimit", 1 << 30, least=8192, most=1 << 30, unit="bytes"),
        sync_interval_s=_sync_interval_s(settings),
        flush_interval_s=settings.integer("flushInterval", 10_000, least=1, unit="milliseconds") / 1000,
        reads=_reads(settings, directories),
        scrub=_scrub(settings),
        skip_damaged_journal=settings.boolean("skipReplayJournalInvalidRecord", False),
        index=_index(settings, len(directories.ledger)),
        compaction=read_compaction(settings),
        per_ledger_logs=read_per_ledger_logs(settings),
    )
    cache_bytes = settings.integer(
        "skipListSizeLimit", config.write_cache_bytes_max, least=1 << 16, unit="bytes"
    )
    queue_mib = settings.integer("journalMaxMemorySizeMb", 0, least=1, most=most, unit="MiB")
    return attrs.evolve(
        config,
        journal=_journal(settings),
        write_cache_bytes_max=cache_bytes,
        journal_queue_bytes_max=queue_mib * _MIB or config.journal_queue_bytes_max,
    )


def _sync_interval_s(settings: Settings) -> float | None:
    """The longest time before written adds are synced; None if each add is synced before its reply."""
    interval_ms = settings.integer("journalPageCacheFlushIntervalMSec", 1000, least=1, unit="milliseconds")
    return None if settings.boolean("journalSyncData", True) else interval_ms / 1000


def _journal(settings: Settings) -> JournalConfig:
    journal = JournalConfig()
    most = 2**31 - 1
    file_bytes = settings.integer("journalMaxSizeMB", 0, least=1, most=most, unit="MiB") * _MIB
    ahead = settings.integer("journalPreAllocSizeMB", 0, least=1, most=most, unit="MiB") * _MIB
    group_bytes = settings.integer("journalBufferedWritesThreshold", 0, unit="bytes")
    alignment_bytes = settings.integer("journalAlignmentSize", 512, least=512, most=most, unit="bytes")
    if ALIGNMENT_BYTES % alignment_bytes:
        raise settings.error(
            "journalAlignmentSize", f"a divisor of {ALIGNMENT_BYTES}, to which groups are aligned"
        )
    return attrs.evolve(
        journal,
        file_bytes_max=file_bytes or journal.file_bytes_max,
        backups_max=settings.integer("journalMaxBackups", 5, least=0, most=10_000, unit="files"),
        preallocate_bytes=ahead or journal.preallocate_bytes,
        group_bytes_max=min(max(group_bytes or journal.group_bytes_max, 4096), 16 * _MIB),
    )


def _reads(settings: Settings, directories: DirectoryConfig) -> ReadConfig:
    default = ReadConfig()
    most = 2**31 - 1
    cache_mib = settings.integer("dbStorage_readAheadCacheMaxSizeMb", -1, least=-1, most=most, unit="MiB")
    entries = settings.integer("dbStorage_readAheadCacheBatchSize", -1, least=-1, most=most)
    ahead = settings.integer("dbStorage_readAheadCacheBatchBytesSize", -1, least=-1, most=most, unit="bytes")
    return ReadConfig(
        # Apache's default is a share of the JVM's direct memory; it is divided among the directories.
        cache_bytes_max=default.cache_bytes_max
        if cache_mib < 0
        else cache_mib * _MIB // len(directories.ledger),
        # Apache's default is 100, since it reads one entry at a time. Here the limit in bytes decides.
        ahead_entries_max=default.ahead_entries_max if entries < 0 else entries,
        ahead_bytes_max=default.ahead_bytes_max if ahead < 0 else min(ahead, READ_BYTES_MAX),
    )


def _index(settings: Settings, directory_count: int) -> IndexConfig:
    name = settings.text("ledgerStorageClass")
    # As in Apache's bookie, whose default it is. The chunk index has to be named.
    kind = _INDEX_KINDS.get((name or "SortedLedgerStorage").rpartition(".")[2])
    if kind is None:
        raise settings.error(
            "ledgerStorageClass", f"one of {', '.join(_INDEX_KINDS)}, with or without package"
        )
    defaults = PageIndexConfig()
    page_bytes = settings.integer("pageSize", defaults.page_bytes, least=512, most=1 << 20, unit="bytes")
    if page_bytes % 512:
        raise settings.error("pageSize", "a multiple of 512 bytes")
    # Apache's -1 means a third of the JVM's direct memory, which does not exist here.
    pages = settings.integer("pageLimit", -1, least=-1)
    if pages <= 0:
        pages = max(4, _INDEX_PAGES_BYTES // page_bytes)
    files = settings.integer("openFileLimit", 0, least=0) or 20_000
    # Connections, journals and entry logs need descriptors as well.
    files = min(files, max(64, descriptor_limit() // 4))
    return IndexConfig(
        kind=kind,
        pages=PageIndexConfig(
            page_bytes=page_bytes,
            pages_max=max(4, pages // directory_count),
            open_files_max=max(1, files // directory_count),
        ),
    )


def _scrub(settings: Settings) -> ScrubConfig:
    default = ScrubConfig()
    return ScrubConfig(
        # Apache's default is never. Here it is a day.
        interval_s=settings.integer("localScrubInterval", int(default.interval_s), unit="seconds"),
        bytes_per_s=settings.integer(
            "localScrubRateByBytes", int(default.bytes_per_s), least=1, unit="bytes a second"
        ),
        entries_per_s=settings.integer("localScrubRateLimit", 0, unit="entries a second"),
        on_start=settings.boolean("localConsistencyCheckOnStartup", False),
    )


def _paths(names: tuple[str, ...]) -> Any:
    # Any: mypy infers an impossible type for a field whose converter is ``tuple``.
    return tuple(Path(name) for name in names)


def _address(settings: Settings) -> AddressConfig:
    port = settings.integer("bookiePort", 3181, most=65535)
    allow_ephemeral = settings.boolean("allowEphemeralPorts", False)
    if port == 0 and not allow_ephemeral:
        raise settings.error("bookiePort", "a port from 1 to 65535; 0 only with allowEphemeralPorts=true")
    return AddressConfig(
        bookie_id=settings.text("bookieId"),
        port=port,
        interface=settings.text("listeningInterface"),
        advertised=settings.text("advertisedAddress"),
        host_name_as_id=settings.boolean("useHostNameAsBookieID", False),
        short_host_name=settings.boolean("useShortHostName", False),
        allow_loopback=settings.boolean("allowLoopback", False),
    )


def _fullness(settings: Settings) -> FullnessConfig:
    full = settings.fraction("diskUsageThreshold", 0.95)
    low = settings.fraction("diskUsageLwmThreshold", full)
    if low > full:
        raise settings.error("diskUsageLwmThreshold", f"at most diskUsageThreshold, {full}")
    space_bytes = settings.integer("minUsableSizeForEntryLogCreation", 1 << 30, unit="bytes")
    return FullnessConfig(
        full=full,
        warn=settings.fraction("diskUsageWarnThreshold", min(0.90, full)),
        low=low,
        any_disk=settings.boolean("readOnlyModeOnAnyDiskFullEnabled", True),
        high_priority_bytes_min=settings.integer(
            "minUsableSizeForHighPriorityWrites", space_bytes, unit="bytes"
        ),
        index_file_bytes_min=settings.integer("minUsableSizeForIndexFileCreation", 100 * _MIB, unit="bytes"),
        reserve_bytes=settings.integer("flushReserveBytes", FullnessConfig().reserve_bytes, unit="bytes"),
        check_interval_s=settings.integer("diskCheckInterval", 10_000, least=1, unit="milliseconds") / 1000,
        may_be_read_only=settings.boolean("readOnlyModeEnabled", True),
    )
