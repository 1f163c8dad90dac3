"""The keys of Apache's file: each has one effect, and a misspelt one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.config.keys import KNOWN, REFUSED, SUPPORTED, UNSUPPORTED, WITHOUT_EFFECT, nearest_key
from bookie.config.settings import Settings
from bookie.errors import BookieConfigError
from tests.unit.bookie.config.test_config import LEAST, parse


def test_every_key_has_exactly_one_effect() -> None:
    assert len(KNOWN) == len(SUPPORTED) + len(WITHOUT_EFFECT) + len(UNSUPPORTED) + len(REFUSED)


def test_every_key_of_apaches_configuration_classes_is_known() -> None:
    apache = frozenset(Path(__file__).with_name("apache_keys.txt").read_text("utf-8").split())
    assert "metastoreImplClass" in apache
    assert apache - KNOWN == frozenset()


def test_a_key_of_apaches_own_tests_does_not_stop_the_start() -> None:
    config = parse("metastoreImplClass=org.apache.bookkeeper.metastore.InMemoryMetaStore\n")
    assert any("metastoreImplClass" in warning for warning in config.warnings)


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_a_key_of_trust_that_is_not_obeyed_is_refused(key: str) -> None:
    with pytest.raises(BookieConfigError, match=f"line 5: {key} = .*tlsTrustStore alone"):
        parse(f"{key}=JKS\n")


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
    assert keys_read == SUPPORTED


def test_keys_without_effect_are_named_in_one_warning_for_each_kind() -> None:
    config = parse(
        "numAddWorkerThreads=1\nauditorPeriodicCheckInterval=5\nserverTcpNoDelay=true\ncodahaleX=y\n"
    )
    jvm, absent = config.warnings
    assert "numAddWorkerThreads, serverTcpNoDelay, codahaleX" in jvm
    assert "auditorPeriodicCheckInterval" in absent


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("jurnalDirectories", "journalDirectories"),
        ("bookieport", "bookiePort"),
        ("zkServer", "zkServers"),
        ("advertisedAdress", "advertisedAddress"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_nearest_one(key: str, nearest: str) -> None:
    with pytest.raises(
        BookieConfigError, match=f"bk_server.conf, line 5: there is no key '{key}'; did you mean {nearest}"
    ):
        parse(f"{key}=1\n")


def test_a_key_like_no_other_has_no_nearest() -> None:
    assert nearest_key("qqqqqqqqqq") is None
