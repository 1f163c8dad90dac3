"""A release is built twice with the same bytes, from what is committed, under the version of its tag."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.release import (
    Commit,
    ReleaseError,
    build_twice,
    check_changelog,
    contents,
    normalise,
    read_commit,
    try_file,
    version_of,
)

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "small"
version = "0.1.0"

[tool.setuptools.packages.find]
include = ["small*"]
"""

# Each build holds the folder that it was made in.
SETUP = """\
import os
from pathlib import Path
from setuptools import setup
Path("small/made.py").write_text(repr(os.getcwd()))
setup()
"""


def git(root: Path, *arguments: str) -> None:
    names = {f"GIT_{role}_{what}": "small" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    dates = {f"GIT_{role}_DATE": "2001-02-03T04:05:06Z" for role in ("AUTHOR", "COMMITTER")}
    subprocess.run(
        ["git", "-C", str(root), *arguments],
        check=True,
        capture_output=True,
        env={**os.environ, **names, **dates},
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A project of one module with one commit."""
    root = tmp_path / "repository"
    (root / "small").mkdir(parents=True)
    (root / "small/__init__.py").write_text("")
    (root / "tests").mkdir()
    (root / "tests/test_small.py").write_text("")
    (root / "pyproject.toml").write_text(PROJECT)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "First")
    return root


@pytest.mark.parametrize(
    ("tag", "count", "version"),
    [
        ("v1.2.3", 0, "1.2.3"),
        ("v1.3.0rc1", 0, "1.3.0rc1"),
        ("v1.2.3", 7, "1.2.4.dev7+gabc"),
        ("v1.3.0rc1", 2, "1.3.0.dev2+gabc"),
        (None, 40, "0.1.0.dev40+gabc"),
    ],
)
def test_the_version_is_that_of_the_tag_or_one_of_development(
    tag: str | None, count: int, version: str
) -> None:
    assert version_of(Commit("abc", 0, tag, count), "0.1.0") == version


def test_the_nearest_tag_of_a_version_counts(repository: Path) -> None:
    assert read_commit(repository).tag is None
    git(repository, "tag", "v0.9.0")
    git(repository, "tag", "v0.10.0")
    git(repository, "tag", "vnext")
    assert (read_commit(repository).tag, read_commit(repository).count) == ("v0.10.0", 0)
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "Second")
    assert (read_commit(repository).tag, read_commit(repository).count) == ("v0.10.0", 1)


def test_a_release_needs_its_section_of_the_changelog_and_no_fragments() -> None:
    described = "# Changelog\n\n## 1.2.0 (2030-01-02)\n"
    check_changelog("1.2.0", described, [])
    check_changelog("1.2.1.dev3+gabc", "", ["a.feature.md"])
    with pytest.raises(ReleaseError, match="no section '## 1"):
        check_changelog("1.2.0", "## 1.2.0 (not released yet)\n", [])
    with pytest.raises(ReleaseError, match="holds 1 fragments"):
        check_changelog("1.2.0", described, ["a.feature.md"])


def test_an_sdist_keeps_no_times_owners_or_order_of_its_build() -> None:
    def packed(names: list[str], mtime: int, uid: int, mode: int) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uid, member.mode = 1, mtime, uid, mode
                archive.addfile(member, io.BytesIO(b"x"))
        return out.getvalue()

    one, other = packed(["a", "b"], 1, 0, 0o600), packed(["b", "a"], 2, 1000, 0o664)
    assert one != other
    assert normalise(one, 5) == normalise(other, 5)
    assert normalise(one, 5) != normalise(packed(["a", "b"], 1, 0, 0o755), 5)


@pytest.mark.slow
def test_two_builds_of_a_commit_have_the_same_bytes_and_nothing_uncommitted(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "tag", "v3.4.5")
    (repository / "small/private.py").write_text("")
    sdist, wheel = build_twice(read_commit(repository), "3.4.5", tmp_path / "built", repository)
    assert (sdist.name, wheel.name) == ("small-3.4.5.tar.gz", "small-3.4.5-py3-none-any.whl")
    assert "small-3.4.5/small/__init__.py" in contents(sdist)
    assert [name for name in contents(wheel) if name.endswith(".py")] == ["small/__init__.py"]
    assert not [name for name in contents(sdist) if "test" in name or "private" in name]


@pytest.mark.slow
def test_builds_that_differ_are_refused_with_the_file(repository: Path, tmp_path: Path) -> None:
    (repository / "setup.py").write_text(SETUP)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "Take the folder into the build")
    with pytest.raises(ReleaseError, match=r"differ in .*small/made\.py"):
        build_twice(read_commit(repository), "1.0.0", tmp_path / "built", repository)


@pytest.mark.slow
def test_a_file_that_cannot_be_installed_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "small-1.0.0-py3-none-any.whl"
    broken.write_bytes(b"")
    with pytest.raises(ReleaseError, match="'-m pip' ended with 1"):
        try_file(broken, "1.0.0", tmp_path / "home")
