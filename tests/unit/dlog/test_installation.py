"""What an installation for `file:` alone takes, and what a program is told if a part of it is broken."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import Marker

import dlog

INSTALLED_BYTES_MAX = 50_000_000
LIMIT_S = 120

PROGRAM = """
import asyncio, sys
import trio
import dlog, dlog.aio, dlog.blocking, ledger.blocking

sys.modules["rocksdict"] = None  # as if its import failed

async def opened(face):
    async with face.open_namespace(uri) as namespace:
        async with namespace.open_writer("log", create=True):
            pass

face, uri = sys.argv[1:]
try:
    if face == "trio":
        trio.run(opened, dlog)
    elif face == "asyncio":
        asyncio.run(opened(dlog.aio))
    elif face == "blocking":
        dlog.blocking.open_namespace(uri).open_writer("log", create=True)
    else:
        ledger.blocking.open_client(uri)
except ImportError as exc:
    print(exc)
"""


def requirements(name: str, found: dict[str, metadata.Distribution]) -> dict[str, metadata.Distribution]:
    """A package and all that it needs without its extras."""
    distribution = metadata.distribution(name)
    if name not in found:
        found[name] = distribution
        for text in distribution.requires or ():
            wanted, _, marker = text.partition(";")
            if not marker or Marker(marker.strip()).evaluate({"extra": ""}):
                requirements(re.match(r"[\w.-]+", wanted).group().lower(), found)  # type: ignore[union-attr]
    return found


def test_a_plain_installation_takes_less_than_50_mb() -> None:
    size_bytes = 0
    for name, distribution in requirements("dlog-streams", {}).items():
        if name != "dlog-streams":  # it is installed as a link to this checkout
            files = [Path(str(file.locate())) for file in distribution.files or ()]
            size_bytes += sum(file.stat().st_size for file in files if file.is_file())
    root = Path(dlog.__file__).parents[1]
    for package in ("dlog", "ledger", "bookie", "namespace", "spark_integration"):
        size_bytes += sum(file.stat().st_size for file in (root / package).rglob("*.py"))
    assert 5_000_000 < size_bytes < INSTALLED_BYTES_MAX


@pytest.mark.slow
@pytest.mark.parametrize("face", ["trio", "asyncio", "blocking", "ledger"])
def test_a_broken_package_is_the_error_of_the_call_that_needs_it(tmp_path: Path, face: str) -> None:
    command = [sys.executable, "-c", PROGRAM, face, (tmp_path / "namespace").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert "import of rocksdict" in done.stdout
