"""Every key that Apache's bookie knows, by its fate here.

A file written for Apache's bookie must work unchanged, and a misspelt key must not pass unnoticed. So each
key of ``bk_server.conf`` has exactly one fate, and a key that has none is unknown.

Inside: fates and reasons, the names of the keys that are not obeyed. Not inside: the keys that are obeyed
(``table``), what an unknown key does (``key_check``).

Source: ServerConfiguration.java, AbstractConfiguration.java, ClientConfiguration.java, conf/bk_server.conf.
"""

from __future__ import annotations

import difflib
import enum
import functools
import re

import attrs

from bookie.config.table import AUTO_RECOVERY, KEYS, SUPPORTED


class Fate(enum.Enum):
    """The way in which this bookie treats a key. The value is the word in tables and JSON."""

    OBEYED = "obeyed"
    WITHOUT_EFFECT = "without effect"  # nothing is lost by that: a warning
    NOT_OFFERED = "not offered"  # a feature that is missing here: a warning
    REFUSED = "refused"  # to ignore it would be unsafe: an error
    UNKNOWN = "unknown"  # not Apache's and not ours


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@attrs.frozen
class KeyGroup:
    """Keys with one fate for one reason."""

    fate: Fate
    reason: str
    names: frozenset[str]


_OF_JAVA = _names(
    """
    zkRetryBackoffStartMs zkRetryBackoffMaxMs zkRetryBackoffMaxRetries zkRequestRateLimit
    ledgerMetadataVersion storeSystemTimeAsLedgerCreationTime allowShadedLedgerManagerFactoryClass
    shadedLedgerManagerFactoryClassPrefix zkReplicationTaskRateLimit
    allowMultipleDirsUnderSameDiskPartition enableLocalTransport bookieDeathWatchInterval
    extraServerComponents ignoreExtraServerComponentsStartupFailures numAddWorkerThreads
    numReadWorkerThreads numLongPollWorkerThreads numHighPriorityWorkerThreads
    readWorkerThreadsThrottlingEnabled requestTimerTickDurationMs requestTimerNumTicks
    enableBusyWait preserveMdcForTaskExecution serverNumIOThreads serverNumAcceptorThreads
    serverTcpNoDelay serverTcpLinger serverTcpKeepIdle serverTcpKeepIntvl serverTcpKeepCnt
    byteBufAllocatorSizeInitial byteBufAllocatorSizeMin byteBufAllocatorSizeMax
    serverWriteBufferLowWaterMark allocatorPoolingPolicy allocatorPoolingConcurrency
    allocatorOutOfMemoryPolicy allocatorLeakDetectionPolicy allocatorExitOnOutOfMemory
    journalFormatVersionToWrite journalWriteBufferSizeKB journalAdaptiveGroupWrites
    journalMaxGroupWaitMSec journalBufferedEntriesThreshold journalFlushWhenQueueEmpty
    journalRemoveFromPageCache journalReuseFiles journalChannelProvider numJournalCallbackThreads
    journalQueueSize sortedLedgerStorageEnabled fileInfoFormatVersionToWrite
    fileInfoCacheInitialCapacity fileInfoMaxIdleTime skipListArenaChunkSize
    skipListArenaMaxAllocSize dbStorage_writeCacheMaxSizeMb dbStorage_rocksDB_blockCacheSize
    dbStorage_rocksDB_writeBufferSizeMB dbStorage_rocksDB_sstSizeInMB dbStorage_rocksDB_blockSize
    dbStorage_rocksDB_bloomFilterBitsPerKey dbStorage_rocksDB_numLevels
    dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_maxSizeInLevel1MB
    dbStorage_rocksDB_format_version dbStorage_rocksDB_checksum_type defaultRocksdbConf
    entryLocationRocksdbConf ledgerMetadataRocksdbConf maxOperationNumbersInSingleRocksdbWriteBatch
    dbStorage_directIOEntryLogger dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB
    dbStorage_directIOEntryLoggerTotalReadBufferSizeMB dbStorage_directIOEntryLoggerReadBufferSizeMB
    dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds entryLogFilePreallocationEnabled
    flushEntrylogBytes readBufferSizeBytes writeBufferSizeBytes numOfMemtableFlushThreads
    entryLogPerLedgerCounterLimitsMultFactor gcEntryLogMetadataCacheEnabled
    gcEntryLogMetadataCachePath gcOverreplicatedLedgerMaxConcurrentRequests
    compactionMaxOutstandingRequests entryLocationCompactionInterval verifyMetadataOnGC
    enableStatistics statsProviderClass sanityCheckMetricsEnabled enableTaskExecutionStats
    limitStatsLogging prometheusStatsLatencyRolloverSeconds exposeDefaultJVMMetrics httpServerClass
    tlsProvider ledgerManagerFactoryDisableClassCheck entryFormatterClass ledgerIdFormatterClass
    nettyUsePooledBuffers taskExecutionWarnTimeMicros enableHealthCheck
    """
)

_OF_CLIENTS = _names(
    """
    clientRole digestType passwd throttle readTimeout addEntryTimeoutSec readEntryTimeoutSec
    addEntryQuorumTimeoutSec clientConnectTimeoutMillis numChannelsPerBookie useV2WireProtocol
    explicitLacInterval speculativeReadTimeout firstSpeculativeReadTimeout maxSpeculativeReadTimeout
    firstSpeculativeReadLACTimeout maxSpeculativeReadLACTimeout enableParallelRecoveryRead
    recoveryReadBatchSize recoveryBatchReadEnabled stickyReadSEnabled batchReadEnabled numWorkerThreads
    numIOThreads clientTcpNoDelay clientSockKeepalive clientSendBufferSize clientReceiveBufferSize
    waitTimeoutOnBackpressureMs bookieAddressResolverEnabled enableBookieAddressTracking
    enableBookieFailureTracking startTLSTimeoutSecs saslJaasClientSectionName getBookieInfoTimeoutSecs
    timeoutMonitorIntervalSec clientWriteBufferLowWaterMark clientWriteBufferHighWaterMark
    enableDigestTypeAutodetection delayEnsembleChange maxNumEnsembleChanges opportunisticStriping
    enforceMinNumFaultDomainsForWrite reorderReadSequenceEnabled readReorderThresholdPendingRequests
    bookieFailureHistoryExpirationMSec bookieHealthCheckEnabled bookieErrorThresholdPerInterval
    bookieQuarantineTimeSeconds networkTopologyStabilizePeriodSeconds reppEnableValidation
    ignoreLocalNodeInPlacementPolicy zoneawaredns desiredNumZonesPerWriteQuorum minNumZonesPerWriteQuorum
    diskWeightBasedPlacementEnabled bookieMaxMultipleForWeightBasedPlacement getBookieInfoIntervalSeconds
    getBookieInfoRetryIntervalSeconds enforceStrictZoneawarePlacement bookieHealthCheckIntervalSeconds
    bookieQuarantineRatio disableEnsembleChangeFeatureName ensembleRandomReadReordering
    reppDisableDurabilityFeatureName reppDisallowBookiePlacementInRegionFeatureName
    useHostnameResolveLocalNodePlacementPolicy ensemblePlacementPolicyOrderSlowBookies
    clientConnectBookieUnavailableLogThrottling clientTcpUserTimeoutMillis tcpKeepIdle tcpKeepIntvl
    tcpKeepCnt speculativeReadTimeoutBackoffMultiplier speculativeReadLACTimeoutBackoffMultiplier
    timeoutTaskIntervalMillis timeoutTimerTickDurationMs timeoutTimerNumTicks
    pcbcTimeoutTimerTickDurationMs pcbcTimeoutTimerNumTicks bookieConnectionErrorQuarantineEnabled
    """
)

_OF_OTHER_PROGRAMS = _names(
    """
    storageserver.grpc.port dlog.bkcEnsembleSize dlog.bkcWriteQuorumSize dlog.bkcAckQuorumSize
    storage.range.store.dirs storage.serve.readonly.tables
    storage.cluster.controller.schedule.interval.ms
    """
)

# This bookie has no such feature.
UNSUPPORTED = _names(
    """
    prometheusStatsHttpEnable prometheusStatsHttpAddress prometheusStatsHttpPort
    """
)

# They decide which bookies this bookie trusts, which it decides by tlsTrustStore alone. To ignore them would
# be unsafe.
REFUSED = _names("clientTrustStore clientTrustStoreType clientTrustStorePasswordPath")
REFUSAL = "this bookie trusts other bookies by tlsTrustStore alone"

GROUPS = (
    KeyGroup(Fate.OBEYED, "", SUPPORTED),
    KeyGroup(Fate.OBEYED, "by auto-recovery, with autoRecoveryDaemonEnabled=true", AUTO_RECOVERY),
    KeyGroup(Fate.WITHOUT_EFFECT, "they tune threads, buffers or classes of Java's bookie", _OF_JAVA),
    KeyGroup(
        Fate.WITHOUT_EFFECT, "they tune Java's client; clients here have settings of their own", _OF_CLIENTS
    ),
    KeyGroup(
        Fate.WITHOUT_EFFECT,
        "to other bookies this bookie shows the certificate of tlsKeyStore",
        _names("clientKeyStore clientKeyStoreType clientKeyStorePasswordPath"),
    ),
    KeyGroup(
        Fate.WITHOUT_EFFECT,
        "only ledger managers of the layout ms read them, and metadataServiceUri refuses that layout",
        _names("metastoreImplClass metastoreMaxEntriesPerScan"),
    ),
    KeyGroup(
        Fate.WITHOUT_EFFECT,
        "Apache's bookie does not read them either: metadataServiceUri decides",
        _names("registrationManagerClass registrationClientClass"),
    ),
    KeyGroup(
        Fate.WITHOUT_EFFECT,
        "auto-recovery here limits its requests itself, and always writes the time of a mark",
        _names(
            """
    auditorMaxNumberOfConcurrentOpenLedgerOperations auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec
    inFlightReadEntryNumInLedgerChecker storeSystemTimeAsLedgerUnderreplicatedMarkTime
    """
        ),
    ),
    KeyGroup(Fate.WITHOUT_EFFECT, "they are keys of other programs", _OF_OTHER_PROGRAMS),
    KeyGroup(Fate.NOT_OFFERED, "this bookie has no such feature", UNSUPPORTED),
    KeyGroup(Fate.REFUSED, REFUSAL, REFUSED),
)
WITHOUT_EFFECT = frozenset[str]().union(*(one.names for one in GROUPS if one.fate is Fate.WITHOUT_EFFECT))
KNOWN = SUPPORTED | AUTO_RECOVERY | WITHOUT_EFFECT | UNSUPPORTED | REFUSED
_LOWERED = {key.lower(): key for key in KNOWN}

_GROUP_OF = {name: group for group in GROUPS for name in group.names}

# Keys of an authentication plug-in of another package (``bookie.auth.plugins``).
PLUGIN_PREFIX = "authPlugin."

# Keys of other programs, which stand in the same files.
PREFIXES_OF_OTHERS = (
    "codahale",  # statistics of the JVM
    "prometheusStats",
)
_PLUGIN = KeyGroup(Fate.OBEYED, "", frozenset())
_OTHERS = next(group for group in GROUPS if group.names is _OF_OTHER_PROGRAMS)
_UNKNOWN = KeyGroup(Fate.UNKNOWN, "", frozenset())
_SIMILAR = 0.6  # of difflib: the least ratio of two names that are taken for similar

# If one of them is misspelt, the bookie does not start.
PROTECTING = REFUSED | {one.name for one in KEYS.values() if one.protects}
_PROTECTING_WORDS = re.compile(
    r"tls|ssl|auth|sasl|jaas|acl|role|permission|polic|secur|passw|secret|token|trust|encrypt|sync|read_?only",
    re.IGNORECASE,
)


def group_of(name: str) -> KeyGroup:
    """The fate of a key and its reason."""
    group = _GROUP_OF.get(name)
    if group is not None:
        return group
    if name.startswith(PLUGIN_PREFIX):
        return _PLUGIN
    return _OTHERS if name.startswith(PREFIXES_OF_OTHERS) else _UNKNOWN


@functools.lru_cache(maxsize=256)
def nearest_key(name: str) -> str | None:
    """The known key most similar to a misspelt one; None if none is similar."""
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(name.lower())  # of which it remembers facts
    bounds = []
    for known in _LOWERED:
        matcher.set_seq1(known)
        if matcher.real_quick_ratio() >= _SIMILAR and (bound := matcher.quick_ratio()) >= _SIMILAR:
            bounds.append((bound, known))
    best = (_SIMILAR, "")
    for bound, known in sorted(bounds, reverse=True):
        if bound < best[0]:
            break  # no key that follows can be more similar: the exact ratio is dear, and mostly not needed
        matcher.set_seq1(known)
        best = max(best, (matcher.ratio(), known))
    return _LOWERED.get(best[1])


def may_protect(name: str) -> bool:
    """True if an unknown key may be meant to restrict protect something: by its sound or nearest key."""
    return bool(_PROTECTING_WORDS.search(name)) or nearest_key(name) in PROTECTING
