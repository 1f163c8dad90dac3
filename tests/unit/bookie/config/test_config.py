"""The configuration of a bookie: the values of Apache's file, except those of security."""

# covers: bookie/config/bookie_config.py
# covers: bookie/config/classes.py

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bookie.config.bookie_config import load_config, parse_config
from bookie.config.classes import BookieConfig
from bookie.errors import BookieConfigError
from bookie.index.index_factory import IndexKind
from bookie.index.page_cache import PageIndexConfig
from ledger.catalog.paths import Layout

LEAST = """
metadataServiceUri=zk+null://zk1:2181/ledgers
journalDirectories=/data/journal
ledgerDirectories=/data/ledgers
"""


def parse(more: str = "", base: str = LEAST) -> BookieConfig:
    return parse_config(base + more, "bk_server.conf")


@pytest.mark.parametrize(
    ("line", "expectation"),
    [
        ("bookiePort=many", "a whole number from 0 to 65535"),
        ("bookiePort=65536", "a whole number from 0 to 65535"),
        ("bookiePort=0", "allowEphemeralPorts=true"),
        ("zkTimeout=-1", "in milliseconds"),
        ("logSizeLimit=1", "in bytes"),
        ("nettyMaxFrameSizeBytes=16777217", "a whole number from 1024 to 16777216, in bytes"),
        ("allowLoopback=perhaps", "true or false"),
        ("diskUsageThreshold=95", "a share from 0 to 1"),
        ("diskUsageLwmThreshold=0.99", r"at most diskUsageThreshold, 0\.95"),
        ("tlsProviderFactoryClass=com.example.Mine", "org.apache.bookkeeper.tls.TLSContextFactory"),
        ("bookieAuthProviderFactoryClass=com.example.Auth", "would serve every client"),
        ("tlsClientAuthentication=true", "tlsProviderFactoryClass"),
        ("tlsRequired=true", "tlsProviderFactoryClass"),
        ("authorizedRoles=writer", "BookieAuthZFactory beside it"),
        ("saslJaasClientAllowedIds=alice", "SASLBookieAuthProviderFactory beside it"),
        ("authTokenFile=/t", "bookieAuthProviderFactoryClass=token beside it"),
        ("policyNamespaces=/n", "has no identity, and a policy cannot name it"),
        ("authPlugin.realm=x", "bookieAuthProviderFactoryClass with the name of the plug-in"),
        ("bookieAuthProviderFactoryClass=sasl", "java.security.auth.login.config, the JAAS file"),
        ("bookieAuthProviderFactoryClass=token", "authTokenFile, the file with the tokens"),
        ("clientAuthProviderFactoryClass=com.example.Mine", "SASLClientProviderFactory"),
        (
            "clientAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLClientProviderFactory",
            "java.security.auth.login.config",
        ),
        ("zkEnableSecurity=true", "the variable DLOG_ZK_SECURITY must name a file"),
        ("dataIntegrityChecking=perhaps", "true or false"),
        ("permittedStartupUsers=another-user", "the user who starts it"),
    ],
)
def test_a_bad_value_names_key_value_line_and_expectation(line: str, expectation: str) -> None:
    key, value = line.split("=")
    with pytest.raises(BookieConfigError) as caught:
        parse(line)
    assert str(caught.value).startswith(f"bk_server.conf, line 5: {key} = '{value}': expected ")
    assert re.search(expectation, str(caught.value))


@pytest.mark.parametrize("key", ["journalDirectories", "ledgerDirectories"])
def test_directories_have_no_default_and_are_named_once(key: str) -> None:
    with pytest.raises(
        BookieConfigError, match=f"{key} is missing: expected a directory that survives a reboot"
    ):
        parse(base=LEAST.replace(key, "#"))
    with pytest.raises(BookieConfigError, match="each directory once"):
        parse(base=LEAST.replace(f"{key}=", f"{key}=/other,/other/,"))


def test_several_directories_arrive_in_their_order() -> None:
    base = LEAST.replace("journalDirectories=", "journalDirectories=/j2,")
    base = base.replace("ledgerDirectories=", "ledgerDirectories=/l2,/l3,")
    config = parse("indexDirectories=/i2,/i3,/i1\n", base=base)
    assert config.storage.journal_directories == (Path("/j2"), Path("/data/journal"))
    assert config.storage.ledger_directories == (Path("/l2"), Path("/l3"), Path("/data/ledgers"))
    assert config.storage.index_directories == (Path("/i2"), Path("/i3"), Path("/i1"))
    assert config.directories.index == ("/i2", "/i3", "/i1")
    with pytest.raises(BookieConfigError, match="one for each of the 3 ledgerDirectories"):
        parse("indexDirectories=/i2,/i3\n", base=base)


def test_the_older_key_of_the_journal_works_and_the_newer_one_wins() -> None:
    ledgers = "zkServers=zk1\nledgerDirectories=/l\n"
    assert parse(base=f"{ledgers}journalDirectory=/old\n").directories.journal == ("/old",)
    both = parse(base=f"{ledgers}journalDirectory=/old\njournalDirectories=/new\n")
    assert both.directories.journal == ("/new",)


def test_the_keys_of_the_journal_have_their_effect() -> None:
    journal = parse(
        "journalMaxBackups=2\njournalPreAllocSizeMB=4\njournalAlignmentSize=4096\n"
    ).storage.journal
    assert (journal.backups_max, journal.preallocate_bytes) == (2, 4 << 20)
    assert parse().storage.journal.backups_max == 5
    with pytest.raises(BookieConfigError, match="a divisor of 4096"):
        parse("journalAlignmentSize=8192\n")
    assert parse().storage.sync_interval_s is None
    assert parse("journalSyncData=false\n").storage.sync_interval_s == 1
    lazy = parse("journalSyncData=false\njournalPageCacheFlushIntervalMSec=50\n")
    assert lazy.storage.sync_interval_s == 0.05


def test_defaults_are_those_of_apache() -> None:
    config = parse()
    assert config.address.port == 3181
    assert config.metadata.session_timeout_ms == 10_000
    assert config.server.frame_bytes_max == 5_242_880
    assert (config.fullness.full, config.fullness.warn, config.fullness.low) == (0.95, 0.90, 0.95)
    assert config.fullness.high_priority_bytes_min == 1 << 30
    assert config.gc.interval_s == 600
    assert config.storage.flush_interval_s == 10
    assert config.sync_adds
    assert not config.read_only
    assert config.tls is None
    assert config.warnings == ()


def test_values_arrive_with_their_units() -> None:
    config = parse(
        "bookieId=mine\nbookiePort=4000\nlisteningInterface=eth7\nadvertisedAddress=b.example\n"
        "journalMaxSizeMB=128\njournalBufferedWritesThreshold=65536\nflushInterval=500\nlogSizeLimit=1048576\n"
        "skipListSizeLimit=8388608\njournalMaxMemorySizeMb=2\nforceReadOnlyBookie=true\njournalSyncData=no\n"
        "gcWaitTime=1000\ndiskCheckInterval=5000\nminUsableSizeForEntryLogCreation=5\nmaxBatchReadSize=9999999\n"
        "indexDirectories=/i\nallowStorageExpansion=on\nzkTimeout=4000\n"
    )
    assert (config.address.bookie_id, config.address.port) == ("mine", 4000)
    assert (config.address.interface, config.address.advertised) == ("eth7", "b.example")
    assert config.storage.journal.file_bytes_max == 128 << 20
    assert config.storage.journal.group_bytes_max == 65536
    assert (config.storage.flush_interval_s, config.storage.entry_log_bytes_max) == (0.5, 1 << 20)
    assert (config.storage.write_cache_bytes_max, config.storage.journal_queue_bytes_max) == (
        8 << 20,
        2 << 20,
    )
    assert config.storage.ledger_directories == (Path("/data/ledgers"),)
    assert config.read_only
    assert not config.sync_adds
    assert any("journalSyncData=false" in warning for warning in config.warnings)
    assert (config.gc.interval_s, config.fullness.check_interval_s) == (1, 5)
    assert config.fullness.high_priority_bytes_min == 5
    assert config.server.batch_bytes_max == config.server.frame_bytes_max
    assert parse("nettyMaxFrameSizeBytes=5253120\n").server.frame_bytes_max == 5_253_120
    assert config.directories.index == ("/i",)
    assert config.startup_check.allow_expansion
    assert config.metadata.session_timeout_ms == 4000


def test_the_storage_class_chooses_the_index() -> None:
    for name, kind in (
        ("DbLedgerStorage", IndexKind.CHUNKS),
        ("org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage", IndexKind.CHUNKS),
        ("org.apache.bookkeeper.bookie.SortedLedgerStorage", IndexKind.PAGES),
        ("InterleavedLedgerStorage", IndexKind.PAGES),
    ):
        assert parse(f"ledgerStorageClass={name}").storage.index.kind is kind
    assert parse().storage.index.kind is IndexKind.PAGES, "as Apache's bookie"
    pages = parse("pageSize=4096\npageLimit=100\nopenFileLimit=7").storage.index.pages
    assert pages == PageIndexConfig(page_bytes=4096, pages_max=100, open_files_max=7)
    assert parse("pageLimit=-1").storage.index.pages.pages_max * 8192 == 64 << 20
    for wrong in ("ledgerStorageClass=com.example.Mine", "pageSize=1000", "pageSize=0"):
        with pytest.raises(BookieConfigError):
            parse(wrong)


@pytest.mark.parametrize(
    ("lines", "hosts", "root", "layout"),
    [
        (
            "metadataServiceUri=zk+hierarchical://a:1;b:2/x/ledgers",
            "a:1,b:2",
            "/x/ledgers",
            Layout.HIERARCHICAL,
        ),
        ("metadataServiceUri=zk+longhierarchical://a:1,b:2/l", "a:1,b:2", "/l", Layout.LONG_HIERARCHICAL),
        ("zkServers=a:1,b:2", "a:1,b:2", "/ledgers", None),
        ("zkServers=a:1\nzkLedgersRootPath=/old", "a:1", "/old", None),
        ("zkServers=a:1\nledgerManagerType=flat", "a:1", "/ledgers", Layout.FLAT),
        (
            "zkServers=a:1\nledgerManagerFactoryClass=org.apache.bookkeeper.meta.FlatLedgerManagerFactory",
            "a:1",
            "/ledgers",
            Layout.FLAT,
        ),
        ("metadataServiceUri=zk://a:1/l\nzkServers=b:1\nledgerManagerType=flat", "a:1", "/l", None),
    ],
)
def test_both_ways_to_name_the_cluster(lines: str, hosts: str, root: str, layout: Layout | None) -> None:
    config = parse(base=f"{lines}\njournalDirectories=/j\nledgerDirectories=/l\n").metadata
    assert (config.hosts, config.ledgers_root, config.layout) == (hosts, root, layout)


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "metadataServiceUri=etcd://a/l",
        "metadataServiceUri=zk+ms://a/l",
        "metadataServiceUri=zk://a",
        "zkServers=a b",
    ],
)
def test_an_invalid_metadata_service_is_refused(lines: str) -> None:
    with pytest.raises(BookieConfigError, match=r"metadataServiceUri|zkServers"):
        parse(base=f"{lines}\njournalDirectories=/j\nledgerDirectories=/l\n")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BookieConfigError, match=r"absent\.conf cannot be read"):
        load_config(tmp_path / "absent.conf")
    path = tmp_path / "latin.conf"
    path.write_bytes(LEAST.encode() + "bookieId=caf\xe9\n".encode("latin-1"))
    assert load_config(path).address.bookie_id == "café"


def test_the_network_location_is_read() -> None:
    assert parse().network_location is None
    assert parse("networkLocation=/eu/r1/\n").network_location == "/eu/r1"
    with pytest.raises(BookieConfigError, match=r"networkLocation.*such as /rack or /region/rack"):
        parse("networkLocation=r1\n")


def test_reads_and_back_pressure_follow_apaches_keys() -> None:
    default = parse()
    assert default.server.response_timeout_s is None
    assert (default.server.adds_in_progress_max, default.server.reads_in_progress_max) == (0, 0)
    config = parse(
        "maxAddsInProgressLimit=7\nmaxReadsInProgressLimit=8\nwaitTimeoutOnResponseBackpressureMs=1500\n"
        "closeChannelOnResponseTimeout=true\nserverMaxMemorySizeMb=9\ndbStorage_readAheadCacheMaxSizeMb=10\n"
        "dbStorage_readAheadCacheBatchSize=11\ndbStorage_readAheadCacheBatchBytesSize=12\n"
        "persistBookieStatusEnabled=true\nminUsableSizeForIndexFileCreation=13\n"
    )
    server, reads = config.server, config.storage.reads
    assert (server.adds_in_progress_max, server.reads_in_progress_max) == (7, 8)
    assert (server.response_timeout_s, server.total_bytes_max) == (1.5, 9 << 20)
    assert (reads.cache_bytes_max, reads.ahead_entries_max, reads.ahead_bytes_max) == (10 << 20, 11, 12)
    assert config.persist_status
    assert config.fullness.index_file_bytes_min == 13
    waits = parse("waitTimeoutOnResponseBackpressureMs=1500\n")
    assert waits.server.response_timeout_s is None, "no reply is dropped; the requests of the peer wait"


def test_the_scrubber_runs_unless_it_is_switched_off() -> None:
    scrub = parse().storage.scrub
    assert (scrub.interval_s, scrub.bytes_per_s, scrub.entries_per_s, scrub.on_start) == (
        86_400,
        8 << 20,
        0,
        False,
    )
    scrub = parse(
        "localScrubInterval=0\nlocalScrubRateLimit=60\nlocalScrubRateByBytes=5\n"
        "localConsistencyCheckOnStartup=true\n"
    ).storage.scrub
    assert (scrub.interval_s, scrub.bytes_per_s, scrub.entries_per_s, scrub.on_start) == (0, 5, 60, True)
