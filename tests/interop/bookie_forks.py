"""Bookies as processes, forked from one process that has loaded the code: each starts in a fifth of the time.

A line on stdin has the path of a configuration and that of a log, with a tab between. The reply on stdout is
the pid of a bookie that runs with them. At the end of stdin the bookies that still run are killed.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bookie.__main__ import run_program

_running: set[int] = set()


def main() -> int:
    """Fork until stdin ends."""
    signal.signal(signal.SIGCHLD, _reap)
    for line in sys.stdin:
        config, _, log = line.rstrip("\n").partition("\t")
        # A bookie that ends at once must be known before it is reaped.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            _run(Path(config), Path(log))
        _running.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(pid, flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pid in _running:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return 0


def _run(config: Path, log: Path) -> NoReturn:
    """Become a bookie; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    code = 1
    try:
        code = run_program(config, strict=False, with_auto_recovery=False)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(number: int, frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            _running.discard(pid)


if __name__ == "__main__":
    sys.exit(main())
