"""Every key that Apache's bookie knows, by its effect here.

A file written for Apache's bookie must work unchanged, and a misspelt key must not pass unnoticed. So each
key of ``bk_server.conf`` is in exactly one of these tables, and a key that is in none is refused.

Inside: names only. Not inside: values and defaults (``config``).

Source: ServerConfiguration.java, AbstractConfiguration.java, ClientConfiguration.java, conf/bk_server.conf.
"""

from __future__ import annotations

import difflib


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Used as Apache's bookie uses them.
SUPPORTED = _names(
    """
    metadataServiceUri zkServers zkLedgersRootPath ledgerManagerType ledgerManagerFactoryClass zkTimeout
    bookieId bookiePort listeningInterface advertisedAddress allowLoopback allowEphemeralPorts
    useHostNameAsBookieID useShortHostName permittedStartupUsers networkLocation autoRecoveryDaemonEnabled
    nettyMaxFrameSizeBytes maxBatchReadSize serverSockKeepalive serverWriteBufferHighWaterMark
    maxAddsInProgressLimit maxReadsInProgressLimit closeChannelOnResponseTimeout
    waitTimeoutOnResponseBackpressureMs serverMaxMemorySizeMb
    maxPendingReadRequestsPerThread maxPendingAddRequestsPerThread maxLongPolls maxLongPollsPerConnection
    maxConnections firstFrameTimeoutMs frameTimeoutMs
    journalDirectories journalDirectory ledgerDirectories indexDirectories allowStorageExpansion
    journalSyncData journalPageCacheFlushIntervalMSec journalMaxSizeMB journalMaxBackups
    journalPreAllocSizeMB journalAlignmentSize journalBufferedWritesThreshold
    journalMaxMemorySizeMb skipReplayJournalInvalidRecord
    ledgerStorageClass pageSize pageLimit openFileLimit
    flushInterval logSizeLimit skipListSizeLimit minUsableSizeForEntryLogCreation
    entryLogPerLedgerEnabled maximumNumberOfActiveEntryLogs entrylogMapAccessExpiryTimeInSeconds
    gcWaitTime gcOverreplicatedLedgerWaitTime gcMetadataOpRateLimit isForceGCAllowWhenNoSpace
    minorCompactionThreshold minorCompactionInterval minorCompactionMaxTimeMillis
    majorCompactionThreshold majorCompactionInterval majorCompactionMaxTimeMillis
    useTargetEntryLogSizeForGc useTransactionalCompaction forceAllowCompaction
    isThrottleByBytes compactionRate compactionRateByEntries compactionRateByBytes compactionReserveBytes
    unconfirmedLedgersMax newLedgersPerSecondMax unconfirmedLedgerGraceSeconds
    policyNamespaces policyCacheSeconds
    readOnlyModeEnabled readOnlyModeOnAnyDiskFullEnabled forceReadOnlyBookie diskUsageThreshold
    diskUsageWarnThreshold diskUsageLwmThreshold diskCheckInterval minUsableSizeForHighPriorityWrites
    minUsableSizeForIndexFileCreation persistBookieStatusEnabled flushReserveBytes
    dbStorage_readAheadCacheMaxSizeMb dbStorage_readAheadCacheBatchSize dbStorage_readAheadCacheBatchBytesSize
    localScrubInterval localScrubRateLimit localScrubRateByBytes localConsistencyCheckOnStartup
    httpServerEnabled httpServerPort httpServerHost httpServerTlsEnable httpServerTokenPath
    httpPageNamespace httpPageRecords
    httpServerAllowedHosts httpServerKeyStorePath httpServerKeyStorePassword httpServerTrustStorePath
    httpServerTrustStorePassword
    tlsProviderFactoryClass tlsClientAuthentication tlsKeyStoreType tlsKeyStore tlsKeyStorePasswordPath
    tlsTrustStoreType tlsTrustStore tlsTrustStorePasswordPath tlsCertificatePath tlsEnabledCipherSuites
    tlsEnabledProtocols tlsRequired tlsCertFilesRefreshDurationSeconds
    bookieAuthProviderFactoryClass authorizedRoles zkEnableSecurity authTokenFile
    clientAuthProviderFactoryClass java.security.auth.login.config
    saslJaasBookieSectionName saslJaasAuditorSectionName saslJaasClientAllowedIds
    dataIntegrityChecking dataIntegrityStampMissingCookies
    journalWriteData
    """
)

# They tune a JVM, Netty, RocksDB or a Java class, or a part that works differently here.
WITHOUT_EFFECT = _names(
    """
    zkRetryBackoffStartMs zkRetryBackoffMaxMs zkRetryBackoffMaxRetries zkRequestRateLimit
    ledgerMetadataVersion storeSystemTimeAsLedgerCreationTime allowShadedLedgerManagerFactoryClass
    shadedLedgerManagerFactoryClassPrefix zkReplicationTaskRateLimit
    allowMultipleDirsUnderSameDiskPartition
    enableLocalTransport disableServerSocketBind bookieDeathWatchInterval extraServerComponents
    ignoreExtraServerComponentsStartupFailures numAddWorkerThreads numReadWorkerThreads
    numLongPollWorkerThreads numHighPriorityWorkerThreads
    readWorkerThreadsThrottlingEnabled
    requestTimerTickDurationMs requestTimerNumTicks enableBusyWait preserveMdcForTaskExecution
    serverNumIOThreads serverNumAcceptorThreads serverTcpNoDelay serverTcpLinger serverTcpKeepIdle
    serverTcpKeepIntvl serverTcpKeepCnt byteBufAllocatorSizeInitial byteBufAllocatorSizeMin
    byteBufAllocatorSizeMax serverWriteBufferLowWaterMark allocatorPoolingPolicy
    allocatorPoolingConcurrency allocatorOutOfMemoryPolicy allocatorLeakDetectionPolicy
    allocatorExitOnOutOfMemory
    journalFormatVersionToWrite journalWriteBufferSizeKB journalAdaptiveGroupWrites journalMaxGroupWaitMSec
    journalBufferedEntriesThreshold journalFlushWhenQueueEmpty
    journalRemoveFromPageCache journalReuseFiles journalChannelProvider numJournalCallbackThreads
    journalQueueSize
    sortedLedgerStorageEnabled fileInfoFormatVersionToWrite fileInfoCacheInitialCapacity
    fileInfoMaxIdleTime skipListArenaChunkSize skipListArenaMaxAllocSize
    dbStorage_writeCacheMaxSizeMb dbStorage_rocksDB_blockCacheSize
    dbStorage_rocksDB_writeBufferSizeMB dbStorage_rocksDB_sstSizeInMB dbStorage_rocksDB_blockSize
    dbStorage_rocksDB_bloomFilterBitsPerKey dbStorage_rocksDB_numLevels dbStorage_rocksDB_numFilesInLevel0
    dbStorage_rocksDB_maxSizeInLevel1MB dbStorage_rocksDB_format_version dbStorage_rocksDB_checksum_type
    defaultRocksdbConf entryLocationRocksdbConf ledgerMetadataRocksdbConf
    maxOperationNumbersInSingleRocksdbWriteBatch dbStorage_directIOEntryLogger
    dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB dbStorage_directIOEntryLoggerTotalReadBufferSizeMB
    dbStorage_directIOEntryLoggerReadBufferSizeMB dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds
    entryLogFilePreallocationEnabled flushEntrylogBytes readBufferSizeBytes writeBufferSizeBytes
    numOfMemtableFlushThreads entryLogPerLedgerCounterLimitsMultFactor
    gcEntryLogMetadataCacheEnabled gcEntryLogMetadataCachePath gcOverreplicatedLedgerMaxConcurrentRequests
    compactionMaxOutstandingRequests entryLocationCompactionInterval verifyMetadataOnGC
    enableStatistics statsProviderClass sanityCheckMetricsEnabled enableTaskExecutionStats
    limitStatsLogging prometheusStatsLatencyRolloverSeconds exposeDefaultJVMMetrics httpServerClass
    tlsProvider clientRole digestType passwd
    throttle readTimeout addEntryTimeoutSec readEntryTimeoutSec addEntryQuorumTimeoutSec
    clientConnectTimeoutMillis numChannelsPerBookie useV2WireProtocol explicitLacInterval
    speculativeReadTimeout firstSpeculativeReadTimeout maxSpeculativeReadTimeout
    firstSpeculativeReadLACTimeout maxSpeculativeReadLACTimeout enableParallelRecoveryRead
    recoveryReadBatchSize recoveryBatchReadEnabled stickyReadSEnabled batchReadEnabled numWorkerThreads
    numIOThreads clientTcpNoDelay clientSockKeepalive clientSendBufferSize clientReceiveBufferSize
    waitTimeoutOnBackpressureMs bookieAddressResolverEnabled enableBookieAddressTracking
    enableBookieFailureTracking startTLSTimeoutSecs tlsHostnameVerificationEnabled
    saslJaasClientSectionName getBookieInfoTimeoutSecs timeoutMonitorIntervalSec
    clientWriteBufferLowWaterMark clientWriteBufferHighWaterMark enableDigestTypeAutodetection
    delayEnsembleChange maxNumEnsembleChanges opportunisticStriping
    enforceMinNumFaultDomainsForWrite minNumRacksPerWriteQuorum enforceMinNumRacksPerWriteQuorum
    reorderReadSequenceEnabled readReorderThresholdPendingRequests bookieFailureHistoryExpirationMSec
    bookieHealthCheckEnabled bookieErrorThresholdPerInterval bookieQuarantineTimeSeconds
    ensemblePlacementPolicy reppDnsResolverClass networkTopologyScriptFileName
    networkTopologyStabilizePeriodSeconds reppRegionsToWrite reppMinimumRegionsForDurability
    reppEnableDurabilityEnforcementInReplace reppEnableValidation ignoreLocalNodeInPlacementPolicy
    zoneawaredns desiredNumZonesPerWriteQuorum minNumZonesPerWriteQuorum diskWeightBasedPlacementEnabled
    bookieMaxMultipleForWeightBasedPlacement getBookieInfoIntervalSeconds
    getBookieInfoRetryIntervalSeconds enforceStrictZoneawarePlacement bookieHealthCheckIntervalSeconds
    bookieQuarantineRatio disableEnsembleChangeFeatureName ensembleRandomReadReordering
    networkTopologyScriptNumberArgs reppDisableDurabilityFeatureName
    reppDisallowBookiePlacementInRegionFeatureName useHostnameResolveLocalNodePlacementPolicy
    storageserver.grpc.port dlog.bkcEnsembleSize dlog.bkcWriteQuorumSize dlog.bkcAckQuorumSize
    storage.range.store.dirs storage.serve.readonly.tables storage.cluster.controller.schedule.interval.ms
    metastoreImplClass metastoreMaxEntriesPerScan registrationManagerClass registrationClientClass
    ledgerManagerFactoryDisableClassCheck entryFormatterClass ledgerIdFormatterClass nettyUsePooledBuffers
    taskExecutionWarnTimeMicros enableHealthCheck ensemblePlacementPolicyOrderSlowBookies
    clientConnectBookieUnavailableLogThrottling clientTcpUserTimeoutMillis tcpKeepIdle tcpKeepIntvl tcpKeepCnt
    clientKeyStore clientKeyStoreType clientKeyStorePasswordPath
    speculativeReadTimeoutBackoffMultiplier speculativeReadLACTimeoutBackoffMultiplier
    timeoutTaskIntervalMillis timeoutTimerTickDurationMs timeoutTimerNumTicks
    pcbcTimeoutTimerTickDurationMs pcbcTimeoutTimerNumTicks bookieConnectionErrorQuarantineEnabled
    """
)

# This bookie has no such feature; setting one of these keys gives a warning.
UNSUPPORTED = _names(
    """
    prometheusStatsHttpEnable prometheusStatsHttpAddress prometheusStatsHttpPort
    rereplicationEntryBatchSize openLedgerRereplicationGracePeriod
    lockReleaseOfFailedLedgerGracePeriod rwRereplicateBackoffMs replicationRateByBytes
    storeSystemTimeAsLedgerUnderreplicatedMarkTime auditorPeriodicBookieCheckInterval
    auditorPeriodicCheckInterval auditorLedgerVerificationPercentage
    auditorPeriodicPlacementPolicyCheckInterval auditorReplicasCheckInterval
    auditorMaxNumberOfConcurrentOpenLedgerOperations auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec
    underreplicatedLedgerRecoveryGracePeriod lostBookieRecoveryDelay
    repairedPlacementPolicyNotAdheringBookieEnabled
    inFlightReadEntryNumInLedgerChecker
    """
)

# They decide which bookies this bookie trusts, which it decides by tlsTrustStore alone. To ignore them would
# be unsafe.
REFUSED = _names("clientTrustStore clientTrustStoreType clientTrustStorePasswordPath")

KNOWN = SUPPORTED | WITHOUT_EFFECT | UNSUPPORTED | REFUSED

# Keys of an authentication plug-in of another package (``bookie.auth.plugins``).
PLUGIN_PREFIX = "authPlugin."

# Keys of other programs, which stand in the same files.
PREFIXES_OF_OTHERS = (
    "codahale",  # statistics of the JVM
    "prometheusStats",
)


def nearest_key(name: str) -> str | None:
    """The known key most similar to a misspelt one; None if none is similar."""
    lowered = {key.lower(): key for key in KNOWN}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None
