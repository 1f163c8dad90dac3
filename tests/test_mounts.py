"""A test that mounts file systems runs with them, or fails by name; it is never left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import mounts

HERE = "tests/test_mounts.py::test_a_test_that_is_marked_mounts"


@pytest.mark.mounts
def test_a_test_that_is_marked_mounts(tmp_path: Path) -> None:
    mounts.mount_memory(tmp_path, 1 << 16)
    assert tmp_path.is_mount()
    mounts.unmount(tmp_path)
    assert not tmp_path.is_mount()


@pytest.mark.slow
def test_who_may_not_mount_runs_it_where_it_may(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "may_mount", lambda: False)
    assert mounts.run_item(request.node) is None, "it is not marked"
    mounts.run_alone(HERE)


@pytest.mark.slow
def test_what_fails_there_fails_here() -> None:
    with pytest.raises(pytest.fail.Exception, match="not found"):
        mounts.run_alone(f"{HERE}_and_does_not_exist")


def test_who_may_not_make_namespaces_either_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "ALONE", ["false"])
    with pytest.raises(pytest.fail.Exception, match="it needs root, or a kernel"):
        mounts.run_alone(HERE)
