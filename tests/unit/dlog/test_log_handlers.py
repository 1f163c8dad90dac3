"""Programs whose handlers of ``logging`` use DLog, or fail. Each is a process: what was wrong never ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dlog import blocking

LIMIT_S = 120

AUDIT = """
import contextlib, logging, logging.config, sys
import dlog.blocking

config = dlog.NamespaceConfig(writer=dlog.WriterConfig(segment_bytes_max=3000))
namespace = dlog.blocking.open_namespace(sys.argv[1], config=config)

class Audit(logging.Handler):
    def __init__(self):
        super().__init__()
        self.log = namespace.open_writer("audit", create=True)

    def emit(self, record):
        with contextlib.suppress(dlog.WriterClosedError, dlog.NamespaceClosedError):  # lines of the end
            self.log.append(self.format(record).encode())

    def close(self):
        self.log.close()
        super().close()

logging.getLogger().addHandler(Audit())
logging.getLogger().setLevel("INFO")
for number in range(100):
    logging.info("line %d of the program, which is long enough for a new segment now and then", number)
"""

ENDS = {
    "dictConfig": "logging.config.dictConfig({'version': 1, 'disable_existing_loggers': False})",
    "shutdown": "logging.shutdown()",
    "namespace": "namespace.close()",
    "exit": "",
    "error": "raise SystemExit('the program fails')",
}


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_a_handler_appends_each_line_and_closes_its_writer(tmp_path: Path, end: str) -> None:
    uri = f"file://{tmp_path}/log"
    done = run(AUDIT + ENDS[end], uri)
    assert (done.stdout, done.stderr.replace("the program fails\n", "")) == ("", "")
    with blocking.open_namespace(uri) as namespace:
        with namespace.open_reader("audit", follow=False) as reader:
            lines = [record.payload.decode() for record in reader]
        assert len(namespace.segments("audit")) > 1
    assert [line.split()[1] for line in lines if "of the program" in line] == [str(n) for n in range(100)]
    assert any("segment 2 begins" in line for line in lines)  # a line of the loop that appends it


RAISING = """
import asyncio, logging, sys
import trio
import dlog, dlog.aio, dlog.blocking

class Remote(logging.Handler):
    def emit(self, record):
        raise ConnectionError("the log server is away")

logging.getLogger("dlog").addHandler(Remote())
logging.getLogger("dlog").setLevel("INFO")
uri, config = sys.argv[2], dlog.NamespaceConfig(writer=dlog.WriterConfig(segment_bytes_max=3000))

def blocking():
    with dlog.blocking.open_namespace(uri, config=config) as namespace:
        with namespace.open_writer("orders", create=True) as log:
            for number in range(100):
                log.append(b"x" * 100)
        print(namespace.count_records("orders"), len(namespace.segments("orders")) > 1)

async def asynchronous(open_namespace):
    async with open_namespace(uri, config=config) as namespace:
        async with namespace.open_writer("orders", create=True) as log:
            for number in range(100):
                await log.append(b"x" * 100)
        print(await namespace.count_records("orders"), len(await namespace.segments("orders")) > 1)

match sys.argv[1]:
    case "blocking":
        blocking()
    case "aio":
        asyncio.run(asynchronous(dlog.aio.open_namespace))
    case "trio":
        trio.run(asynchronous, dlog.open_namespace)
"""


@pytest.mark.slow
@pytest.mark.parametrize("face", ["blocking", "aio", "trio"])
def test_a_handler_that_raises_ends_neither_writer_nor_namespace(tmp_path: Path, face: str) -> None:
    done = run(RAISING, face, f"file://{tmp_path}/log")
    assert (done.returncode, done.stdout) == (0, "100 True\n")
    assert "ConnectionError: the log server is away" in done.stderr


LAST_LINES = """
import logging, sys
import dlog.blocking

logging.basicConfig(filename=sys.argv[2], level="INFO", format="%(threadName)s: %(message)s")
namespace = dlog.blocking.open_namespace(sys.argv[1])
log = namespace.open_writer("orders", create=True)
log.append(b"payload")
"""


@pytest.mark.slow
def test_no_line_is_lost_when_the_program_ends(tmp_path: Path) -> None:
    done = run(LAST_LINES, f"file://{tmp_path}/log", tmp_path / "lines")
    assert (done.returncode, done.stderr) == (0, "")
    lines = (tmp_path / "lines").read_text().splitlines()
    (line,) = (line for line in lines if "segment 1 is complete" in line)
    assert line.startswith("dlog file://")  # the thread that logged it


CALLBACK = """
import logging, sys
import dlog.blocking

class Audit(logging.Handler):
    def emit(self, record):
        log.append(self.format(record).encode())

with dlog.blocking.open_namespace(sys.argv[1]) as namespace:
    with namespace.open_writer("audit", create=True) as log:
        logging.getLogger().addHandler(Audit())
        log.submit(b"first").add_done_callback(lambda future: 1 / 0)
        log.flush()
        logging.warning("last")
        logging.getLogger().handlers.clear()
    print([record.payload[:5] for record in namespace.open_reader("audit", follow=False)][:1])
"""


@pytest.mark.slow
def test_the_line_on_a_failed_callback_waits_for_no_handler(tmp_path: Path) -> None:
    done = run(CALLBACK, f"file://{tmp_path}/log")
    assert (done.returncode, done.stdout) == (0, "[b'first']\n")


WARNINGS = """
import gc, logging, sys, warnings
import dlog.blocking

class Audit(logging.Handler):
    def emit(self, record):
        # The loop frees what was dropped while this thread has the lock of the handler, and waits.
        log.submit(b"in between").add_done_callback(lambda future: gc.collect())
        log.append(self.format(record).encode())

def drop(opened):
    opened.itself = opened  # only the collector frees it

logging.captureWarnings(True)
warnings.simplefilter("always")
gc.disable()
with dlog.blocking.open_namespace(sys.argv[1]) as namespace:
    log = namespace.open_writer("audit", create=True)
    drop(namespace.open_writer("in-the-loop", create=True))
    drop(namespace.open_reader("in-the-loop"))
    logging.getLogger().addHandler(Audit())
    logging.warning("first")
    dropped = namespace.open_writer("in-the-program", create=True)
    del dropped
    logging.warning("last")
    logging.getLogger().handlers.clear()
    log.close()
"""


@pytest.mark.slow
def test_captured_warnings_of_dropped_objects_go_through_a_handler_that_appends(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/log"
    done = run(WARNINGS, uri)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with blocking.open_namespace(uri) as namespace, namespace.open_reader("audit", follow=False) as reader:
        lines = [record.payload.decode() for record in reader]
    texts = [line for line in lines if line != "in between"]
    assert [text for text in texts if "unclosed" not in text] == ["first", "last"]
    for dropped in ("LogWriter of 'in-the-loop'", "LogReader of 'in-the-loop'", "'in-the-program'"):
        assert sum("unclosed" in text and dropped in text for text in texts) == 1, (dropped, texts)
