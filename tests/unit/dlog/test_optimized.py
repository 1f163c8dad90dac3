"""`python -O` removes each assert: examples, commands and an acceptance program do the same without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

pytestmark = pytest.mark.slow  # each starts interpreters
LIMIT_S = 300  # only a hang takes so long
COUNT = 300
ACCEPTANCE = """
import sys
from pathlib import Path

import dlog.blocking

if __debug__:
    raise RuntimeError("asserts are not removed")
uri, payloads = sys.argv[1], [b"record %d" % number for number in range(300)]


def must_raise(kind, function, *arguments):
    try:
        function(*arguments)
    except kind:
        return
    raise RuntimeError(f"{function} did not raise {kind}")


with dlog.blocking.open_namespace(uri) as namespace:
    with namespace.open_writer("orders", create=True) as log:
        futures = [log.submit(payload) for payload in payloads[:100]]
        positions = log.append_many(payloads[100:])
        must_raise(TypeError, log.append, "text")
        must_raise(dlog.DLogError, namespace.create_log, "orders")
    must_raise(dlog.DLogError, log.append, b"after the end")
    if not positions[-1] > positions[0] > futures[-1].result() > futures[0].result():
        raise RuntimeError("positions are out of order")
with dlog.blocking.open_namespace(uri) as namespace:  # from the files
    with namespace.open_reader("orders", follow=False) as reader:
        records = list(reader)
    if [record.payload for record in records] != payloads:
        raise RuntimeError("the log has other records than were acknowledged")
    if [record.dlsn for record in records[100:]] != positions:
        raise RuntimeError("records are at other positions than were acknowledged")

damaged = 0
for file in Path(sys.argv[2]).rglob("*"):
    content = file.read_bytes() if file.is_file() else b""
    if (at := content.find(b"record 150")) >= 0:
        file.write_bytes(content[:at] + b"RECORD" + content[at + 6 :])
        damaged += 1
if not damaged:
    raise RuntimeError("no file has the record")


def read_all():
    with dlog.blocking.open_namespace(uri) as namespace:
        with namespace.open_reader("orders", follow=False) as reader:
            if [record.payload for record in reader] != payloads:
                raise RuntimeError("a damaged record was returned")


must_raise(dlog.DLogError, read_all)
print("accepted")
"""


def run(*arguments: str, stdin: str = "") -> str:
    """What an optimised program prints; its child processes are optimised too."""
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONOPTIMIZE": "1"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


LINES = "".join(f"line {number}\n" for number in range(COUNT))


def test_the_example_of_a_script_runs_without_asserts(tmp_path: Path) -> None:
    printed = run("examples/script.py", str(tmp_path / "shop"), stdin=LINES)
    assert printed.startswith(f"{COUNT} lines durable up to ")
    assert printed.endswith(f"\n{COUNT} lines in the log\n")


def test_commands_write_read_and_verify_without_asserts(tmp_path: Path) -> None:
    uri = ("--uri", (tmp_path / "shop").as_uri())
    run("-m", "dlog", "write", "orders", "--create", *uri, stdin=LINES)
    assert run("-m", "dlog", "read", "orders", *uri) == LINES
    run("-m", "dlog", "verify", "orders", *uri)


def test_the_demo_kills_a_writer_and_loses_nothing_without_asserts(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text(LINES * 10)
    run("-m", "dlog", "demo", str(lines))


def test_an_acceptance_program_is_content_without_asserts(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    assert run("-c", ACCEPTANCE, shop.as_uri(), str(shop)) == "accepted\n"
