"""Programs that end in the midst of what they do with a log, each a process: face, way of ending, moment.

    python -m tests.edge.matrix FACE ENDING MOMENT

Inside: the cells, what each must give, running one, all cells by turns for ``make soak``. Not inside: the
programs (``program``), and the cells of the tests (``test_matrix``).
Always: no process of a cell is left after it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import attrs

import dlog.blocking
import ledger.blocking
from tests.edge.program import BURST, FIRST, GO_ON, SIGNALS
from tests.places import ROOT

LIMIT_S = 120  # a generous one: what it catches would wait for ever
FRAMES_OF_A_CELL = 1000  # as the sweeps count
FACES = ("trio", "asyncio", "blocking", "ledgers")  # the last one is ledger.blocking
MOMENTS = ("opening", "waiting", "idle", "appending", "reading", "closing")
TRACEBACK = r"Traceback \(most recent call last\):\n(?:(?!Traceback|Exception ignored|During).)*\n"
CANCELLED = TRACEBACK + "asyncio.exceptions.CancelledError\n\nDuring handling of [a-z ,]*:\n\n"
# With -X dev asyncio also says how long a step took; that is about the machine.
SLOW_STEP = re.compile(r"^Executing <.*> took [\d.]+ seconds\n", re.MULTILINE)
UNCLOSED = (
    r"(?:Exception ignored [^\n]*\nTraceback \(most recent call last\):\n(?:  [^\n]*\n)+"
    r"ResourceWarning: unclosed [^\n]*\n)+"
)


@attrs.frozen
class End:
    """What a way of ending gives."""

    exit_code: int  # minus the signal that ended it
    stderr: str = ""  # a pattern of all of it
    keeps_submitted: bool = True  # not only what was acknowledged: what is open is closed


ENDS = {
    "return": End(0),
    "exception": End(1, TRACEBACK + "RuntimeError: the program fails\n"),
    "cancellation": End(0),
    "interrupt": End(-signal.SIGINT, TRACEBACK + "KeyboardInterrupt\n"),
    "terminate": End(-signal.SIGTERM, keeps_submitted=False),
    "handled": End(0),  # SIGTERM, by what each library has for it
    "exit": End(3),  # sys.exit
    "shutdown": End(0),  # in a handler of ``atexit``, which also closes what is left open
    # The loop with all that is open is neither run nor closed.
    "abandoned": End(0, UNCLOSED, keeps_submitted=False),
    "fork": End(0),  # a child that uses what its parent has open, and ends; then its parent returns
    "daemon": End(0, keeps_submitted=False),  # all of it runs in such a thread
    "os._exit": End(3, keeps_submitted=False),
}
# What differs from the line above for a face, and a moment or (None) all of them.
SPECIAL: dict[tuple[str, str, str | None], End] = {
    # asyncio.run raises it while it handles the cancellation that it has made of the signal.
    ("asyncio", "interrupt", None): End(-signal.SIGINT, CANCELLED + TRACEBACK + "KeyboardInterrupt\n"),
    # The namespaces are closed when Python ends.
    ("blocking", "daemon", None): End(0),
    # Closing a client ends its handles, and an error in the block of a handle abandons it.
    **{
        ("ledgers", ending, None): attrs.evolve(ENDS[ending], keeps_submitted=False)
        for ending in ("exception", "exit", "handled", "interrupt", "shutdown")
    },
    # A call of ``aclose`` that is cancelled writes nothing more: the program that cancels it is in a hurry.
    **{
        (face, ending, "closing"): attrs.evolve(ENDS[ending], keeps_submitted=False)
        for face in ("trio", "asyncio")
        for ending in ("exception", "cancellation", "handled", "exit", "interrupt")
    },
    ("asyncio", "interrupt", "closing"): End(
        -signal.SIGINT, CANCELLED + TRACEBACK + "KeyboardInterrupt\n", keeps_submitted=False
    ),
}
# Cells without a meaning: face and ending or (None) each, and moment or (None) all of them.
NONE: dict[tuple[str | None, str, str | None], str] = {
    **{
        (face, "cancellation", moment): "of blocking calls only the futures of records can be cancelled"
        for face in ("blocking", "ledgers")
        for moment in MOMENTS
        if moment != "appending"
    },
    **{("ledgers", ending, "waiting"): "nothing locks a ledger" for ending in ENDS},
    ("ledgers", "abandoned", None): "as of the line below",
    ("blocking", "abandoned", None): "the caller has no loop; 'shutdown' leaves things open, too",
    ("trio", "abandoned", None): "trio.run ends all that it has begun",
    ("asyncio", "abandoned", "opening"): "a call that nobody runs on is in no moment",
    ("asyncio", "abandoned", "waiting"): "likewise",
    ("asyncio", "abandoned", "closing"): "likewise",
    (None, "shutdown", "waiting"): "nobody would free the lock, which the program has itself",
}


def end_of(face: str, ending: str, moment: str) -> End:
    for key in ((face, ending, moment), (face, ending, None)):
        if key in SPECIAL:
            return SPECIAL[key]
    return ENDS[ending]


CELLS = [
    (face, ending, moment)
    for face in FACES
    for ending in ENDS
    for moment in MOMENTS
    if not {(each, ending, when) for each in (face, None) for when in (moment, None)} & NONE.keys()
]


def differences(directory: Path, face: str, ending: str, moment: str) -> list[str]:
    """Run the program of a cell: in what it differs from what it must give."""
    end = end_of(face, ending, moment)
    uri = (directory / "log").as_uri()
    lines, stderr, exit_code = run(directory / "stderr", face, ending, moment, uri)
    counts = {"acknowledged": 0, "submitted": FIRST, "ledger": -1}
    others = []
    for line in lines:
        what, _, count = line.partition(" ")
        if what in counts:
            counts[what] = int(count)
        else:
            others.append(line)
    refused = int(ending == "fork" and moment != "opening")  # then the child has nothing to use
    found = entries_of(uri, counts["ledger"]) if face == "ledgers" else records_of(uri)
    submitted = FIRST + BURST if moment in ("appending", "closing") else FIRST
    kept = max(counts["acknowledged"], counts["submitted"] if end.keeps_submitted else FIRST)
    compared = {
        f"stderr {stderr!r}, not {end.stderr!r}": re.fullmatch(end.stderr, stderr, re.DOTALL),
        f"exit code {exit_code}, not {end.exit_code}": exit_code == end.exit_code,
        f"{counts['submitted']} records submitted, not {submitted}": counts["submitted"] == submitted,
        f"lines {others}": others
        == ["now", *([] if ending in GO_ON else ["ending"]), *(["refused"] * refused)],
        f"records {found}": found == [b"%d" % number for number in range(len(found))],
        f"{len(found)} records kept, not {kept}": len(found) >= kept,
        f"{counts['acknowledged']} records acknowledged": counts["acknowledged"] >= FIRST,
    }
    return [what for what, is_right in compared.items() if not is_right]


def records_of(uri: str) -> list[bytes]:
    """The records of the program, once the log has taken another one."""
    with dlog.blocking.open_namespace(uri) as namespace:
        # At once: the lock of a program that has ended is free.
        with namespace.open_writer("orders", lock_timeout_s=0) as log:
            log.append(b"next")
        with namespace.open_reader("orders", follow=False) as reader:
            *found, last = [record.payload for record in reader]
    assert last == b"next"
    return found


def entries_of(uri: str, ledger_id: int) -> list[bytes]:
    """The entries of the program, once its ledger is recovered."""
    with ledger.blocking.open_client(uri) as client, client.open(ledger_id) as reader:
        return reader.read_payloads(0, reader.last_confirmed)


def run(stderr: Path, face: str, ending: str, moment: str, uri: str) -> tuple[list[str], str, int]:
    """The lines of a program, what it said on stderr, its exit code; once no process of it is left."""
    command = [sys.executable, "-W", "error", "-m", "tests.edge.program", face, ending, moment, uri]
    # Python 3.12 warns of each fork of a process with threads.
    command[3:3] = ["-W", "ignore:This process:DeprecationWarning"]
    with (
        stderr.open("w+") as errors,
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        limit = threading.Timer(LIMIT_S, os.killpg, (program.pid, signal.SIGKILL))
        limit.start()
        try:
            lines = []
            for line in program.stdout:
                lines.append(line.strip())
                if lines[-1] == "now" and ending in SIGNALS:
                    program.send_signal(signal.SIGINT if ending == "interrupt" else signal.SIGTERM)
                if lines[-1] == ("now" if ending in GO_ON else "ending"):
                    program.stdin.close()
            exit_code = program.wait()
        finally:
            limit.cancel()
        errors.seek(0)
        return lines, SLOW_STEP.sub("", errors.read()), exit_code


def sweep(seed: int, count: int) -> Sequence[str]:
    """As many cells, one turn after the other until all had theirs; see ``tests.fuzz.soak``."""
    cells = max(1, count // FRAMES_OF_A_CELL)
    reports = []
    for number in range(seed * cells, (seed + 1) * cells):
        cell = CELLS[number % len(CELLS)]
        with tempfile.TemporaryDirectory() as directory:
            found = differences(Path(directory), *cell)
        if found:
            reports.append("\n  ".join([f"python -m tests.edge.matrix {' '.join(cell)}:", *found]))
    return reports


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit("\n".join(differences(Path(place), *sys.argv[1:])) or 0)
