"""``python -O`` removes assertions: what a program may rely on is checked without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

PROGRAM = """
import sys
import dlog
import dlog.blocking

if __debug__:
    sys.exit("assertions are on")

def refused(error, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error:
        return
    sys.exit(f"{call} did not raise {error.__name__}")

uri = sys.argv[1]
with dlog.blocking.open_namespace(uri) as ns:
    with ns.open_writer("orders", create=True) as log:
        first = log.append(b"first")
        log.append_many([b"%d" % i for i in range(1000)])
        last = log.submit(b"last").result(60)
        refused(dlog.RecordTooLongError, log.append, bytes(2 << 20))
    refused(dlog.LogNotFoundError, ns.describe_log, "none")
    refused(dlog.InvalidLogNameError, ns.create_log, "/orders")
    refused(ValueError, dlog.DLSN.parse, "1:2")
with dlog.blocking.open_namespace(uri) as ns:
    with ns.open_writer("orders") as log:
        log.append(b"again")
    with ns.open_reader("orders", follow=False) as reader:
        records = list(reader)
wanted = [b"first", *(b"%d" % i for i in range(1000)), b"last", b"again"]
if [record.payload for record in records] != wanted:
    sys.exit("other records were read than acknowledged")
if (records[0].dlsn, records[-2].dlsn) != (first, last):
    sys.exit("other positions were read than acknowledged")
print("all is well")
"""


@pytest.mark.slow
def test_what_is_acknowledged_is_read_and_what_is_wrong_refused_without_assertions(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"file://{tmp_path}/shop"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONOPTIMIZE": "1", "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("all is well\n", "", 0)
