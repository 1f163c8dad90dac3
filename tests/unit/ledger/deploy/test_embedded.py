"""Reaching the bookie of a directory that is not at its path any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.deploy.directory import Directory
from ledger.deploy.embedded import open_embedded_stack
from ledger.errors import DirectoryMovedError, DirectoryUnusableError
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.store import SessionState
from ledger.transport.transport import Address


@pytest.mark.slow
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
    def other_metadata(directory: Directory, *_: object, **__: object) -> None:
        raise DirectoryMovedError("its metadata is another file")

    monkeypatch.setattr("bookie.embedded.open_hosted_bookie", other_metadata)
    with pytest.raises(DirectoryMovedError, match="another file"):
        async with open_embedded_stack(tmp_path / "ledgers"):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metadata.sqlite", "metadata.copy", "bookie/current/METADATA"])
async def test_a_file_that_leads_to_itself_is_named_and_the_directory_works_with_the_file_again(
    tmp_path: Path, name: str
) -> None:
    path, kept = tmp_path / "ledgers", tmp_path / "kept"
    async with open_embedded_stack(path):
        pass
    file = path / name
    file.rename(kept)
    file.symlink_to(file)
    with pytest.raises((DirectoryUnusableError, MetadataError), match=name):
        async with open_embedded_stack(path):
            pass
    kept.replace(file)
    async with open_embedded_stack(path):
        pass
