"""Which state an upgrade is tested from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.crash import previous_version


def test_the_last_state_is_the_newest_tag_before_this_commit(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "first")
    assert previous_version.last_state(tmp_path) == previous_version.COMMIT
    git("tag", "v0.1")
    assert previous_version.last_state(tmp_path) == previous_version.COMMIT, "the tag of the commit itself"
    git("commit", "--allow-empty", "-m", "second")
    assert previous_version.last_state(tmp_path) == "v0.1"
    git("tag", "v0.2")
    git("tag", "nightly")
    git("commit", "--allow-empty", "-m", "third")
    assert previous_version.last_state(tmp_path) == "v0.2"
