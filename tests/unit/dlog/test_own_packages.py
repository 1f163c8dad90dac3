"""A program whose own files have the names of DLog's packages learns which file is in the way."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import dlog
from dlog.own_packages import check_own_packages

WAYS = {
    "a script beside the file": lambda at: [sys.executable, str(at / "program.py")],
    "a module": lambda at: [sys.executable, "-m", "program"],
    "a line of code": lambda at: [sys.executable, "-c", "import dlog"],
    "a module of ours": lambda at: [sys.executable, "-m", "dlog", "--version"],
    "the module of the command": lambda at: [sys.executable, "-m", "dlog.cli.main", "--version"],
    "the command with a search path": lambda at: [
        "env",
        f"PYTHONPATH={at}",
        str(Path(sys.executable).with_name("dlog")),
        "--version",
    ],
    "another process": lambda at: [
        sys.executable,
        "-c",
        "import multiprocessing, importlib\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "    pool.apply(importlib.import_module, ['dlog'])",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", ["ledger.py", "namespace/__init__.py", "bookie/notes.py"])
def test_a_file_in_the_way_is_named_with_what_to_do(tmp_path: Path, file: str, way: str) -> None:
    at = tmp_path / file
    at.parent.mkdir(exist_ok=True)
    at.write_text("")
    (tmp_path / "program.py").write_text("import dlog\n")
    done = subprocess.run(WAYS[way](tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False)
    in_the_way = at if at.name != "notes.py" else at.parent
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {in_the_way} is in the way: DLog has a package")
    assert "Rename it, or start the program from another directory" in last


def test_a_module_of_the_program_that_is_loaded_already_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import ledger; sys.path.pop(0); import dlog"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(dlog.__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"ImportError: {tmp_path / 'ledger.py'} is in the way" in done.stderr


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(ImportError, match=r"'no_such_package' is missing beside .*; install DLog again"):
        check_own_packages(dlog.__file__, ("no_such_package",))


def test_the_version_is_that_of_the_installed_package() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "dlog", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert shown == f"dlog, version {dlog.__version__}\n"
    assert dlog.__version__ == metadata.version("dlog-streams")
