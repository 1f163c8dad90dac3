"""Every dependency is used, declared and locked; nothing takes the rights of root unasked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import find_packages

from tests.places import ROOT
from tests.source_tree import PACKAGES, modules

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once

# A distribution whose module has another name.
MODULES = {
    "python-snappy": "snappy",
    "protobuf": "google",
    "pure-sasl": "puresasl",
    "kubernetes-validate": "kubernetes_validate",
    "opentelemetry-api": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "pyyaml": "yaml",
}
# A tool that no module imports, the file that uses it, and how.
TOOLS = {
    "flask-cors": ("tests/unit/dlog/backup/test_s3.py", "ThreadedMotoServer"),  # moto serves with it
    "mypy": (".ci/test", "mypy"),
    "ruff": (".ci/test", "ruff"),
    "pytest-trio": ("pyproject.toml", "trio_mode"),
    "pytest-xdist": (".ci/test", "--dist"),
    "setuptools": ("pyproject.toml", "setuptools.build_meta"),
    "wheel": ("tests/edge/wheel.py", "wheel"),
    "types-protobuf": ("ledger/wire/regenerate.py", "pyi"),
    "mkdocs-material": (".ci/mkdocs.yml", "name: material"),
    "mkdocstrings": (".ci/mkdocs.yml", "mkdocstrings"),
    "ipykernel": ("examples/orders.ipynb", "kernelspec"),
    "hypercorn": ("examples/key_value_service.py", "hypercorn"),
    "gunicorn": ("tests/crash/test_crash_shared_writer.py", "gunicorn"),
    "uvicorn": ("tests/crash/test_crash_shared_writer.py", "uvicorn"),
    "rich": ("tests/crash/previous_version.py", "rich"),
    "starlette": ("examples/key_value_service.py", "starlette"),
    # Programs in strings: in the process of the tests they would replace its threads.
    **{name: ("tests/unit/ledger/runtime/test_green_threads.py", name) for name in ("eventlet", "gevent")},
    "basedpyright": ("tests/unit/dlog/test_completion_in_pyright.py", "basedpyright-langserver"),
    # kazoo imports it for SASL.
    "pure-sasl": ("ledger/metadata_store/zookeeper_security.py", "puresasl"),
}
# The platform of the locks, for the markers of requirements.
LOCKED_FOR = {"python_version": "3.11", "python_full_version": "3.11.9", "sys_platform": "linux"} | {
    "os_name": "posix",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
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


@pytest.mark.slow
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


def reached(name: str, extra: str = "") -> set[str]:
    """All distributions that an installed one needs, at any distance."""
    found: set[tuple[str, str]] = set()
    waiting: set[tuple[str, str]] = {(name, extra)}
    while waiting:
        found |= waiting
        waiting = {
            (str(canonicalize_name(requirement.name)), each)
            for one, extra in waiting
            for requirement in map(Requirement, requires(one) or [])
            if requirement.marker is None or requirement.marker.evaluate({**LOCKED_FOR, "extra": extra})
            for each in {"", *requirement.extras}
        } - found
    return {one for one, _ in found} - {name}


def test_the_lock_of_an_application_has_all_that_it_reaches_and_no_more() -> None:
    """`make lock` writes both files. An application gets the versions that the tests have."""
    every, base = (
        {line for line in (ROOT / ".ci" / name).read_text("utf-8").splitlines() if "==" in line}
        for name in ("requirements.lock", "requirements-base.lock")
    )
    assert sorted(base - every) == [], "run `make lock`"
    locked = {line.partition("==")[0] for line in base}
    assert locked == reached("dlog-streams") | {"setuptools", "wheel", "packaging"}, "run `make lock`"
    assert len(locked) == len(base)


@pytest.mark.parametrize(
    ("target", "lock"), [("base", "requirements-base.lock"), ("test", "requirements.lock")]
)
def test_the_set_up_installs_by_hash(target: str, lock: str, tmp_path: Path) -> None:
    """The script runs with an interpreter that only notes its arguments."""
    (tmp_path / ".ci").mkdir()
    for name in (".ci/setup", ".ci/requirements.lock", ".ci/requirements-base.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    noted = tmp_path / "noted"
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo 3 11 linux x86_64\necho "$*" >> "{noted}"\n')
    python.chmod(0o755)
    subprocess.run([tmp_path / ".ci" / "setup", target], check=True, stdout=subprocess.DEVNULL)
    installs = [line for line in noted.read_text().splitlines() if "pip install" in line]
    assert len(installs) == 3
    assert all("--no-deps" in line for line in installs)
    assert [("--require-hashes" in line) for line in installs] == [True, True, False]
    assert installs[1].endswith(f"--no-build-isolation --requirement .ci/{lock}")
    assert installs[2].endswith("--no-build-isolation --editable .")


def test_the_pages_claim_the_pythons_of_the_classifiers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [re.sub(r".* :: Python :: ", "", line) for line in project["classifiers"]]
    claim = f"Python {', '.join(versions[:-1])} or {versions[-1]}"
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/index.md", "docs/tutorial.md"):
        text = " ".join((ROOT / page).read_text("utf-8").split())
        assert claim in text, page
        assert re.findall(r"Python 3\.\d+", text.replace(claim, "")) == [], page
    assert project["requires-python"] == f">={versions[0]}"


OTHER = "3.12" if sys.version_info[:2] != (3, 12) else "3.13"
# Its environments are copies of itself. It notes what it runs.
FAKE_PYTHON = """#!/bin/sh
echo "dev=${PYTHONDEVMODE:-} $*" >> NOTED
[ "$2" != venv ] || { mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; }
"""


def test_other_pythons_install_once_and_run_the_fast_tests(tmp_path: Path) -> None:
    """The script finds one other version, below pyenv's folder; the others it names. Its own runs with -O."""
    for folder in (".ci", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tests/check.py").write_text("import sys\nprint('-O', sys.flags.optimize, sys.argv[1:])\n")
    for name in (".ci/pythons", ".ci/requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    noted = tmp_path / "noted"
    own, other = tmp_path / ".venv/bin/python", tmp_path / f"pyenv/versions/{OTHER}.9/bin/python"
    shims = [tmp_path / f"shims/python3.{minor}" for minor in range(11, 15)]
    for path, text in {
        own: f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
        other: FAKE_PYTHON.replace("NOTED", str(noted)),
        **dict.fromkeys(shims, "#!/bin/sh\nexit 1\n"),
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run() -> tuple[str, list[str]]:
        noted.unlink(missing_ok=True)
        finished = subprocess.run(
            [tmp_path / ".ci" / "pythons"],
            env={"PATH": f"{tmp_path}/shims:{os.environ['PATH']}", "PYENV_ROOT": f"{tmp_path}/pyenv"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return finished.stdout, [line for line in noted.read_text().splitlines() if " -c " not in line]

    text, calls = run()
    own_version = f"3.{sys.version_info.minor}"
    lacking = [f"3.{minor}" for minor in range(11, 15) if f"3.{minor}" not in (OTHER, own_version)]
    assert re.findall(r"this machine has no Python (\S+);", text) == lacking
    assert text.endswith("\n-O 1 ['tests']\n")
    assert [call.split()[:4] for call in calls] == [
        ["dev=", "-m", "venv", f".cache/python{OTHER}"],
        ["dev=", "-m", "pip", "install"],
        ["dev=1", "tests/check.py", "tests"],
    ]
    settings, lock = tmp_path / "pyproject.toml", tmp_path / ".ci/requirements.lock"
    settings.write_text(
        settings.read_text().replace("slow: a case", "slow: a test").replace("A durable", "The")
    )
    assert run()[1] == calls[2:]  # what is installed is the same
    lock.write_text(lock.read_text() + "more==1\n")
    assert run()[1] == calls
    settings.write_text(settings.read_text().replace("celery>=5.4", "celery>=5.5"))
    assert run()[1] == calls
    assert run()[1] == calls[2:]


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


def test_the_wheel_has_every_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    pattern = settings["packages"]["find"]
    found = {
        Path(where, *name.split(".")).as_posix()
        for where in pattern["where"]
        for name in find_packages(str(ROOT / where), include=pattern["include"])
    }
    wanted = {
        path.parent.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert found == wanted
