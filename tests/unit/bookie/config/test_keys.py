"""The keys of Apache's file: each has one fate, and a misspelt one does not pass unnoticed."""

# covers: bookie/config/key_check.py

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.config.bookie_config import parse_config
from bookie.config.keys import (
    GROUPS,
    KNOWN,
    PROTECTING,
    REFUSED,
    Fate,
    group_of,
    nearest_key,
)
from bookie.config.security_settings import RESTRICTIONS
from bookie.config.settings import Settings
from bookie.config.table import AUTO_RECOVERY, SUPPORTED
from bookie.errors import BookieConfigError
from tests.unit.bookie.config.apache_keys import apache_keys
from tests.unit.bookie.config.test_config import LEAST, parse


def test_every_key_has_exactly_one_fate() -> None:
    assert len(KNOWN) == sum(len(group.names) for group in GROUPS)
    assert group_of("authPlugin.realm").fate is Fate.OBEYED
    assert group_of("codahaleStatsPrefix").fate is Fate.WITHOUT_EFFECT
    assert group_of("nonsense").fate is Fate.UNKNOWN


def test_every_key_that_restricts_access_is_marked_as_protecting() -> None:
    assert KNOWN >= PROTECTING
    assert {restriction.key for restriction in RESTRICTIONS} <= PROTECTING


def test_every_key_of_apaches_configuration_classes_is_known() -> None:
    apache = apache_keys().keys()
    assert "metastoreImplClass" in apache
    assert apache - KNOWN == frozenset()


def test_a_key_of_apaches_own_tests_does_not_stop_the_start() -> None:
    config = parse("metastoreImplClass=org.apache.bookkeeper.metastore.InMemoryMetaStore\n")
    assert any("metastoreImplClass" in warning for warning in config.warnings)


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_a_key_of_trust_that_is_not_obeyed_is_refused(key: str) -> None:
    with pytest.raises(BookieConfigError, match=f"line 5: {key} = .*tlsTrustStore alone"):
        parse(f"{key}=JKS\n")


def test_the_clients_trust_store_may_be_that_of_the_bookie() -> None:
    lines = "tlsTrustStore=/t\ntlsTrustStoreType=JKS\nclientTrustStore=/t\nclientTrustStoreType=JKS\n"
    assert parse(lines).tls is None
    with pytest.raises(BookieConfigError, match="tlsTrustStore alone"):
        parse(lines.replace("clientTrustStore=/t", "clientTrustStore=/other"))


@pytest.mark.parametrize(
    "line",
    [
        "tlsKeyStore=/k",
        "tlsCertificatePath=/c",
        "tlsTrustStore=/t",
        "tlsEnabledProtocols=TLSv1.3",
        "tlsEnabledCipherSuites=X",
        "tlsHostnameVerificationEnabled=true",
        "saslJaasBookieSectionName=Mine",
        "policyCacheSeconds=30",
    ],
)
def test_a_key_that_closes_nothing_alone_is_a_warning(line: str) -> None:
    (warning,) = parse(f"{line}\n").warnings
    assert warning.startswith(f"{line.partition('=')[0]}: has no effect; it needs ")


def test_every_supported_key_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    keys_read: set[str] = set()
    read = Settings.text

    class Recorded(set[str]):
        def add(self, key: str) -> None:
            keys_read.add(key)

    start = Settings.__init__

    def recording(self: Settings, *arguments: object) -> None:
        start(self, *arguments)  # type: ignore[arg-type]
        self.keys_read = Recorded()

    monkeypatch.setattr(Settings, "__init__", recording)
    parse()
    parse("ledgerManagerType=flat\nzkServers=a:1\n", LEAST.replace("metadataServiceUri", "#"))
    assert read is Settings.text
    assert keys_read == SUPPORTED | AUTO_RECOVERY


def test_keys_without_effect_are_named_in_one_warning_for_each_reason() -> None:
    config = parse(
        "numAddWorkerThreads=1\nprometheusStatsHttpEnable=5\nserverTcpNoDelay=true\ncodahaleX=y\n"
        "clientKeyStore=/k\nreadTimeout=3\n"
    )
    java, absent, others, own, clients = config.warnings
    assert "of Java's bookie): numAddWorkerThreads, serverTcpNoDelay" in java
    assert "no such feature): prometheusStatsHttpEnable" in absent
    assert "other programs): codahaleX" in others
    assert "shows the certificate of tlsKeyStore): clientKeyStore" in own
    assert "Java's client; clients here have settings of their own): readTimeout" in clients


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("flushIntervall", "flushInterval"),
        ("gcwaittime", "gcWaitTime"),
        ("numAddWorkerThread", "numAddWorkerThreads"),
    ],
)
def test_a_misspelt_key_is_a_warning_with_the_nearest_one_and_strictly_an_error(
    key: str, nearest: str
) -> None:
    sentence = f"bk_server.conf, line 5: there is no key '{key}'; did you mean {nearest}?"
    assert parse(f"{key}=1\n").warnings == (f"{sentence} It has no effect",)
    with pytest.raises(BookieConfigError) as caught:
        parse_config(LEAST + f"{key}=1\n", "bk_server.conf", strict=True)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("jurnalDirectories", "journalDirectories"),
        ("bookieport", "bookiePort"),
        ("zkServer", "zkServers"),
        ("advertisedAdress", "advertisedAddress"),
        ("tlsClientAuth", "tlsClientAuthentication"),
        ("authorizedRole", "authorizedRoles"),
        ("journalSyncDatas", "journalSyncData"),
        ("forceReadonlyBooky", "forceReadOnlyBookie"),
        ("permitedStartupUser", "permittedStartupUsers"),
    ],
)
def test_a_misspelt_key_that_protects_something_is_refused(key: str, nearest: str) -> None:
    with pytest.raises(
        BookieConfigError, match=f"bk_server.conf, line 5: there is no key '{key}'; did you mean {nearest}"
    ):
        parse(f"{key}=1\n")


@pytest.mark.parametrize("key", ["requireTls", "bookieAclFile", "encryptedJournal", "fsync"])
def test_an_unknown_key_that_sounds_of_protection_is_refused(key: str) -> None:
    with pytest.raises(BookieConfigError, match=f"there is no key '{key}'"):
        parse(f"{key}=1\n")


def test_a_bookie_that_must_not_listen_is_refused() -> None:
    with pytest.raises(BookieConfigError, match="disableServerSocketBind = 'true': expected false"):
        parse("disableServerSocketBind=true\n")
    assert parse("disableServerSocketBind=false\n").warnings == ()


@given(st.data())
def test_the_nearest_key_is_that_of_a_comparison_with_every_key(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(KNOWN)) | st.text(max_size=30))
    for _ in range(data.draw(st.integers(0, 6))):
        place = data.draw(st.integers(0, len(name)))
        kept = place + data.draw(st.integers(0, 3))
        name = name[:place] + data.draw(st.text("abcdeLMN._ß", max_size=2)) + name[kept:]
    lowered = {key.lower(): key for key in KNOWN}
    found = difflib.get_close_matches(name.lower(), lowered, n=1)
    assert nearest_key(name) == (lowered[found[0]] if found else None)


def test_a_key_like_no_other_has_no_nearest() -> None:
    assert nearest_key("qqqqqqqqqq") is None
    assert parse("qqqqqqqqqq=1\n").warnings == (
        "bk_server.conf, line 5: there is no key 'qqqqqqqqqq'. It has no effect",
    )
