"""Apache's jars and our driver classes, fetched and compiled once into a cache outside the repository.

::

    CACHE/dlog/interop/<version>/lib-<hash of pom.xml>/*.jar
                                 classes-<hash of pom.xml and sources>/drivers.jar

There are two pairs: of our drivers, and of Apache's own tests.

``CACHE`` is ``$XDG_CACHE_HOME`` or ``~/.cache``. The code here removes nothing from it; you may delete it
whole.
Always: a directory under its final name is complete, also when several runs fill the cache at once. With a
full cache no network is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dlog.cluster.ports import free_ports
from tests.class_archive import archive_path, cache, make

JAVA = Path(__file__).parent / "java"
LOGGING = JAVA / "log4j2.xml"
FETCH_TIMEOUT_S = 900
COMPILE_TIMEOUT_S = 300


class JarsError(Exception):
    """Apache's jars could not be fetched, or our drivers not compiled; the message says why."""


def class_path(version: str) -> str:
    """The class path of one release with our drivers. The first call fetches and compiles them.

    Raises:
        JarsError: Fetching or compiling failed.
    """
    return _class_path(version, JAVA / "pom.xml", JAVA / "interop")


def class_path_of_tests(version: str) -> str:
    """Likewise with Apache's own tests of the release, and what puts our bookies into them."""
    return _class_path(version, JAVA / "apache_tests" / "pom.xml", JAVA / "apache_tests")


def _class_path(version: str, pom: Path, directory: Path) -> str:
    home = _cache() / version
    home.mkdir(parents=True, exist_ok=True)
    sources = sorted(directory.glob("*.java"))
    with _locked(home / "lock"):
        jars = _once(home / f"lib-{_digest([pom])}", lambda filled: _fetch(version, pom, filled))
        classes = _once(
            home / f"classes-{_digest([pom, *sources])}", lambda filled: _compile(sources, jars, filled)
        )
    return f"{classes}/drivers.jar:{jars}/*"


def class_archive(version: str, options: Sequence[str]) -> Path | None:
    """The archive of the classes of one release, for a JVM with these options; the first call makes it.

    None if it cannot be made, which is no error: the tests only take longer.
    """
    path = class_path(version)
    drivers, jars = (Path(each) for each in path.split(":"))
    archive = archive_path([drivers, *jars.parent.glob("*.jar")], options)
    if archive is None:
        return None
    with _locked(_cache() / version / "lock"):
        if not archive.exists():
            start = [find_program("java"), *options, "-Dzookeeper.4lw.commands.whitelist=*"]
            port = str(free_ports(1, random.Random(), host="127.0.0.1")[0])
            failure = make(archive, lambda option: [*start, option, "-cp", path, "interop.Training", port])
            if failure is not None:
                print(f"no archive of Apache's classes {version}, so its tests start slower: {failure}")
                return None
    return archive


def find_program(name: str) -> str:
    """The path of ``java``, ``javac``, ``javap`` or ``mvn``, from JAVA_HOME or else from the PATH.

    Raises:
        JarsError: The program is not installed; the message names Debian's packages.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=str(Path(home, "bin"))) if home else None
    found = found or shutil.which(name)
    if found is None:
        raise JarsError(f"{name} not found; install it (Debian: openjdk-17-jdk-headless and maven)")
    return found


def _cache() -> Path:
    return cache() / "interop"


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def _once(final: Path, fill: Callable[[Path], None]) -> Path:
    if not final.exists():
        with tempfile.TemporaryDirectory(dir=final.parent, prefix="partial-") as scratch:
            directory = Path(scratch, "filled")
            directory.mkdir()
            fill(directory)
            directory.rename(final)
    return final


def _fetch(version: str, pom: Path, directory: Path) -> None:
    command = [
        find_program("mvn"),
        "--quiet",
        "--batch-mode",
        f"--file={pom}",
        f"-Dbookkeeper.version={version}",
        f"-DoutputDirectory={directory}",
        "-DincludeScope=runtime",
        "dependency:copy-dependencies",
    ]
    _run(command, f"fetching Apache BookKeeper {version}", FETCH_TIMEOUT_S)


def _compile(sources: list[Path], jars: Path, directory: Path) -> None:
    with tempfile.TemporaryDirectory() as classes:
        command = [
            find_program("javac"),
            "-nowarn",
            "-proc:none",
            "--release=17",
            "-d",
            classes,
            "-cp",
            f"{jars}/*",
            *map(str, sources),
        ]
        _run(command, f"compiling {', '.join(source.name for source in sources)}", COMPILE_TIMEOUT_S)
        # A jar, since no archive of classes can be made of a directory of them.
        Path(shutil.make_archive(str(directory / "drivers"), "zip", classes)).rename(
            directory / "drivers.jar"
        )


def _run(command: list[str], what: str, timeout_s: float) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as exc:
        raise JarsError(f"{what} took longer than {timeout_s:g} s: {' '.join(command)}") from exc
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
        raise JarsError(f"{what} failed with exit code {done.returncode}: {' '.join(command)}\n{output}")
