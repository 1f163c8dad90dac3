"""Apache's tests of recovery, from the jar of its tests, with our bookies in place of Java's healthy ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.interop.jars import class_path_of_tests, find_program
from tests.interop.originals import Originals
from tests.places import ROOT

pytestmark = pytest.mark.interop

LIMIT_S = 300
# Java's bookie with a fault takes over the directories of ours, which takes them back. What the other tests
# of the class show, rows 3 and 4 of the table show in less time.
TESTS = ("testLedgerRecoveryWithSlowBookie",)


def test_our_bookies_pass_apaches_test_in_which_its_bookie_takes_over_their_directories(
    originals: Originals, tmp_path: Path
) -> None:
    command = [find_program("java"), "-Djava.net.preferIPv4Stack=true"]
    command += ["-cp", class_path_of_tests(originals.version), "org.apache.bookkeeper.client.OurBookies"]
    command += [str(tmp_path), ",".join(TESTS), sys.executable, "-m", "dlog.cli.main", "bookie", "--config"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # bookies of a JVM that did not end them
    logs = [each.read_text("utf-8", "replace")[-1500:] for each in sorted(tmp_path.glob("*.log"))]
    assert process.returncode == 0, "\n".join([output[-6000:], *logs])
    assert output.count("\nOK (1 test)\n") == len(TESTS)
