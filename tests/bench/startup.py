"""The start-up time of programs: `import dlog`, `dlog --help`, and as the floor the interpreter alone."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.places import ROOT

FLOOR = "python -c pass"
COMMANDS = {
    FLOOR: ["-c", "pass"],
    "import dlog": ["-c", "import dlog"],
    "dlog --help": ["-m", "dlog.cli.main", "--help"],
}
TIMES = 7
LIMIT_S = 60


def measure_startup(directory: Path, times: int = TIMES) -> list[dict[str, object]]:
    """Start each program so often, in turn; return a row with the medians of each, in ms.

    Modules are compiled before, into ``directory``, as those of an installed package are.

    Raises:
        subprocess.SubprocessError: A program failed, or ran longer than ``LIMIT_S``.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for number in range(times + 1):
        for name, arguments in COMMANDS.items():
            sample = _run([sys.executable, *arguments], directory)
            if number:  # the first start compiles the modules and loads the files from the disk
                found[name].append(sample)
    return rows(found)


def rows(found: dict[str, list[tuple[float, float]]]) -> list[dict[str, object]]:
    """A row for each program: medians of CPU time and wall-clock time in ms, and the ratio to the floor."""
    medians = {
        name: tuple(statistics.median(sample[at] for sample in samples) * 1000 for at in (0, 1))
        for name, samples in found.items()
    }
    floor_cpu_ms = medians[FLOOR][0]
    return [
        {
            "command": name,
            "cpu_ms": round(cpu_ms, 1),
            "wall_ms": round(wall_ms, 1),
            "cpu_ratio_to_floor": round(cpu_ms / floor_cpu_ms, 2) if floor_cpu_ms else None,
        }
        for name, (cpu_ms, wall_ms) in medians.items()
    ]


def _run(command: Sequence[str], directory: Path) -> tuple[float, float]:
    """Run one program; return its CPU time and its wall-clock time in seconds."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(directory)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, started = _children_cpu_s(), time.perf_counter()
    subprocess.run(
        command,
        check=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    return _children_cpu_s() - before, time.perf_counter() - started


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
