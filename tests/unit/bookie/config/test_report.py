"""The report on a ``bk_server.conf``: all keys and all problems."""

from __future__ import annotations

from bookie.config.keys import Fate
from bookie.config.report import check_text
from tests.unit.bookie.config.test_config import LEAST


def test_each_key_is_listed_with_its_fate_in_the_order_of_the_file() -> None:
    report = check_text(LEAST + "flushIntervall=1\nmetastoreImplClass=X\nprometheusStatsHttpEnable=1\n", "f")
    assert [(one.key, one.line, one.fate) for one in report.keys[2:]] == [
        ("ledgerDirectories", 4, Fate.OBEYED),
        ("flushIntervall", 5, Fate.UNKNOWN),
        ("metastoreImplClass", 6, Fate.WITHOUT_EFFECT),
        ("prometheusStatsHttpEnable", 7, Fate.NOT_OFFERED),
    ]
    assert report.keys[3].nearest == "flushInterval"
    assert "layout ms" in report.keys[4].note
    assert report.problems == ()
    assert len(report.warnings) == 3


def test_every_problem_is_found_and_not_only_the_first() -> None:
    report = check_text(
        "journalDirectories=/j\ngcWaitTime=soon\nallowLoopback=perhaps\nclientTrustStore=/t\ntlsRequird=true\n"
        "zkTimeout=-1\ntlsRequired=true\n",
        "f",
    )
    found = "\n".join(report.problems)
    for part in (
        "f, line 2: gcWaitTime = 'soon'",
        "f, line 3: allowLoopback = 'perhaps'",
        "f, line 4: clientTrustStore: expected no value",
        "f, line 5: there is no key 'tlsRequird'; did you mean tlsRequired?",
        "f, line 6: zkTimeout = '-1'",
        "f, line 7: tlsRequired = 'true': expected tlsProviderFactoryClass",
        "f: ledgerDirectories is missing",
        "f: metadataServiceUri is missing",
    ):
        assert part in found
    assert len(report.problems) == 8


def test_what_follows_from_a_reported_problem_is_not_reported_again() -> None:
    report = check_text(LEAST + "tlsProviderFactoryClass=mine\ntlsKeyStore=/k\n", "f")
    (problem,) = report.problems
    assert "tlsProviderFactoryClass = 'mine'" in problem


def test_an_unknown_key_is_a_problem_only_strictly() -> None:
    text = LEAST + "flushIntervall=1\n"
    assert check_text(text, "f").problems == ()
    (problem,) = check_text(text, "f", strict=True).problems
    assert "did you mean flushInterval?" in problem


def test_a_file_that_does_not_parse_is_a_problem() -> None:
    report = check_text("a = ${b}\n", "f")
    assert report.keys == ()
    assert "refers to a key that is not set" in report.problems[0]


def test_no_secret_of_the_environment_is_in_a_report() -> None:
    report = check_text(LEAST + "gcWaitTime=${env:SECRET}\n", "f", {"SECRET": "hidden"})
    assert report.problems
    assert "hidden" not in repr(report)
