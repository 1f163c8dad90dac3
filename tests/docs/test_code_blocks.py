"""Every code block of the README files and of docs/ runs.

A block of ``python`` or ``sh`` is run as it stands, in a directory of its own. These words are replaced: the
directory /var/lib/shop by one of the test, and the host zk1:2181 by a ZooKeeper of the test. ``make`` only
shows what it would do, because the tests cannot run themselves. Other blocks must say that they are ``text``,
or ``imports``, which ``test_import_order.py`` reads.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from dlog.cluster import LocalCluster
from tests.places import ROOT
from tests.spark.conftest import CONF

PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")})
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = ("python", "sh")
OTHERS = ("text", "imports")
# Each block needs those before it: test_tutorial.py and test_operators_day.py run them.
STEPS = ("docs/tutorial.md", "docs/operators-day.md")
TIMEOUT_S = 300


@attrs.frozen
class Block:
    """A fenced block of a page."""

    page: str
    number: int  # of the block in its page, from 1
    language: str
    text: str

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """What running it needs."""
        marks = [pytest.mark.slow]
        if "zk1:2181" in self.code or "dlog cluster" in self.code:
            marks += [pytest.mark.zookeeper, pytest.mark.cluster]
        if "pyspark" in self.code:
            marks.append(pytest.mark.spark)
        return marks

    @property
    def code(self) -> str:
        """The text without comments."""
        return re.sub(r"\s#.*", "", self.text)


def blocks() -> list[Block]:
    return [
        Block(page.relative_to(ROOT).as_posix(), number, match[1], match[2])
        for page in PAGES
        for number, match in enumerate(FENCE.finditer(page.read_text("utf-8")), 1)
    ]


def distinct(found: list[Block]) -> list[Block]:
    """Without those whose code an earlier block has: both pages that begin with the installation show it."""
    first: dict[tuple[str, str], Block] = {}
    for block in found:
        lines = "\n".join(line.rstrip() for line in block.code.splitlines())
        first.setdefault((block.language, lines), block)
    return list(first.values())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory like a new checkout, with a file of lines."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("bookie", "dlog", "ledger", "namespace", "spark_integration", "examples"):
        # With the byte code, which each block would compile again, but not while a process writes it.
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    (checkout / "lines.txt").write_text("".join(f"line {number}\n" for number in range(100)))
    (tmp_path / "shop").mkdir()
    return checkout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three bookies, for the blocks that name zk1."""
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"))
    trio.run(lambda: cluster.start(bookie_count=3))
    try:
        yield cluster
    finally:
        trio.run(lambda: cluster.stop(grace_s=5))


def wrapper(directory: Path, name: str, text: str) -> None:
    file = directory / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=f"{block.page}:{block.number}", marks=block.marks)
        for block in distinct(blocks())
        if block.language in RUN and block.page not in STEPS
    ],
)
def test_a_code_block_runs(block: Block, place: Path, request: pytest.FixtureRequest) -> None:
    text = block.text.replace("/var/lib/shop", str(place.parent / "shop"))
    if "zk1:2181" in block.code:
        cluster: LocalCluster = request.getfixturevalue("cluster")
        text = re.sub(r"zk1:2181(?:;zk2:2181)*", cluster.zookeeper_hosts, text)
    programs = place.parent / "bin"
    programs.mkdir()
    # A follower ends when it has shown something; what make would do is shown, since the tests cannot run
    # themselves.
    wrapper(
        programs,
        "dlog",
        'case "$1" in tail) set -- "$@" --from earliest --count 1;; esac\n'
        f'exec {sys.executable} -m dlog.cli.main "$@"',
    )
    wrapper(programs, "make", f'exec /usr/bin/make --directory {ROOT} --dry-run "$@"')
    wrapper(programs, "python3", f'exec {sys.executable} "$@"')
    environment = {
        **os.environ,
        "HOME": str(place.parent),
        "XDG_DATA_HOME": str(place.parent / "data"),
        "XDG_CACHE_HOME": str(place.parent / "cache"),
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": " ".join(
            [*(f"--conf '{key}={value}'" for key, value in CONF.items()), "pyspark-shell"]
        ),
    }
    environment.pop("DLOG_URI", None)
    if block.language == "python":
        command = [sys.executable, "-c", _prepared(text)]
    else:
        command = ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(
        command,
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"


def _prepared(text: str) -> str:
    """Blocks read the log that the ones before them wrote: here each begins with a log of one record."""
    match = re.search(r'"(file://[^"]*/log)"', text)
    if match is None:
        return text
    return (
        "import dlog.blocking as _blocking\n"
        f"with _blocking.open_namespace({match[1]!r}) as _n, _n.open_writer('orders', create=True) as _l:\n"
        "    _l.append(b'before')\n"
        f"{text}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_says_what_it_is(page: Path) -> None:
    name = page.relative_to(ROOT).as_posix()
    wrong = [
        f"block {block.number}: {block.text.strip().splitlines()[0]}"
        for block in blocks()
        if block.page == name and block.language not in RUN + OTHERS
    ]
    assert wrong == []


@functools.cache
def names_by_file() -> dict[str, set[str]]:
    """The tests of each Python file below ``tests/``."""
    return {
        file.relative_to(ROOT).as_posix(): set(re.findall(r"def (test_\w+)", file.read_text("utf-8")))
        for file in (ROOT / "tests").rglob("*.py")
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    files = names_by_file()
    defined = set().union(*files.values())
    stems = {Path(file).stem for file in files} | {Path(file).name for file in files}
    named = set(re.findall(r"`(?:\w+/)*(test_\w+(?:\.py)?)(?:::test_\w+)?`", text))
    named |= set(re.findall(r"::(test_\w+)", text))
    assert sorted(name for name in named if name not in defined | stems) == []
    paths = set(re.findall(r"`(tests/[\w/]+\.py)", text))
    assert sorted(paths - set(files)) == []
