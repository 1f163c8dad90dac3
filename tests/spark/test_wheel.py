"""A wheel of the tree works in an empty environment without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.edge.wheel import PACKAGES, build_wheel
from tests.places import ROOT
from tests.spark.conftest import CONF

pytestmark = [pytest.mark.spark, pytest.mark.slow]
INSTALL_TIMEOUT_S = 600  # on a new machine pip builds PySpark
PROGRAM_TIMEOUT_S = 400  # a start of Spark on a busy machine

EMBEDDED = """
import sys, trio, dlog

async def main(uri):
    async with dlog.open_namespace(uri) as namespace:
        async with namespace.open_writer("orders", create=True) as log:
            await log.append_many([b"one", b"two"])
        async with namespace.open_reader("orders", follow=False) as reader:
            print("READ", [record.payload.decode() async for record in reader])

trio.run(main, sys.argv[1])
print("FROM", dlog.__file__)
"""

SPARK = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]")
for key, value in json.loads(sys.argv[1]).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
rows = spark.read.format("dlog").option("uri", sys.argv[2]).option("stream", "orders").load().collect()
print("FOUND", [bytes(row.payload).decode() for row in rows])
"""


def clean_variables() -> dict[str, str]:
    """The environment without what leads to the checkout; the tests of Spark set ``PYTHONPATH``."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DLOG"))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a new virtual environment with the wheel and its dependencies."""
    home = tmp_path_factory.mktemp("environment")
    # Without a pip of its own, and without byte code of all packages: that would double the time.
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=INSTALL_TIMEOUT_S
    )
    # The versions of the lock: pip has their wheels from the set-up, and need not build PySpark again.
    locked = (ROOT / ".ci" / "requirements.lock").read_text("utf-8").splitlines()
    versions = home / "versions.txt"
    versions.write_text("\n".join(line.partition(" --hash")[0] for line in locked))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")),
            *("install", "--quiet", "--no-compile"),
            *("--constraint", str(versions), f"{wheel}[spark]"),
        ],
        check=True,
        timeout=INSTALL_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        # Where pip can see the metadata of the checkout's editable installation, it installs nothing.
        cwd=home,
        env=clean_variables(),
    )
    return home / "bin"


def run(environment: Path, directory: Path, *command: str, text: str = "") -> str:
    """Run a program of the environment outside of the checkout; return its output."""
    variables = {
        **clean_variables(),
        "PYSPARK_PYTHON": str(environment / "python"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ended = subprocess.run(
        [str(environment / command[0]), *command[1:]],
        cwd=directory,
        env=variables,
        input=text,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def test_the_wheel_holds_the_packages_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    expected = {
        file.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        if not {"discovery", "plugin"} & set(file.parts)
    }
    held = {name for name in names if name.endswith(".py")}
    assert held == expected | {"pyspark_dlog/__init__.py", "dlog_pytest/__init__.py"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("py.typed") for name in names)


def test_an_installed_command_writes_reads_and_lists_logs(environment: Path, tmp_path: Path) -> None:
    uri = ["--uri", f"file://{tmp_path / 'log'}"]
    run(environment, tmp_path, "dlog", "log", "create", "orders", *uri)
    run(environment, tmp_path, "dlog", "write", "orders", *uri, text="one\ntwo\n")
    assert run(environment, tmp_path, "dlog", "read", "orders", *uri) == "one\ntwo\n"
    assert "orders" in run(environment, tmp_path, "dlog", "log", "list", *uri)
    measured = run(environment, tmp_path, "dlog", "bench", "append", "--records", "100", "--json", *uri)
    assert json.loads(measured)["options"]["records"] == 100


def test_an_installed_library_serves_a_directory(environment: Path, tmp_path: Path) -> None:
    printed = run(environment, tmp_path, "python", "-c", EMBEDDED, f"file://{tmp_path / 'log'}")
    assert "READ ['one', 'two']" in printed
    assert str(environment.parent) in printed.partition("FROM ")[2]


def test_spark_finds_an_installed_source_by_name(environment: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path / 'log'}"
    run(environment, tmp_path, "python", "-c", EMBEDDED, uri)
    printed = run(environment, tmp_path, "python", "-c", SPARK, json.dumps(CONF), uri)
    assert "FOUND ['one', 'two']" in printed
