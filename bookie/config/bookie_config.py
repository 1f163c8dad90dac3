"""Apache's ``bk_server.conf``, read into the configuration of a bookie.

Inside: reading a file, and keys that depend on one another. Not inside: the syntax (``properties``), the
plain keys (``table``), typed values (``settings``), the classes (``classes``).
Always: an error or ``warnings`` names each key that has no effect. It is an error if ignoring the key
would weaken a promise: access control, permission to write.

Source: ServerConfiguration.java, conf/bk_server.conf; docs/protocol.md 10.3.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from bookie.cluster.autorecovery import AutoRecoveryConfig
from bookie.cluster.startup_check import StartupCheckConfig
from bookie.config.admin_config import AdminConfig, AdminTls
from bookie.config.classes import BookieConfig, DirectoryConfig, MetadataConfig
from bookie.config.key_check import check_keys
from bookie.config.properties import FileSetting, PropertiesError, parse_properties
from bookie.config.security_settings import (
    read_authentication,
    read_client_authentication,
    read_permissions,
    read_tls,
    read_tls_required,
    refuse_unobeyed,
)
from bookie.config.settings import Settings, holds_secret
from bookie.damage.scrubber import ScrubConfig
from bookie.disk.descriptor_limit import connections_below_limit, descriptor_limit
from bookie.disk.fullness import FullnessConfig
from bookie.entrylog.writer import PerLedgerConfig
from bookie.errors import BookieConfigError
from bookie.gc.collector import GcConfig
from bookie.gc.compaction_rules import CompactionConfig
from bookie.identity.address import AddressConfig
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.index.page_cache import PageIndexConfig
from bookie.journal.files import JournalConfig
from bookie.journal.format import ALIGNMENT_BYTES
from bookie.requests.new_ledgers import NewLedgersConfig
from bookie.server.config import ServerConfig
from bookie.storage.config import StorageConfig
from bookie.storage.entry_reads import ReadConfig
from ledger.catalog.paths import Layout
from ledger.errors import LocationError
from ledger.metadata_store.errors import InvalidPathError, InvalidStoreAddressError
from ledger.metadata_store.service_uri import ServiceUri, parse_metadata_service_uri
from ledger.metadata_store.store import check_path
from ledger.placement.config import (
    AnnouncedLocations,
    LocationSource,
    PlacementConfig,
    PlacementPolicy,
    ScriptLocations,
)
from ledger.placement.topology import parse_location
from ledger.replication import ReplicationConfig
from ledger.runtime.own_user import own_user
from ledger.runtime.secret_file import SecretFileError, SecretOf, check_secret
from ledger.settings import default_of

_MIB = 1 << 20
_INDEX_PAGES_BYTES = 64 * _MIB
_INDEX_KINDS = {
    "DbLedgerStorage": IndexKind.CHUNKS,
    "SortedLedgerStorage": IndexKind.PAGES,
    "InterleavedLedgerStorage": IndexKind.PAGES,
}
_POLICIES = {
    "RackawareEnsemblePlacementPolicy": PlacementPolicy.RACK_AWARE,
    "RegionAwareEnsemblePlacementPolicy": PlacementPolicy.REGION_AWARE,
    "DefaultEnsemblePlacementPolicy": PlacementPolicy.RANDOM,
}
_SCRIPT = "ScriptBasedMapping"
_LAYOUTS = {layout.uri_name: layout for layout in Layout if layout.uri_name}


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
        parsed[key] = FileSetting(("true",), parsed[key].line if key in parsed else 1)
    return build_config(parsed, source, strict=strict)


def build_config(parsed: Mapping[str, FileSetting], source: str, *, strict: bool = False) -> BookieConfig:
    """The configuration of parsed keys. Raises as ``load_config``."""
    settings = Settings(source, parsed)
    warnings = check_keys(settings, source, parsed, strict=strict)
    _refuse_unsafe_keys(settings, warnings)
    directories = _directories(settings)
    storage = _storage(settings, directories)
    startup_check = settings.fill(StartupCheckConfig)
    return BookieConfig(
        **settings.values_of(BookieConfig),
        metadata=_metadata(settings),
        directories=directories,
        storage=storage,
        startup_check=startup_check,
        address=_address(settings),
        server=_server(settings, storage),
        tls=read_tls(settings),
        permissions=read_permissions(settings),
        client_auth=read_client_authentication(settings),
        fullness=_fullness(settings),
        sync_adds=startup_check.sync_adds,
        network_location=_network_location(settings),
        admin=_admin(settings),
        auto_recovery=_auto_recovery(settings, warnings),
        gc=settings.fill(GcConfig),
        new_ledgers=settings.fill(NewLedgersConfig),
        shown=settings.shown_values(),
        warnings=tuple(warnings),
    )


def _refuse_unsafe_keys(settings: Settings, warnings: list[str]) -> None:
    warnings += refuse_unobeyed(settings)
    if not settings.value("dataIntegrityChecking"):
        warnings.append(
            "dataIntegrityChecking=false: if its disks have lost acknowledged entries, this bookie denies"
            " them, and recoveries close ledgers without them"
        )
    if settings.value("skipReplayJournalInvalidRecord"):
        warnings.append(
            "skipReplayJournalInvalidRecord=true: the replay skips damage in the journal, so each start puts"
            " all ledgers in limbo and copies the missing entries; remove it after one start"
        )
    if not settings.value("journalWriteData"):
        warnings.append("journalWriteData=false: has no effect; the journal is always written")
    if not settings.value("useTransactionalCompaction"):
        warnings.append("useTransactionalCompaction=false: has no effect; compaction is always transactional")
    if not settings.value("journalSyncData"):
        warnings.append(
            "journalSyncData=false: adds are acknowledged before they are synced; a power failure loses"
            " acknowledged entries of this bookie"
        )
    users = settings.texts("permittedStartupUsers")
    if users and own_user() not in users:
        raise settings.error("permittedStartupUsers", f"the user who starts it, {own_user()}, to be in it")
    if settings.value("disableServerSocketBind"):
        raise settings.error("disableServerSocketBind", "false: this bookie always listens on bookiePort")


def _network_location(settings: Settings) -> str | None:
    text = settings.text("networkLocation")
    try:
        return None if text is None else parse_location(text)
    except LocationError as exc:
        raise settings.error("networkLocation", f"such as /rack or /region/rack ({exc})") from exc


def _metadata(settings: Settings) -> MetadataConfig:
    root = settings.value("zkLedgersRootPath")
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
    return settings.fill(MetadataConfig, hosts=uri.hosts, ledgers_root=uri.ledgers_root, layout=layout)


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


def _storage(settings: Settings, directories: DirectoryConfig) -> StorageConfig:
    unsynced_s = settings.value("journalPageCacheFlushIntervalMSec")
    if ALIGNMENT_BYTES % settings.value("journalAlignmentSize"):
        raise settings.error(
            "journalAlignmentSize", f"a divisor of {ALIGNMENT_BYTES}, to which groups are aligned"
        )
    return settings.fill(
        StorageConfig,
        journal_directories=_paths(directories.journal),
        ledger_directories=_paths(directories.ledger),
        index_directories=_paths(directories.index),
        # None: each add is synced before its reply.
        sync_interval_s=None if settings.value("journalSyncData") else unsynced_s,
        journal=settings.fill(JournalConfig),
        reads=_reads(settings, directories),
        scrub=settings.fill(ScrubConfig),
        index=_index(settings, len(directories.ledger)),
        compaction=_compaction(settings),
        per_ledger_logs=_per_ledger_logs(settings),
    )


def _per_ledger_logs(settings: Settings) -> PerLedgerConfig | None:
    """The settings of one entry log for each ledger; None if that is off."""
    config = settings.fill(PerLedgerConfig)
    return config if settings.value("entryLogPerLedgerEnabled") else None


def _reads(settings: Settings, directories: DirectoryConfig) -> ReadConfig:
    config, cache_bytes = settings.fill(ReadConfig), settings.value("dbStorage_readAheadCacheMaxSizeMb")
    if cache_bytes < 0:
        return config
    # Apache's default is a share of the JVM's direct memory; it is divided among the directories.
    return attrs.evolve(config, cache_bytes_max=cache_bytes // len(directories.ledger))


def _index(settings: Settings, directory_count: int) -> IndexConfig:
    # The default is that of Apache's bookie. The chunk index has to be named.
    kind = _INDEX_KINDS.get(settings.value("ledgerStorageClass").rpartition(".")[2])
    if kind is None:
        raise settings.error(
            "ledgerStorageClass", f"one of {', '.join(_INDEX_KINDS)}, with or without package"
        )
    page_bytes = settings.value("pageSize")
    if page_bytes % 512:
        raise settings.error("pageSize", "a multiple of 512 bytes")
    # Apache's -1 means a third of the JVM's direct memory, which does not exist here.
    pages = settings.value("pageLimit")
    if pages <= 0:
        pages = max(4, _INDEX_PAGES_BYTES // page_bytes)
    files = settings.value("openFileLimit") or 20_000
    # Connections, journals and entry logs need descriptors as well.
    files = min(files, max(64, descriptor_limit() // 4))
    return IndexConfig(
        kind=kind,
        pages=settings.fill(
            PageIndexConfig,
            pages_max=max(4, pages // directory_count),
            open_files_max=max(1, files // directory_count),
        ),
    )


def _paths(names: tuple[str, ...]) -> Any:
    # Any: mypy infers an impossible type for a field whose converter is ``tuple``.
    return tuple(Path(name) for name in names)


def _address(settings: Settings) -> AddressConfig:
    config, allow_ephemeral = settings.fill(AddressConfig), settings.value("allowEphemeralPorts")
    if config.port == 0 and not allow_ephemeral:
        raise settings.error("bookiePort", "a port from 1 to 65535; 0 only with allowEphemeralPorts=true")
    return config


def _fullness(settings: Settings) -> FullnessConfig:
    full = settings.value("diskUsageThreshold")
    config = settings.fill(
        FullnessConfig,
        warn=min(0.90, full),
        low=full,
        high_priority_bytes_min=settings.value("minUsableSizeForEntryLogCreation"),
    )
    if config.low > full:
        raise settings.error("diskUsageLwmThreshold", f"at most diskUsageThreshold, {full}")
    return config


def _server(settings: Settings, storage: StorageConfig) -> ServerConfig:
    """The limits of connections."""
    wait_s = settings.value("waitTimeoutOnResponseBackpressureMs")
    closes = settings.value("closeChannelOnResponseTimeout")
    config = settings.fill(
        ServerConfig,
        # Unless it may close the connection, Apache drops replies. Here a reply is sent or its connection
        # ends: replies wait for a slow peer, and its requests wait as long.
        response_timeout_s=max(wait_s, 0.001) if closes and wait_s >= 0 else None,
        tls_required=read_tls_required(settings),
        auth=read_authentication(settings),
    )
    return attrs.evolve(
        config,
        batch_bytes_max=min(config.batch_bytes_max, config.frame_bytes_max),
        connections_max=config.connections_max or _connections_max(storage),
    )


def _connections_max(storage: StorageConfig) -> int:
    """The connections that leave storage its descriptors."""
    logs, directories = storage.per_ledger_logs, len(storage.ledger_directories)
    return connections_below_limit(
        len(storage.journal_directories),
        directories,
        (0 if logs is None else logs.open_logs_max)
        + (storage.index.pages.open_files_max * directories if storage.index.kind is IndexKind.PAGES else 0),
    )


def _admin(settings: Settings) -> AdminConfig | None:
    """The keys ``httpServer*`` and ``httpPage*``; None: the server is off. Raises ``BookieConfigError``."""
    config = settings.fill(AdminConfig, tls=_admin_tls(settings))
    return config if settings.value("httpServerEnabled") else None


def _admin_tls(settings: Settings) -> AdminTls | None:
    stores = settings.values_of(AdminTls)
    if not settings.value("httpServerTlsEnable"):
        if "trust_store" in stores and settings.value("httpServerEnabled"):
            raise settings.error(
                "httpServerTlsEnable", "true: httpServerTrustStorePath restricts access, but only with TLS"
            )
        return None
    if "key_store" not in stores:
        raise settings.error(
            "httpServerTlsEnable",
            "httpServerKeyStorePath beside it: a store (JKS, PKCS12 or PEM) with the server's key",
        )
    return AdminTls(**stores)


def _compaction(settings: Settings) -> CompactionConfig:
    """When and how fast entry logs are compacted.

    Two defaults are not Apache's. Compaction is throttled by bytes unless the file asks for entries: Apache's
    1,000 entries a second are 1 MB/s of small entries, a fraction of what the bookie takes in at the same
    time. And compaction is always transactional.
    """
    rate_bytes, rate_entries = _compaction_rates(settings)
    config = settings.fill(CompactionConfig, rate_bytes_per_s=rate_bytes, rate_entries_per_s=rate_entries)
    _check_compaction(settings, config)
    return config


def _compaction_rates(settings: Settings) -> tuple[float, float | None]:
    """Bytes per second; entries per second or None. If the latter is set, it replaces the former."""
    asks, rate_keys = "isThrottleByBytes" in settings, ("compactionRate", "compactionRateByEntries")
    by_bytes = settings.value("isThrottleByBytes")
    if not asks:
        by_bytes = not any(key in settings for key in rate_keys)
    rate, entries, size_bytes = map(settings.value, (*rate_keys, "compactionRateByBytes"))
    default_bytes = 1_000_000 if asks else default_of(attrs.fields(CompactionConfig).rate_bytes_per_s)
    return size_bytes or default_bytes, None if by_bytes else entries or rate


def _check_compaction(settings: Settings, config: CompactionConfig) -> None:
    """Refuse the contradictions that Apache's bookie refuses."""
    minor = config.minor_threshold > 0 and config.minor_interval_s > 0
    major = config.major_threshold > 0 and config.major_interval_s > 0
    wait_s = settings.value("gcWaitTime")
    for is_on, key, interval_s in (
        (minor, "minorCompactionInterval", config.minor_interval_s),
        (major, "majorCompactionInterval", config.major_interval_s),
    ):
        if is_on and interval_s < wait_s:
            raise settings.error(
                _first_set(settings, key, "gcWaitTime"),
                f"{key} ({interval_s:g} s) to be at least gcWaitTime ({wait_s:g} s)",
            )
    if minor and major and config.minor_interval_s >= config.major_interval_s:
        raise settings.error(
            _first_set(settings, "minorCompactionInterval", "majorCompactionInterval"),
            f"minorCompactionInterval ({config.minor_interval_s:g} s) to be less than majorCompactionInterval"
            f" ({config.major_interval_s:g} s)",
        )
    if minor and major and config.minor_threshold >= config.major_threshold:
        raise settings.error(
            _first_set(settings, "minorCompactionThreshold", "majorCompactionThreshold"),
            f"minorCompactionThreshold ({config.minor_threshold}) to be less than majorCompactionThreshold"
            f" ({config.major_threshold})",
        )


def _first_set(settings: Settings, *keys: str) -> str:
    """The key whose line the error message shows."""
    return next((key for key in keys if key in settings), keys[0])


def _auto_recovery(settings: Settings, warnings: list[str]) -> AutoRecoveryConfig | None:
    """Auto-recovery in this process; None if it is off.

    Args:
        warnings: Gets what is replaced by something else, if auto-recovery is on. A class of placement or of
            locations that is not known here is replaced by rack-aware placement by announced locations.
    """
    is_on = settings.value("autoRecoveryDaemonEnabled")
    found: list[str] = []
    config = AutoRecoveryConfig(
        replication=settings.fill(ReplicationConfig), placement=_placement(settings, found)
    )
    if is_on:
        warnings += found
    return config if is_on else None


def _placement(settings: Settings, warnings: list[str]) -> PlacementConfig:
    name = settings.value("ensemblePlacementPolicy")
    policy = _POLICIES.get(name.rpartition(".")[2])
    if policy is None:
        policy = PlacementPolicy.RACK_AWARE
        warnings.append(
            f"ensemblePlacementPolicy={name}: is not known here; auto-recovery places replicas rack-aware"
        )
    locations = _locations(settings, warnings)
    enforce_racks = settings.value("enforceMinNumRacksPerWriteQuorum")
    regions = tuple(
        filter(
            None, map(str.strip, ",".join(settings.texts("reppRegionsToWrite")).replace(";", ",").split(","))
        )
    )
    regions_min = settings.value("reppMinimumRegionsForDurability")
    is_regional = policy is PlacementPolicy.REGION_AWARE
    if is_regional and 0 < len(regions) < regions_min:
        raise settings.error("reppRegionsToWrite", f"at least {regions_min} regions")
    return settings.fill(
        PlacementConfig,
        policy=policy,
        locations=locations,
        enforce_racks=enforce_racks and policy is not PlacementPolicy.RANDOM,
        regions=regions if is_regional else (),
        regions_min=regions_min if is_regional and regions else None,
    )


def _locations(settings: Settings, warnings: list[str]) -> LocationSource:
    name = settings.value("reppDnsResolverClass")
    script = settings.text("networkTopologyScriptFileName")
    hosts_max = settings.value("networkTopologyScriptNumberArgs")
    if name.rpartition(".")[2] != _SCRIPT:
        warnings.append(
            f"reppDnsResolverClass={name}: is not known here; auto-recovery uses the networkLocation that"
            " each bookie announces"
        )
    elif script is not None:
        return ScriptLocations(path=script, arguments_max=hosts_max)
    return AnnouncedLocations()
