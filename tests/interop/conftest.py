"""Fixtures of the tests beside Apache's originals: versions, clusters, drivers, and the table at the end.

Always: a fixture ends everything that it started. A failing test shows the last log lines of its processes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.driver import Driver
from tests.interop.originals import Cluster, Kind, Originals
from tests.interop.streams import StreamPlace, bind_by_java, bind_by_us
from tests.interop.table import Tally, all_green, table_lines

VERSIONS = tuple(os.environ.get("DLOG_INTEROP_VERSIONS", "4.17.3,4.18.0").replace(",", " ").split())
MUST_BE_COMPLETE = "DLOG_INTEROP_COMPLETE"
SHOWN_BYTES = 1500
SHOWN_LOGS = 8

_CELLS = "cells of the table of compatibility"
_tally = pytest.StashKey[Tally]()


@pytest.fixture(scope="session", params=VERSIONS)
def originals(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Originals]:
    """One release of Apache's programs. Tests of one release run together."""
    release = Originals(request.param, tmp_path_factory.mktemp(f"originals-{request.param}"))
    # A run that gets SIGTERM must still end the processes that it started.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield release
    finally:
        release.close()
        signal.signal(signal.SIGTERM, previous)


@pytest.fixture(scope="session")
def driver(originals: Originals) -> Driver:
    """A shared Java process with Apache's ledger client. A test that kills a process starts its own."""
    return originals.start_driver()


@pytest.fixture(scope="session")
def java_cluster(originals: Originals, driver: Driver) -> Cluster:
    """Three Java bookies under a root that Apache's own code initialised. Tests leave all of them running."""
    return _cluster(originals, driver, "/java", "java")


@pytest.fixture(scope="session")
def our_cluster(originals: Originals, driver: Driver) -> Cluster:
    """Three bookies of ours under a root that Apache's own code initialised. Tests leave them running."""
    return _cluster(originals, driver, "/ours", "ours")


@pytest.fixture(scope="session")
def streams_driver(originals: Originals) -> Driver:
    """A shared Java process with Apache DistributedLog. A test that kills or pauses one starts its own."""
    return originals.start_driver("streams-driver", "interop.StreamsDriver")


@pytest.fixture(scope="session", params=["java", "ours"])
def place(request: pytest.FixtureRequest, originals: Originals, streams_driver: Driver) -> StreamPlace:
    """A namespace on Java bookies, bound by Apache's own tool, and one on our bookies, bound by our code."""
    is_java = request.param == "java"
    cluster: Cluster = request.getfixturevalue("java_cluster" if is_java else "our_cluster")
    path = f"/streams/{request.param}"
    (bind_by_java if is_java else bind_by_us)(originals, path, cluster.root)
    return StreamPlace(cluster, streams_driver, path)


def _cluster(originals: Originals, driver: Driver, root: str, kind: Kind) -> Cluster:
    driver.ask("init_cluster", uri=originals.uri(root, layout="hierarchical"))
    cluster = Cluster(originals, root)
    cluster.add(kind, kind, kind)
    return cluster


def pytest_configure(config: pytest.Config) -> None:
    tally = config.stash[_tally] = Tally()
    config.pluginmanager.register(_Tallying(tally))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let ``-n 2 --dist loadgroup`` run the tests of each release in a process of their own."""
    for item in items:
        if version := _version(item):
            item.add_marker(pytest.mark.xdist_group(version))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    for mark in item.iter_markers("interop"):
        # A test of the originals themselves proves no row of the table.
        if mark.kwargs and (report.when == "call" or not report.passed):
            cells = mark.kwargs["row"], mark.kwargs["cells"], _version(item)
            report.user_properties.append((_CELLS, cells))
    release = getattr(item, "funcargs", {}).get("originals")
    if report.failed and isinstance(release, Originals):
        report.sections.append(("last lines of its processes' logs", _log_tails(release.logs)))
    return report  # type: ignore[return-value]


class _Tallying:
    """Counts what the reports prove, in the process that gets the reports of all."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, cells in report.user_properties:
            if name == _CELLS:
                self._tally.add(*cells, passed=report.passed)  # type: ignore[misc]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.stash[_tally].passed and not config.stash[_tally].not_passed:
        return  # none of these tests was selected
    terminalreporter.section("beside Apache's originals")
    complete = bool(os.environ.get(MUST_BE_COMPLETE))
    for line in table_lines(config.stash[_tally], VERSIONS, complete=complete):
        terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return  # the process that started this one has the tally
    must_be_complete = os.environ.get(MUST_BE_COMPLETE) and exitstatus == pytest.ExitCode.OK
    if must_be_complete and not all_green(session.config.stash[_tally], VERSIONS):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _version(item: pytest.Item) -> str:
    """The release that a test runs beside; empty if none."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("originals", "")) if callspec else ""


def _log_tails(logs: Path) -> str:
    newest = sorted(logs.glob("*.log"), key=lambda log: log.stat().st_mtime, reverse=True)[:SHOWN_LOGS]
    return "\n".join(
        f"--- {log.name}\n{log.read_bytes()[-SHOWN_BYTES:].decode('utf-8', 'replace')}" for log in newest
    )
