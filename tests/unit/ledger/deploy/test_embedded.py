"""Reaching the bookie of a directory that is not at its path any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.deploy import host
from ledger.deploy.directory import Directory
from ledger.deploy.embedded import open_embedded_stack
from ledger.errors import DirectoryMovedError
from ledger.transport.transport import Address
from namespace.store import SessionState


async def test_no_connection_is_made_to_a_bookie_whose_directory_was_moved(tmp_path: Path) -> None:
    """Also after it was put back: what was written in between may be missing."""
    path, moved = tmp_path / "ledgers", tmp_path / "moved"
    async with open_embedded_stack(path) as stack:
        await (await stack.hosting.dial(Address("", 0))).aclose()
        path.rename(moved)
        with pytest.raises(DirectoryMovedError):
            await stack.hosting.dial(Address("", 0))
        assert stack.store.state is not SessionState.CONNECTED
        moved.rename(path)
        with pytest.raises(DirectoryMovedError):
            await stack.hosting.dial(Address("", 0))


async def test_a_host_that_finds_other_files_in_the_directory_is_the_reason_of_each_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_metadata(directory: Directory, *_: object) -> None:
        raise DirectoryMovedError("its metadata is another file")

    monkeypatch.setattr(host, "open_hosted_bookie", other_metadata)
    with pytest.raises(DirectoryMovedError, match="another file"):
        async with open_embedded_stack(tmp_path / "ledgers"):
            pass
