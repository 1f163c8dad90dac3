"""What `make dist` does: build the wheel and the sdist of a commit, compare two builds, try both.

Inside: the version of a commit, an export of what is committed, two builds from it, an empty environment for
each file. Not inside: the upload, and the section of the changelog (``docs/releasing.md``).
Always: what lies in the target was built twice with the same bytes, was installed, and ran the demo.

``python -m tests.release [TARGET]`` writes to ``dist``.

Source: https://reproducible-builds.org/docs/source-date-epoch/; PEP 440 for versions.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

import attrs

from tests.places import ROOT

TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)((?:a|b|rc)\d+)?")
VERSION_LINE = re.compile(r'^version = ".*"$', re.MULTILINE)
COMMAND_TIMEOUT_S = 900  # pip may have to fetch each package
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


class ReleaseError(Exception):
    """No release can be made of this commit. The text says why, and what to do."""


@attrs.frozen
class Commit:
    """A commit as its version needs it.

    Attributes:
        digest: The short form of its hash.
        time_s: When it was made, in seconds since 1970.
        tag: The nearest tag of a version before it or at it; None without one.
        count: The commits after that tag; without one, all of them.
    """

    digest: str
    time_s: int
    tag: str | None
    count: int


def git(*arguments: str, root: Path = ROOT) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


def read_commit(root: Path = ROOT) -> Commit:
    """The commit that is checked out."""
    digest, time_s = git("log", "-1", "--format=%h %ct", root=root).split()
    tags = git("tag", "--merged", "HEAD", "--sort=-version:refname", "--list", "v[0-9]*", root=root).split()
    tag = next((tag for tag in tags if TAG.fullmatch(tag)), None)
    commits = "HEAD" if tag is None else f"{tag}..HEAD"
    return Commit(digest, int(time_s), tag, int(git("rev-list", "--count", commits, root=root)))


def version_of(commit: Commit, declared: str) -> str:
    """The version of a commit: that of its tag, or one of development that sorts before the next release.

    Args:
        commit: The commit.
        declared: The version in pyproject.toml, which is the next one until a tag is there.
    """
    if commit.tag is None:
        return f"{declared}.dev{commit.count}+g{commit.digest}"
    match = TAG.fullmatch(commit.tag)
    if match is None:
        raise ReleaseError(f"the tag {commit.tag!r} is no version; name it v1.2.3 or v1.2.3rc1")
    major, minor, patch, stage = match.groups()
    if commit.count == 0:
        return f"{major}.{minor}.{patch}{stage or ''}"
    following = patch if stage else str(int(patch) + 1)
    return f"{major}.{minor}.{following}.dev{commit.count}+g{commit.digest}"


def check_changelog(version: str, changelog: str, fragments: list[str]) -> None:
    """Refuse a release that the changelog does not describe. Versions of development need no section.

    Raises:
        ReleaseError: The section is missing, or fragments wait to be collected.
    """
    if ".dev" in version:
        return
    if not re.search(rf"^## {re.escape(version)}( \(\d{{4}}-\d\d-\d\d\))?$", changelog, re.MULTILINE):
        raise ReleaseError(
            f"CHANGELOG.md has no section '## {version} (YEAR-MONTH-DAY)'; write it and tag that commit"
        )
    if fragments:
        raise ReleaseError(
            f"docs/newsfragments holds {len(fragments)} fragments, {fragments[0]} the first; collect them in"
            " CHANGELOG.md, delete them, and tag that commit"
        )


def export(commit: Commit, version: str, tree: Path, root: Path = ROOT) -> None:
    """Write the committed files to a new directory, with the version in pyproject.toml."""
    packed = subprocess.run(
        ["git", "-C", str(root), "archive", "--format=tar", commit.digest],
        check=True,
        capture_output=True,
        timeout=60,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tree, filter="data")
    settings = tree / "pyproject.toml"
    text, count = VERSION_LINE.subn(f'version = "{version}"', settings.read_text("utf-8"), count=1)
    if count != 1:
        raise ReleaseError("pyproject.toml has no line 'version = \"…\"' of its own")
    settings.write_text(text, "utf-8")
    # The back end would take the tests of the top folder, and those alone.
    (tree / "MANIFEST.in").write_text("prune tests\n", "utf-8")


def normalise(packed: bytes, time_s: int) -> bytes:
    """The same sdist without what differs from one build to the next: times, owners, order, rights."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as source,
        gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=time_s) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            clean = tarfile.TarInfo(member.name)
            clean.type, clean.mtime = member.type, time_s
            clean.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            clean.size = member.size
            target.addfile(clean, source.extractfile(member) if member.isfile() else None)
    return out.getvalue()


def run_back_end(call: str, tree: Path, target: Path, time_s: int) -> Path:
    """Let setuptools build one file; return its path."""
    target.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, call, str(target)],
        cwd=tree,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(time_s), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise ReleaseError(f"setuptools failed to {call}: {done.stderr[-2000:]}")
    return target / done.stdout.split()[-1]


def build(commit: Commit, version: str, directory: Path, root: Path = ROOT) -> list[Path]:
    """Build the sdist from the commit, and the wheel from the sdist, in a directory that does not exist yet.

    Returns:
        The paths of the sdist and of the wheel.
    """
    directory.mkdir(parents=True)
    tree, unpacked, target = directory / "tree", directory / "unpacked", directory / "built"
    export(commit, version, tree, root)
    sdist = run_back_end("build_sdist", tree, target, commit.time_s)
    sdist.write_bytes(normalise(sdist.read_bytes(), commit.time_s))
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return [sdist, run_back_end("build_wheel", source, target, commit.time_s)]


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def contents(path: Path) -> dict[str, bytes]:
    """The files in an sdist or a wheel."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    found = {}
    with tarfile.open(path) as sdist:
        for member in sdist.getmembers():
            if (file := sdist.extractfile(member)) is not None:
                found[member.name] = file.read()
    return found


def build_twice(commit: Commit, version: str, directory: Path, root: Path = ROOT) -> list[Path]:
    """Build in two places, and compare.

    Raises:
        ReleaseError: A file of the second build has other bytes.
    """
    first, second = (build(commit, version, directory / name, root) for name in ("first", "second"))
    for one, other in zip(first, second, strict=True):
        if digest_of(one) != digest_of(other):
            held, again = contents(one), contents(other)
            names = sorted(name for name in held.keys() | again.keys() if held.get(name) != again.get(name))
            raise ReleaseError(
                f"two builds of {one.name} differ in {', '.join(names[:5]) or 'order, times or rights'}; find"
                " what the build takes from the machine or the clock"
            )
    return first


def try_file(built: Path, version: str, home: Path) -> None:
    """Install one file in an empty environment, with the locked versions, and run the demo there.

    Raises:
        ReleaseError: A step failed; the text has the end of its output.
    """
    locked = (ROOT / ".ci" / "requirements-base.lock").read_text("utf-8").splitlines()
    home.mkdir()
    versions = home / "versions.txt"
    versions.write_text("\n".join(line.partition(" --hash")[0] for line in locked), "utf-8")
    python, command = home / "environment/bin/python", home / "environment/bin/dlog"
    steps: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", home / "environment"],
        [python, "-m", "pip", "install", "--quiet", "--constraint", versions, built],
        [command, "--version"],
        [command, "demo", "--json"],
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DLOG"))}
    for step in steps:
        words = [str(word) for word in step]
        done = subprocess.run(
            words,
            cwd=home,
            env={**clean, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            shown = done.stdout[-1000:] + done.stderr[-2000:]
            raise ReleaseError(
                f"{built.name}: '{' '.join(words[1:3])}' ended with {done.returncode}: {shown}"
            )
        if words[1:] == ["--version"] and version not in done.stdout:
            raise ReleaseError(f"{built.name} says {done.stdout.strip()!r}; its version should be {version}")


def main(arguments: list[str]) -> int:
    target = Path(arguments[0] if arguments else ROOT / "dist").absolute()
    commit = read_commit()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    version = version_of(commit, declared)
    fragments = sorted(path.name for path in (ROOT / "docs/newsfragments").glob("*.*.md"))
    if left_out := git("status", "--porcelain"):
        print(f"dist: left out, since not committed: {', '.join(left_out.split()[1::2])}")
    with tempfile.TemporaryDirectory(prefix="dlog-dist-") as name:
        directory = Path(name)
        try:
            check_changelog(version, (ROOT / "CHANGELOG.md").read_text("utf-8"), fragments)
            print(f"dist: building {version} twice from {commit.digest}", flush=True)
            built = build_twice(commit, version, directory)
            for path in built:
                print(
                    f"dist: installing {path.name} in an empty environment, and running the demo", flush=True
                )
                try_file(path, version, directory / f"try-{path.suffix[1:]}")
        except ReleaseError as exc:
            print(f"dist: {exc}", file=sys.stderr)
            return 1
        target.mkdir(exist_ok=True)
        for path in built:
            shutil.copyfile(path, target / path.name)
            print(f"{digest_of(path)}  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
