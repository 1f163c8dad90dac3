"""Every dependency is used, declared and locked; nothing takes the rights of root unasked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.test_house_rules import PACKAGES, modules

# A distribution whose module has another name.
MODULES = {"python-snappy": "snappy", "protobuf": "google", "pure-sasl": "puresasl"}
# A tool that no module imports, the file that uses it, and how.
TOOLS = {
    "mypy": (".ci/test", "mypy"),
    "ruff": (".ci/test", "ruff"),
    "pytest-trio": ("pyproject.toml", "trio_mode"),
    "pytest-xdist": (".ci/test", "--dist"),
    "setuptools": ("pyproject.toml", "setuptools.build_meta"),
    "wheel": ("tests/spark/test_wheel.py", "wheel"),
    "types-protobuf": ("ledger/wire/regenerate.py", "pyi"),
    "mkdocs-material": (".ci/mkdocs.yml", "name: material"),
    "mkdocstrings": (".ci/mkdocs.yml", "mkdocstrings"),
    # kazoo imports it for SASL.
    "pure-sasl": ("namespace/zookeeper_security.py", "puresasl"),
}
LOCKED = re.compile(r"([a-z0-9.-]+)==([0-9][^ ]*) --hash=sha256:[0-9a-f]{64}")


def declared() -> dict[str, list[str]]:
    """The names of the distributions in pyproject.toml, by extra; "" is for all users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: [re.split(r"[\[>=<~!;]", one)[0].strip() for one in names] for extra, names in groups.items()
    }


def imported(*, by_tests: bool) -> set[str]:
    found = {each.module.partition(".")[0] for module in modules() for each in module.imports}
    if by_tests:
        for file in (ROOT / "tests").rglob("*.py"):
            found |= set(re.findall(r"^\s*(?:import|from) (\w+)", file.read_text("utf-8"), re.MULTILINE))
    return found


@pytest.mark.parametrize("extra", declared())
def test_every_dependency_is_used(extra: str) -> None:
    used = imported(by_tests=extra == "dev")
    unused = []
    for name in declared()[extra]:
        if MODULES.get(name, name) in used:
            continue
        file, text = TOOLS.get(name, ("", ""))
        if not file or text not in (ROOT / file).read_text("utf-8"):
            unused.append(name)
    assert unused == []


def test_every_import_of_the_product_is_declared() -> None:
    names = {MODULES.get(name, name) for names in declared().values() for name in names}
    # pyspark brings py4j, trio brings outcome; grpcio-tools has an environment of its own (`make proto`).
    known = names | set(PACKAGES) | sys.stdlib_module_names | {"py4j", "outcome", "grpc_tools"}
    assert sorted(imported(by_tests=False) - known) == []


def test_the_lock_has_each_dependency_with_a_version_and_a_hash() -> None:
    lines = (ROOT / ".ci" / "requirements.lock").read_text("utf-8").splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert [line for line in packages if not LOCKED.fullmatch(line)] == []
    locked = {line.partition("==")[0] for line in packages}
    assert len(locked) == len(packages)
    wanted = {name for names in declared().values() for name in names}
    assert sorted(wanted - locked) == [], "run `make lock`"


def test_the_set_up_checks_the_hashes() -> None:
    script = (ROOT / ".ci" / "setup").read_text("utf-8")
    installs = [line.strip() for line in script.splitlines() if "requirements.lock" in line and "pip" in line]
    assert len(installs) == 1
    assert "--require-hashes" in installs[0]
    assert "--no-deps" in installs[0]


@pytest.mark.parametrize(("allowed", "calls"), [("", []), ("1", ["sudo", "sudo"])])
def test_no_script_takes_the_rights_of_root_unasked(tmp_path: Path, allowed: str, calls: list[str]) -> None:
    called = tmp_path / "called"
    for name, body in {
        "id": "echo 1000",
        "apt-get": "exit 0",
        "sudo": f'echo sudo >> "{called}"; exit 0',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    finished = subprocess.run(
        [ROOT / ".ci" / "apt-install", "some-package"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "DLOG_ALLOW_SUDO": allowed},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    assert finished.returncode == (0 if allowed else 1)
    assert (called.read_text().split() if called.exists() else []) == calls
    assert ("run `sudo apt-get install some-package`" in finished.stderr) is not bool(allowed)
