"""The fast part of the tests, in under a minute: format, lint, types, house rules, unit, property, contracts.

Stops at the first red. Everything that needs Java, processes or patience is left to ``make test``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = [
    ["ruff", "format", "--check", "."],
    ["ruff", "check", "."],
    ["mypy"],
    ["pytest", "-m", "not zookeeper and not cluster and not spark and not interop and not slow", "tests"],
]


def main() -> int:
    for step in STEPS:
        started = time.monotonic()
        print("$", " ".join(step), flush=True)
        code = subprocess.run([sys.executable, "-m", *step], cwd=ROOT).returncode
        if code:
            print(f"red: {' '.join(step)} (exit {code})")
            return code
        print(f"  {time.monotonic() - started:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
