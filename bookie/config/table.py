"""Each key of ``bk_server.conf`` that the bookie obeys, declared once.

Inside: the name, what a value may be, the attribute that it fills, its meaning. Not inside: reading a file
(``settings``), keys that depend on one another (``bookie_config`` and the modules beside it), the fates of
Apache's other keys (``keys``).
Always: the default is that of the attribute. Where the bookie has another one, the row names it, or a
function beside the table chooses it by other keys.

Source: ServerConfiguration.java, AbstractConfiguration.java, conf/bk_server.conf; docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from bookie.auth.tls import TlsConfig
from bookie.cluster.startup_check import StartupCheckConfig
from bookie.config.admin_config import AdminConfig, AdminTls
from bookie.config.classes import BookieConfig, MetadataConfig
from bookie.damage.scrubber import ScrubConfig
from bookie.disk.fullness import FullnessConfig
from bookie.entrylog.reader import READ_BYTES_MAX
from bookie.entrylog.writer import PerLedgerConfig
from bookie.gc.collector import GcConfig
from bookie.gc.compaction_rules import CompactionConfig
from bookie.identity.address import AddressConfig
from bookie.index.page_cache import PageIndexConfig
from bookie.journal.files import JournalConfig
from bookie.limits import RECORD_BYTES_MAX
from bookie.requests.new_ledgers import NewLedgersConfig
from bookie.requests.permissions import PermissionsConfig
from bookie.server.config import ServerConfig
from bookie.storage.config import StorageConfig
from bookie.storage.entry_reads import ReadConfig
from ledger.auth.sasl_users import ALLOWED_IDS, BOOKIE_SECTION
from ledger.placement.config import PlacementConfig
from ledger.replication import ReplicationConfig
from ledger.settings import Kind, SettingRow, kinds

MIB = 1 << 20
_MOST = 2**31 - 1
_OFF = -(2**31)  # the least value of a key that a negative value switches off


@attrs.frozen(eq=False)
class BookieKey(SettingRow):
    """One key that the bookie obeys."""

    fills: str = ""  # the attribute of ``owner``; empty: a function reads the key
    usual: Any = None  # the default, where it is not that of the attribute
    # The key restricts access, protects data, or says which data and which identity are this bookie's. If it
    # is misspelt, the bookie does not start: it would run without the protection that was asked for.
    protects: bool = False
    owner: type | None = None

    @property
    def attribute(self) -> Any:
        return getattr(attrs.fields(self.owner), self.fills) if self.owner is not None else None

    @property
    def default(self) -> Any:
        return super().default if self.usual is None else self.usual


def _guard(name: str, kind: Kind, doc: str, fills: str = "", usual: Any = None) -> BookieKey:
    return BookieKey(name, kind, doc, fills, usual, protects=True)


_key = BookieKey


def _of(owner: type, *keys: BookieKey) -> tuple[BookieKey, ...]:
    # Not by attrs.evolve, which is slow: each start of a bookie makes this table.
    return tuple(
        BookieKey(one.name, one.kind, one.doc, one.fills, one.usual, one.protects, owner) for one in keys
    )


def _milliseconds(least: int = 0, most: int = kinds.WHOLE_MAX) -> Kind:
    """Seconds, written as milliseconds."""
    return kinds.whole(
        least, most, "milliseconds", value=lambda ms: ms / 1000, written=lambda s: round(s * 1000)
    )


def _mebibytes(least: int = 1, most: int = _MOST) -> Kind:
    """Bytes, written as MiB."""
    return kinds.whole(least, most, "MiB", value=lambda mib: mib * MIB, written=lambda size: size // MIB)


def _positive_or(usual: Any, unit: str = "") -> Kind:
    """A whole number; a negative one stands for ``usual``."""
    return kinds.whole(_OFF, unit=unit, value=lambda number: usual if number < 0 else number)


def _share(*, may_be_off: bool = False) -> Kind:
    """A share from 0 to 1; with ``may_be_off`` also a number below 0, which switches the feature off."""

    def parse(text: str, _: Path | None) -> float:
        if not ((value := float(text)) <= 1 and (value >= 0 or may_be_off)):
            raise ValueError
        return value

    off = "; 0 or less switches it off" if may_be_off else ""
    return Kind("share", f"a share from 0 to 1, such as 0.95{off}", parse)


def _group_bytes(size: int) -> int:
    return min(max(size or _JOURNAL.group_bytes_max, 4096), 16 * MIB)


def _ahead_bytes(size: int) -> int:
    return _READS.ahead_bytes_max if size < 0 else min(size, READ_BYTES_MAX)


_BOOL = kinds.switch("true yes on t y", "false no off f n")
_TEXT = Kind("text", "a text", lambda text, _: text)
_NAMES = kinds.NAMES
_FILE = Kind("file", "the name of a file", lambda text, _: Path(text))
_COUNT = kinds.whole()
_FROM_1 = kinds.whole(1)
_SIZE = kinds.whole(unit="bytes")
_SECONDS = kinds.whole(unit="seconds")
_SECONDS_OR_OFF = kinds.whole(_OFF, unit="seconds")
_PAUSE = _positive_or(0, "seconds")
_TIME_LIMIT = kinds.whole(
    _OFF, unit="milliseconds", value=lambda ms: None if ms < 0 else ms / 1000, written=lambda _: -1
)
_JOURNAL, _READS, _SERVER = JournalConfig(), ReadConfig(), ServerConfig()

# fmt: off
_METADATA = (
    _guard("metadataServiceUri", _TEXT, "The cluster, such as `zk+null://zk1:2181/ledgers`."),
    _guard("zkServers", _NAMES, "The older way to name the cluster."),
    _guard("zkLedgersRootPath", _TEXT, "For `zkServers`: the root path of ledgers.", usual="/ledgers"),
    _key("ledgerManagerType", _TEXT, "For `zkServers`: the layout of ledgers."),
    _key("ledgerManagerFactoryClass", _TEXT, "The same, as Java's class."),
    *_of(
        MetadataConfig,
        _key("zkTimeout", kinds.whole(100, _MOST, "milliseconds"), "The session with ZooKeeper.",
            "session_timeout_ms"),
    ),
)

_ADDRESS = (
    *_of(
        AddressConfig,
        _guard("bookieId", _TEXT, "The bookie's id. Default: its address and port.", "bookie_id"),
        _guard("bookiePort", kinds.whole(most=65535), "The port of clients.", "port"),
        _guard("listeningInterface", _TEXT, "Listen on this interface only.", "interface"),
        _guard("advertisedAddress", _TEXT, "The address that clients get.", "advertised"),
        _key("useHostNameAsBookieID", _BOOL, "The id has the host's name.", "host_name_as_id"),
        _key("useShortHostName", _BOOL, "That name without its domain.", "short_host_name"),
        _key("allowLoopback", _BOOL, "The address may be of this machine only.", "allow_loopback"),
    ),
    _key("allowEphemeralPorts", _BOOL, "`bookiePort` may be 0: any free port.", usual=False),
    _guard("networkLocation", _TEXT, "The rack that is announced, such as `/region/rack`."),
    _guard("permittedStartupUsers", _NAMES, "Users who may start the bookie. Default: all.", usual=()),
    _guard("disableServerSocketBind", _BOOL, "It must be false: the bookie always listens.", usual=False),
)

_CONNECTIONS = (
    *_of(
        ServerConfig,
        _key("nettyMaxFrameSizeBytes", kinds.whole(1024, RECORD_BYTES_MAX, "bytes"),
            "The longest frame that is received.", "frame_bytes_max"),
        _key("maxBatchReadSize", kinds.whole(1, unit="bytes"),
            "The longest reply to a batch read, at most `nettyMaxFrameSizeBytes`.", "batch_bytes_max"),
        _key("serverSockKeepalive", _BOOL, "Sockets use TCP's keep-alive.", "tcp_keepalive"),
        # Netty's mark is a hint that may be exceeded. Here it is a limit, so a smaller one would slow the
        # peer.
        _key("serverWriteBufferHighWaterMark",
            kinds.whole(unit="bytes", value=lambda size: max(size, _SERVER.reply_queue_bytes_max)),
            "Replies that wait for one peer; a value below the default has no effect.",
            "reply_queue_bytes_max"),
        _key("serverMaxMemorySizeMb", _mebibytes(1, 1 << 20), "Memory of all connections.",
            "total_bytes_max"),
        _key("maxAddsInProgressLimit", _COUNT, "Adds at once; 0: no limit.", "adds_in_progress_max"),
        _key("maxReadsInProgressLimit", _COUNT, "Reads at once; 0: no limit.", "reads_in_progress_max"),
        _key("maxPendingReadRequestsPerThread", _COUNT,
            "Reads of one connection that wait for the disk; 0: no limit.", "pending_reads_max"),
        _key("maxPendingAddRequestsPerThread", _COUNT,
            "Adds of one connection that wait for the disk since their entry is held; 0: no limit.",
            "pending_adds_max"),
        _key("maxLongPolls", _FROM_1, "Long polls of all connections.", "all_long_polls_max"),
        _key("maxLongPollsPerConnection", _FROM_1, "Long polls of one connection.", "long_polls_max"),
        _guard("maxConnections", _COUNT, "Connections; 0: what the limit of open files allows.",
            "connections_max"),
        _key("firstFrameTimeoutMs", _milliseconds(1, _MOST),
            "A connection without a whole frame is closed after it.", "first_frame_timeout_s"),
        _key("frameTimeoutMs", _milliseconds(1, _MOST),
            "A connection whose frame makes no progress is closed after it.", "frame_timeout_s"),
    ),
    _key("closeChannelOnResponseTimeout", _BOOL,
        "Close a connection that takes no replies for `waitTimeoutOnResponseBackpressureMs`.", usual=False),
    _key("waitTimeoutOnResponseBackpressureMs", _milliseconds(-1, _MOST),
        "The time for `closeChannelOnResponseTimeout`; -1: never.",
        usual=-0.001),
)

_DIRECTORIES = (
    _guard("journalDirectories", _NAMES, "The directories of journals. It is needed."),
    _guard("journalDirectory", _NAMES, "The older name of `journalDirectories`."),
    _guard("ledgerDirectories", _NAMES, "The directories of ledgers. It is needed."),
    _guard("indexDirectories", _NAMES, "The directories of indexes. Default: those of ledgers."),
    *_of(
        StartupCheckConfig,
        _key("allowStorageExpansion", _BOOL, "Added directories may be empty.", "allow_expansion"),
        _key("dataIntegrityStampMissingCookies", _BOOL, "Empty directories may replace lost ones.",
            "replace_lost_directories"),
        # Apache's default is false: then a bookie that lost its disk makes recoveries cut off entries.
        _guard("dataIntegrityChecking", _BOOL, "Lost entries are copied, and never denied.", "limbo"),
        _guard("journalSyncData", _BOOL, "Sync an add before its reply.", "sync_adds"),
    ),
)

_WRITES = (
    _guard("journalPageCacheFlushIntervalMSec", _milliseconds(1),
        "With `journalSyncData=false`: how often adds are synced.", usual=1.0),
    _guard("journalWriteData", _BOOL, "False has no effect: the journal is always written.", usual=True),
    *_of(
        JournalConfig,
        _key("journalMaxSizeMB", _mebibytes(), "The size of a journal file.", "file_bytes_max"),
        _key("journalPreAllocSizeMB", _mebibytes(),
            "Space that is filled ahead of the journal.", "preallocate_bytes"),
        _key("journalBufferedWritesThreshold",
            kinds.whole(unit="bytes", value=_group_bytes),
            "The size of one group of adds; 0: the default.", "group_bytes_max"),
        _key("journalMaxBackups", kinds.whole(0, 10_000,
            "files"), "Old journal files that are kept.", "backups_max",
            5),
    ),
    _key("journalAlignmentSize", kinds.whole(512, _MOST, "bytes"),
        "A divisor of 4096, to which groups are aligned in any case.", usual=512),
    *_of(
        StorageConfig,
        _key("journalMaxMemorySizeMb", _mebibytes(), "Adds that wait for the journal.",
            "journal_queue_bytes_max"),
        _key("skipReplayJournalInvalidRecord", _BOOL,
            "Skip damage in the journal; the lost entries are copied.", "skip_damaged_journal"),
        _key("skipListSizeLimit", kinds.whole(1 << 16, unit="bytes"), "The write cache of all directories.",
            "write_cache_bytes_max"),
        _key("flushInterval", _milliseconds(1),
            "Between two flushes of the write cache.", "flush_interval_s"),
        _key("logSizeLimit", kinds.whole(8192, 1 << 30, "bytes"), "The size of an entry log.",
            "entry_log_bytes_max"),
    ),
    *_of(
        PerLedgerConfig,
        _key("maximumNumberOfActiveEntryLogs", kinds.whole(1, 100_000),
            "With `entryLogPerLedgerEnabled`: logs that are open at once.", "open_logs_max"),
        _key("entrylogMapAccessExpiryTimeInSeconds", kinds.whole(1, unit="seconds"),
            "A log without an append for this long is completed.", "idle_s"),
    ),
    _key("entryLogPerLedgerEnabled", _BOOL, "An entry log for each ledger.", usual=False),
)

_READING = (
    _guard("ledgerStorageClass", _TEXT,
        "The kind of index: `DbLedgerStorage`, `SortedLedgerStorage` or `InterleavedLedgerStorage`.",
        usual="SortedLedgerStorage"),
    *_of(
        PageIndexConfig,
        _key("pageSize", kinds.whole(512, 1 << 20, "bytes"), "A page of the index, a multiple of 512.",
            "page_bytes"),
    ),
    _key("pageLimit", kinds.whole(-1), "Pages in memory; -1: 64 MiB of them.", usual=-1),
    _key("openFileLimit", _COUNT, "Open files of the index; 0: 20,000.", usual=0),
    _key("dbStorage_readAheadCacheMaxSizeMb", _mebibytes(-1),
        "The read cache of all directories; -1: 32 MiB for each.", usual=-MIB),
    *_of(
        ReadConfig,
        # Apache's default is 100, since it reads one entry at a time. Here the limit in bytes decides.
        _key("dbStorage_readAheadCacheBatchSize",
            kinds.whole(-1, _MOST, value=lambda number: _READS.ahead_entries_max if number < 0 else number),
            "Entries that are read ahead; -1: the default.", "ahead_entries_max"),
        _key("dbStorage_readAheadCacheBatchBytesSize",
            kinds.whole(-1, _MOST, "bytes", value=_ahead_bytes),
            "Bytes that are read ahead; -1: the default.", "ahead_bytes_max"),
    ),
    *_of(
        ScrubConfig,
        # Apache's default is never. Here it is a day.
        _guard("localScrubInterval", _SECONDS, "Between two rounds of the scrubber; 0: never.", "interval_s"),
        _key("localScrubRateByBytes", kinds.whole(1, unit="bytes a second"),
            "The scrubber's pace.", "bytes_per_s"),
        _key("localScrubRateLimit", kinds.whole(unit="entries a second"), "The same in entries; 0: no limit.",
            "entries_per_s"),
        _guard("localConsistencyCheckOnStartup", _BOOL, "One round before the bookie serves.", "on_start"),
    ),
)

_GARBAGE = (
    *_of(
        GcConfig,
        _key("gcWaitTime", _milliseconds(1), "Between two rounds of garbage collection.", "interval_s"),
        _key("gcOverreplicatedLedgerWaitTime", _milliseconds(_OFF),
            "Between two deletions of over-replicated ledgers; 0 or less: never.",
            "over_replicated_interval_s"),
        _key("gcMetadataOpRateLimit", _FROM_1, "Requests to the metadata store in a second.",
            "metadata_requests_per_s"),
    ),
    *_of(
        CompactionConfig,
        *(
            key
            for level in ("minor", "major")
            for key in (
                _key(f"{level}CompactionThreshold", _share(may_be_off=True),
                    "A log with a smaller share of live entries is rewritten; 0 or less: never.",
                    f"{level}_threshold"),
                _key(f"{level}CompactionInterval", _SECONDS_OR_OFF,
                    f"Between two {level} compactions; 0 or less: never.", f"{level}_interval_s"),
                _key(f"{level}CompactionMaxTimeMillis", _TIME_LIMIT,
                    "No log is begun after this time; -1: no limit.", f"{level}_time_max_s"),
            )
        ),
        _key("useTargetEntryLogSizeForGc", _BOOL,
            "A share is one of a full log's size.", "counts_target_size"),
        _key("forceAllowCompaction", _BOOL,
            "A forced compaction runs also if its level is off.", "may_force_disabled"),
        _key("isForceGCAllowWhenNoSpace", _BOOL, "A full disk forces compaction.", "forces_when_full"),
        _guard("compactionReserveBytes", _SIZE,
            "Space on each disk that is reserved for compaction.", "reserve_bytes"),
    ),
    _key("useTransactionalCompaction", _BOOL, "False has no effect.", usual=True),
    _key("isThrottleByBytes", _BOOL,
        "Compaction is limited by bytes. Default: true without a rate in entries."),
    _key("compactionRate", _FROM_1, "The older name of `compactionRateByEntries`.", usual=1000),
    _key("compactionRateByEntries", _FROM_1,
        "Entries that compaction writes in a second. Default: `compactionRate`."),
    _key("compactionRateByBytes", kinds.whole(1, unit="bytes"),
        "The same in bytes. Default: 16 MiB, or 1,000,000 with `isThrottleByBytes=true`."),
    *_of(
        NewLedgersConfig,
        _guard("unconfirmedLedgersMax", _COUNT, "Ledgers that the metadata have not confirmed; 0: no limits.",
            "unconfirmed_max"),
        _guard("newLedgersPerSecondMax", _FROM_1, "New ledgers of that kind in a second.", "per_second_max"),
        _key("unconfirmedLedgerGraceSeconds", _SECONDS,
            "A ledger that the metadata do not know is deleted after it.", "grace_s"),
    ),
)

_SPACE = _of(
    FullnessConfig,
    _guard("readOnlyModeEnabled", _BOOL, "A full bookie is read-only; false: it stops.", "may_be_read_only"),
    _guard("readOnlyModeOnAnyDiskFullEnabled", _BOOL,
        "One full disk suffices for that; false: all must be full.", "any_disk"),
    _guard("diskUsageThreshold", _share(), "A disk above it is full.", "full"),
    _key("diskUsageWarnThreshold", _share(), "A warning, and compaction reacts.", "warn"),
    _guard("diskUsageLwmThreshold", _share(),
        "A bookie that was full takes writes below it. Default: `diskUsageThreshold`.", "low"),
    _key("diskCheckInterval", _milliseconds(1), "How often disks are measured.", "check_interval_s"),
    _guard("minUsableSizeForHighPriorityWrites", _SIZE,
        "Free space for recovery's adds. Default: `minUsableSizeForEntryLogCreation`.",
        "high_priority_bytes_min"),
    _guard("minUsableSizeForIndexFileCreation", _SIZE,
        "Free space for the index of a ledger that recovery adds.", "index_file_bytes_min"),
    _guard("flushReserveBytes", _SIZE, "Space on each disk that is reserved for flushing.", "reserve_bytes"),
)
_STATE = (
    _guard("minUsableSizeForEntryLogCreation", _SIZE, "Free space for a new entry log.", usual=1 << 30),
    *_of(
        BookieConfig,
        _guard("forceReadOnlyBookie", _BOOL, "The bookie starts read-only.", "read_only"),
        _guard("persistBookieStatusEnabled", _BOOL,
            "A bookie that is read-only stays so over restarts.", "persist_status"),
        _guard("tlsCertFilesRefreshDurationSeconds", kinds.whole(most=_MOST, unit="seconds"),
            "How often certificates and secrets are read; 0: on SIGHUP only.", "secrets_refresh_s"),
    ),
    _key("autoRecoveryDaemonEnabled", _BOOL, "Auto-recovery in this process.", usual=False),
)

_HTTP = (
    _key("httpServerEnabled", _BOOL, "HTTP for operators.", usual=False),
    *_of(
        AdminConfig,
        _guard("httpServerHost", _TEXT, "The address of HTTP.", "host"),
        _key("httpServerPort", kinds.whole(most=65535), "The port of HTTP.", "port"),
        _guard("httpServerTokenPath", _FILE,
            "A file with the token for all that changes or reveals something.", "token_path"),
        _guard("httpServerAllowedHosts", _NAMES, "Names of the server in requests.", "allowed_hosts"),
        _key("httpPageNamespace", _TEXT, "The namespace that the page shows.", "page_namespace"),
        _key("httpPageRecords", _BOOL, "The page shows records, with the token.", "page_records"),
    ),
    _guard("httpServerTlsEnable", _BOOL, "HTTP uses TLS.", usual=False),
    *_of(
        AdminTls,
        _guard("httpServerKeyStorePath", _FILE, "The store with the server's key.", "key_store"),
        _guard("httpServerKeyStorePassword", _TEXT, "Its password.", "key_store_password"),
        _guard("httpServerTrustStorePath", _FILE, "The authorities of clients.", "trust_store"),
        _guard("httpServerTrustStorePassword", _TEXT, "Its password.", "trust_store_password"),
    ),
)

_SECURITY = (
    _guard("tlsProviderFactoryClass", _TEXT,
        "TLS with clients: `org.apache.bookkeeper.tls.TLSContextFactory`."),
    _guard("tlsKeyStoreType", _TEXT, "`PEM`, `PKCS12` or `JKS`.", usual="JKS"),
    _guard("tlsTrustStoreType", _TEXT, "`PEM`, `PKCS12` or `JKS`.", usual="JKS"),
    *_of(
        TlsConfig,
        _guard("tlsKeyStore", _FILE, "The private key.", "key"),
        _guard("tlsCertificatePath", _FILE, "Its certificate chain, in PEM.", "certificate"),
        _guard("tlsKeyStorePasswordPath", _FILE, "A file with its password.", "key_password"),
        _guard("tlsTrustStore", _FILE, "The authorities of peers.", "authorities"),
        _guard("tlsTrustStorePasswordPath", _FILE, "A file with its password.", "authorities_password"),
        _guard("tlsClientAuthentication", _BOOL, "Clients need a certificate.", "demand_client_certificate"),
        _guard("tlsHostnameVerificationEnabled", _BOOL,
            "The certificates of other bookies must name their hosts.", "verify_host_names"),
        _guard("tlsEnabledProtocols", _NAMES, "Default: TLS 1.2 and 1.3.", "protocols"),
        _guard("tlsEnabledCipherSuites", _NAMES, "Ciphers of TLS 1.2.", "ciphers"),
    ),
    _guard("tlsRequired", _BOOL, "Serve nothing in clear text.", usual=False),
    _guard("bookieAuthProviderFactoryClass", _TEXT,
        "How clients authenticate: `sasl`, `token`, a class of Apache, or a plug-in."),
    _guard("authorizedRoles", _NAMES, "Roles of certificates that may connect.", usual=()),
    _guard("authTokenFile", _TEXT, "For `token`: the file with the tokens."),
    _guard("java.security.auth.login.config", _TEXT, "For SASL: a JAAS file."),
    _guard("saslJaasBookieSectionName", _TEXT, "The section of the JAAS file with users.",
        usual=BOOKIE_SECTION),
    _guard("saslJaasAuditorSectionName", _TEXT,
        "The section for reading from other bookies.", usual="Auditor"),
    _guard("saslJaasClientAllowedIds", _TEXT, "A regular expression: users who may connect.",
        usual=ALLOWED_IDS),
    _guard("clientAuthProviderFactoryClass", _TEXT, "How the bookie authenticates with other bookies."),
    _guard("zkEnableSecurity", _BOOL, "The bookie owns its nodes in ZooKeeper.", usual=False),
    _guard("policyNamespaces", _NAMES, "Namespaces whose policies the bookie obeys.", usual=()),
    *_of(
        PermissionsConfig,
        _guard("policyCacheSeconds", kinds.whole(10, unit="seconds"),
            "How long a decision by a policy counts.", "lifetime_s"),
    ),
)

_AUTO_RECOVERY = (
    *_of(
        ReplicationConfig,
        _key("lostBookieRecoveryDelay", kinds.whole(most=_MOST, unit="seconds"),
            "Before a lost bookie counts as lost, if the cluster has no delay yet.", "lost_bookie_delay_s"),
        _key("auditorPeriodicBookieCheckInterval", _PAUSE, "Between two audits without a cause; 0: once.",
            "bookie_check_interval_s"),
        _key("auditorPeriodicCheckInterval", _PAUSE,
            "Between two checks that read from every ledger; 0: never.", "ledger_check_interval_s"),
        _key("auditorLedgerVerificationPercentage", kinds.whole(most=100, unit="percent"),
            "Entries that such a check reads.", "verified_percentage"),
        _key("auditorPeriodicPlacementPolicyCheckInterval", _PAUSE,
            "Between two checks of placement; 0: never.", "placement_check_interval_s"),
        _key("auditorReplicasCheckInterval", _PAUSE, "Between two checks of lists of entries; 0: never.",
            "replicas_check_interval_s"),
        _key("repairedPlacementPolicyNotAdheringBookieEnabled", _BOOL, "Replicas in wrong racks are moved.",
            "repairs_placement"),
        _key("underreplicatedLedgerRecoveryGracePeriod", _SECONDS,
            "The check of placement counts older marks; 0: none.", "marked_grace_s"),
        _key("openLedgerRereplicationGracePeriod", _milliseconds(),
            "A writer's time to replace a lost bookie.", "open_ledger_grace_s"),
        _key("lockReleaseOfFailedLedgerGracePeriod", _milliseconds(),
            "The longest pause before a ledger is tried again.", "failed_ledger_pause_s"),
        _key("rwRereplicateBackoffMs", _milliseconds(1), "The pause after an error of the metadata store.",
            "retry_pause_s"),
        _key("replicationRateByBytes", _positive_or(0, "bytes a second"), "The pace of copies; 0: no limit.",
            "rate_bytes_max"),
        _key("rereplicationEntryBatchSize", _FROM_1, "Entries in flight at once; small ones up to 64 KiB.",
            "batch_entries"),
    ),
    _key("ensemblePlacementPolicy", _TEXT, "How replicas are placed, as Java's class.",
        usual="RackawareEnsemblePlacementPolicy"),
    _key("enforceMinNumRacksPerWriteQuorum", _BOOL, "Fail if fewer racks are spanned.", usual=False),
    _key("reppDnsResolverClass", _TEXT, "Where racks are read, as Java's class.", usual="ScriptBasedMapping"),
    _key("networkTopologyScriptFileName", _TEXT, "A script that prints racks."),
    _key("networkTopologyScriptNumberArgs", _FROM_1, "Hosts in one call of that script.", usual=100),
    _key("reppRegionsToWrite", _NAMES, "Regions to write to.", usual=()),
    _key("reppMinimumRegionsForDurability", _FROM_1, "Regions that must store an entry.", usual=2),
    *_of(
        PlacementConfig,
        _key("minNumRacksPerWriteQuorum", _FROM_1, "Racks that a write quorum spans.", "racks_min"),
        _key("reppEnableDurabilityEnforcementInReplace", _BOOL, "Enforce regions when a bookie is replaced.",
            "enforce_regions_in_replace"),
    ),
)

# fmt: on
KEYS: Mapping[str, BookieKey] = {
    one.name: one
    for one in (
        *(*_METADATA, *_ADDRESS, *_CONNECTIONS, *_DIRECTORIES, *_WRITES, *_READING),
        *(*_GARBAGE, *_SPACE, *_STATE, *_HTTP, *_SECURITY, *_AUTO_RECOVERY),
    )
}
KEYS_OF: Mapping[type, tuple[BookieKey, ...]] = {
    owner: tuple(one for one in KEYS.values() if one.owner is owner)
    for owner in dict.fromkeys(one.owner for one in KEYS.values() if one.owner is not None)
}
AUTO_RECOVERY = frozenset(one.name for one in _AUTO_RECOVERY)
SUPPORTED = frozenset(KEYS) - AUTO_RECOVERY
