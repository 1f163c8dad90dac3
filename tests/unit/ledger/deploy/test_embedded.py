"""Reaching the bookie of a directory that is not at its path any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledger.deploy.directory import Directory
from ledger.deploy.embedded import open_embedded_stack
from ledger.deploy.repair import mend_directory
from ledger.errors import DirectoryMovedError, DirectoryUnusableError
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.store import SessionState
from ledger.transport.transport import Address
from tests.fakes.small_disk import small_directory


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
async def test_metadata_that_are_gone_come_from_their_copy_or_else_from_a_backup(tmp_path: Path) -> None:
    async with open_embedded_stack(tmp_path):
        pass
    (tmp_path / "metadata.sqlite").unlink()
    with pytest.raises(
        DirectoryUnusableError, match=r"metadata.copy is there.*`dlog repair .*makes it again"
    ):
        async with open_embedded_stack(tmp_path):
            pass
    (tmp_path / "metadata.copy").unlink()
    with pytest.raises(DirectoryUnusableError) as caught:
        async with open_embedded_stack(tmp_path):
            pass
    said = str(caught.value)
    assert "METADATA is there" in said
    assert "Nor is there a metadata.copy" in said
    assert "from a backup" in said
    assert "dlog repair" not in said, "it cannot help"
    with pytest.raises(DirectoryUnusableError, match=r"copy is missing or damaged, too.*backup") as tried:
        await mend_directory(tmp_path)
    assert "dlog repair" not in str(tried.value)
    (tmp_path / said.split()[-1]).touch()
    async with open_embedded_stack(tmp_path):
        pass


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


@pytest.mark.mounts
@pytest.mark.slow
async def test_what_closing_the_metadata_frees_goes_into_the_reserve_of_the_bookie(
    tmp_path: Path,
) -> None:
    """On a full disk another program would take it, and the next start would find nothing."""
    with small_directory(tmp_path / "disk", 64 << 20) as small:
        path = small.path / "ledgers"
        reserve = path / "bookie/current/flush.reserve"
        async with open_embedded_stack(path) as stack:
            await stack.store.create("/node", b"value")
            for number in range(50):
                await stack.store.put("/node", b"%d" % number)
            wal_bytes = (path / "metadata.sqlite-wal").stat().st_size
            os.truncate(reserve, 0)
            small.fill()
        assert wal_bytes > 0
        assert small.free_bytes() == 0
        assert reserve.stat().st_size > wal_bytes // 2
