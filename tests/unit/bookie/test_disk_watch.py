"""Watching the disks: full and bad disks, the operator's switch, the state after a restart."""

# covers: bookie/disk/fullness.py

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bookie.disk.disk import DiskUsage
from bookie.disk.fullness import FullnessConfig, evaluate_fullness
from bookie.disk.real_disk import RealDisk
from bookie.disk.reserve import Reserve
from bookie.disk_watch import DiskWatch, DiskWatchConfig, WatchedDisks
from bookie.errors import DirectoryError, SpaceAgainError, StateError
from bookie.requests.session import Rights
from ledger.metadata_store.errors import StoreUnreachableError

T = TypeVar("T")
CONFIG = FullnessConfig(full=0.9, warn=0.8, low=0.7, high_priority_bytes_min=8, index_file_bytes_min=0)


class FakeRegistration:
    """A registration that records the announcements."""

    def __init__(self) -> None:
        self.announcements: list[str] = []
        self.is_down = False

    def _announce(self, state: str) -> None:
        if self.is_down:
            raise StoreUnreachableError("unreachable")
        self.announcements.append(state)

    async def become_read_only(self) -> None:
        self._announce("read-only")

    async def become_writable(self) -> None:
        self._announce("writable")


class FillingDisk(RealDisk):
    def __init__(self) -> None:
        super().__init__()
        self.free = {"one": 50, "two": 50}
        self.bad: str | None = None
        self.is_full = False
        self.scale = 1

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(100 * self.scale, self.free[path.name] * self.scale)

    def check_directory(self, path: Path) -> None:
        if self.bad == path.parent.name:
            raise OSError(errno.EROFS, "read-only file system", str(path))
        super().check_directory(path)

    def replace_file(self, path: Path, data: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left", str(path))
        super().replace_file(path, data)

    async def run(self, job: Callable[..., T], *args: Any) -> T:
        await trio.lowlevel.checkpoint()  # no thread: the clock is a mock
        return job(*args)


class Watched:
    def __init__(self, path: Path, disk: FillingDisk | None = None, **more: Any) -> None:
        self.rights = Rights()
        self.announced = FakeRegistration()
        self.disk = disk or FillingDisk()
        self.now_ms = 1000
        self.paths = [path / "one", path / "two"]
        for directory in self.paths:
            (directory / "current").mkdir(parents=True, exist_ok=True)
        self.watch = DiskWatch(
            self.rights,
            self.announced,  # type: ignore[arg-type]
            WatchedDisks(
                self.disk,
                self.paths,
                more.pop("journal_directories", ()),
                reserves=more.pop("reserves", ()),
            ),
            DiskWatchConfig(
                more.pop("config", CONFIG),
                is_forced=more.pop("is_forced", False),
                persists=more.pop("persists", False),
            ),
            wall_ms=lambda: self.now_ms,
            **more,
        )

    async def start(self) -> None:
        await self.watch.load()
        await self.watch.check()

    def stored(self) -> set[bytes]:
        files = [directory / "current/BOOKIE_STATUS" for directory in self.paths]
        return {file.read_bytes() for file in files if file.exists()}


def rights_of(watched: Watched) -> tuple[bool, bool]:
    """Whether all writes, and whether writes of high priority are allowed."""
    return watched.rights.writable, watched.rights.high_priority_writable


async def wait_checks(count: int = 1) -> None:
    await trio.sleep(10 * count + 1)
    await wait_all_tasks_blocked()


async def test_one_full_disk_of_two_makes_the_bookie_read_only_until_below_the_low_mark(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path)
    await watched.start()
    nursery.start_soon(watched.watch.run)
    assert rights_of(watched) == (True, True)
    watched.disk.free["two"] = 9
    await wait_checks()
    assert rights_of(watched) == (False, True)
    assert "two 91.0% used: the disk is full (diskUsageThreshold 0.9)" in caplog.text
    watched.disk.free["two"] = 20
    await wait_checks()
    assert rights_of(watched) == (False, True), (
        "below the mark that made the bookie read-only, but above the low mark"
    )
    watched.disk.free["two"] = 31
    await wait_checks()
    assert rights_of(watched) == (True, True)
    assert watched.announced.announcements == ["read-only", "writable"]
    assert watched.stored() == set(), "the state is not stored"
    nursery.cancel_scope.cancel()


async def test_a_failed_announcement_is_repeated(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    watched = Watched(tmp_path)
    await watched.start()
    nursery.start_soon(watched.watch.run)
    watched.announced.is_down = True
    watched.disk.free["one"] = 1
    await wait_checks(2)
    assert not watched.rights.writable, "clients are refused at once"
    assert not watched.rights.high_priority_writable or watched.disk.free["two"] >= 8
    watched.announced.is_down = False
    await wait_checks()
    assert watched.announced.announcements == ["read-only"]
    nursery.cancel_scope.cancel()


async def test_a_nearly_full_disk_is_logged_once(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path)
    await watched.start()
    nursery.start_soon(watched.watch.run)
    watched.disk.free["one"] = 15
    await wait_checks(3)
    assert [record.message for record in caplog.records if "nearly full" in record.message] == [
        f"{tmp_path}/one 85.0% used, {tmp_path}/two 50.0% used: the disk is nearly full"
    ]
    nursery.cancel_scope.cancel()


async def test_a_bad_directory_stops_the_watch_with_evidence_and_remedy(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    watched = Watched(tmp_path)
    await watched.start()
    watched.disk.bad = "two"
    with pytest.raises(
        DirectoryError, match=r"two/current cannot be used: .*read-only file system.*replace the disk"
    ):
        with trio.fail_after(100):
            await watched.watch.run()
    journal = Watched(tmp_path, journal_directories=[tmp_path / "journal"])
    with pytest.raises(DirectoryError, match="journal/current cannot be used"):
        await journal.start()


async def test_a_real_directory_that_vanishes_or_is_a_file_is_bad(tmp_path: Path) -> None:
    RealDisk().check_directory(tmp_path)
    (tmp_path / "file").touch()
    for name in ("gone", "file"):
        with pytest.raises(OSError):
            RealDisk().check_directory(tmp_path / name)


async def test_only_an_operator_undoes_an_operators_read_only_also_after_a_restart(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    watched = Watched(tmp_path, persists=True)
    await watched.start()
    nursery.start_soon(watched.watch.run)
    await wait_checks()
    assert watched.stored() == set(), "a start alone writes nothing"
    watched.watch.set_read_only(True)
    assert not watched.rights.writable
    await wait_all_tasks_blocked()
    assert watched.announced.announcements == ["read-only"], "at once, not after the next check"
    assert watched.stored() == {b"1,READ_ONLY,1000,true\n"}
    await wait_checks(3)
    assert not watched.rights.writable, "an empty disk does not change that"
    nursery.cancel_scope.cancel()
    again = Watched(tmp_path, persists=True)
    await again.start()
    assert not again.rights.writable
    assert again.watch.is_by_hand
    assert "by hand" in repr(again.watch)
    forgetful = Watched(tmp_path)
    await forgetful.start()
    assert forgetful.rights.writable
    again.now_ms = 2000
    again.watch.set_read_only(False)
    with trio.move_on_after(0):
        await again.watch.run()
    with trio.move_on_after(11):
        await again.watch.run()
    assert again.stored() == {b"1,READ_WRITE,2000,false\n"}
    assert again.rights.writable


async def test_a_bookie_that_was_full_needs_the_low_mark_after_a_restart_too(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    watched = Watched(tmp_path, persists=True)
    await watched.start()
    watched.disk.free["one"] = 5
    with trio.move_on_after(11):
        await watched.watch.run()
    assert watched.stored() == {b"1,READ_ONLY,1000,false\n"}
    watched.disk.free["one"] = 20
    again = Watched(tmp_path, watched.disk, persists=True)
    await again.start()
    assert not again.rights.writable
    watched.disk.free["one"] = 40
    with trio.move_on_after(11):
        await again.watch.run()
    assert again.rights.writable


async def test_a_status_that_cannot_be_read_or_written_is_logged_and_ignored(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path, persists=True)
    (tmp_path / "one/current/BOOKIE_STATUS").write_bytes(b"\xff garbage")
    (tmp_path / "two/current/BOOKIE_STATUS").write_bytes(b"1,READ_ONLY,1,true\n")
    await watched.start()
    assert rights_of(watched)[0] is False, "the status of the other directory counts"
    assert "is ignored" in caplog.text
    watched.disk.is_full = True
    watched.watch.set_read_only(False)
    with trio.move_on_after(11):
        await watched.watch.run()
    assert watched.rights.writable
    assert "cannot be written" in caplog.text
    watched.disk.is_full = False
    with trio.move_on_after(11):
        await watched.watch.run()
    assert watched.stored() == {b"1,READ_WRITE,1000,false\n"}


async def test_a_change_that_the_configuration_forbids_is_an_error(tmp_path: Path) -> None:
    forbidden = Watched(tmp_path, config=attrs.evolve(CONFIG, may_be_read_only=False))
    await forbidden.start()
    with pytest.raises(StateError, match="readOnlyModeEnabled=false"):
        forbidden.watch.set_read_only(True)
    assert forbidden.rights.writable
    forced = Watched(tmp_path, is_forced=True)
    await forced.start()
    assert not forced.rights.writable
    with pytest.raises(StateError, match="forceReadOnlyBookie"):
        forced.watch.set_read_only(False)


async def test_a_full_disk_stays_read_only_when_an_operator_allows_writes(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.disk.free["one"] = 5
    await watched.start()
    watched.watch.set_read_only(True)
    watched.watch.set_read_only(False)
    assert not watched.rights.writable
    assert "full" in repr(watched.watch)


async def test_the_reserve_is_filled_while_there_is_enough_space(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    disk = FillingDisk()
    reserve = Reserve(disk, tmp_path / "one", 3 << 20, name="reserve")
    watched = Watched(tmp_path, disk, reserves=[reserve])
    await watched.start()
    with trio.move_on_after(11):
        await watched.watch.run()
    assert reserve.held_bytes() == 0, "a hundred bytes are not enough"
    disk.scale = 1 << 20
    with trio.move_on_after(11):
        await watched.watch.run()
    assert reserve.held_bytes() == 3 << 20


async def test_no_change_waits_for_the_reserve_to_be_filled(tmp_path: Path, mock_clock: MockClock) -> None:
    disk = FillingDisk()
    disk.scale = 1 << 20
    reserve = Reserve(disk, tmp_path / "one", 3 << 20, name="reserve")
    watched = Watched(tmp_path, disk, reserves=[reserve])
    await watched.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.watch.run)
        await wait_all_tasks_blocked()
        watched.watch.set_read_only(True)
        await wait_all_tasks_blocked()  # the clock stands still, and so does the filling in its first pause
        assert watched.announced.announcements == ["read-only"]
        assert reserve.held_bytes() < 3 << 20
        watched.watch.set_read_only(False)
        mock_clock.jump(0.02)  # the pause ends, and the filling gives way
        await wait_all_tasks_blocked()
        assert watched.announced.announcements == ["read-only", "writable"]
        assert reserve.held_bytes() < 3 << 20
        nursery.cancel_scope.cancel()


def test_a_disk_that_may_fill_up_must_keep_space_for_a_flush() -> None:
    config = FullnessConfig(any_disk=False, full=0.9, low=0.9, flush_bytes_min=4)
    assert evaluate_fullness([(100, 5), (100, 90)], was_writable=True, config=config).writable
    assert not evaluate_fullness([(100, 3), (100, 90)], was_writable=True, config=config).writable
    assert not evaluate_fullness([(100, 5), (100, 9)], was_writable=True, config=config).writable
    demanding = FullnessConfig(high_priority_bytes_min=1, index_file_bytes_min=10)
    assert not evaluate_fullness([(100, 4)], was_writable=True, config=demanding).high_priority_writable


async def test_space_that_a_reserve_has_given_does_not_make_the_bookie_writable(tmp_path: Path) -> None:
    """Clients would take it, and the next start would find none."""
    disk = FillingDisk()
    disk.scale = 1 << 20
    directory = tmp_path / "one/current"
    directory.mkdir(parents=True)
    reserve = Reserve(disk, directory, 40 << 20, name="flush.reserve")
    (directory / "flush.reserve").write_bytes(bytes(4096))
    watched = Watched(tmp_path, disk, reserves=[reserve])
    await watched.start()
    disk.free["one"] = 5
    await watched.watch.check()
    assert not watched.rights.writable
    reserve.release()
    disk.free["one"] = 45
    await watched.watch.check()
    assert not watched.rights.writable
    disk.free["one"] = 75
    await watched.watch.check()
    assert watched.rights.writable


async def test_a_storage_opened_on_a_full_disk_is_opened_again_when_its_backlog_has_space(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    watched = Watched(tmp_path, backlog_bytes=lambda: 40)
    await watched.start()
    assert not watched.rights.writable, "it takes no adds until then"
    watched.disk.free["two"] = 39
    with trio.move_on_after(60) as scope:
        await watched.watch.run()
    assert scope.cancelled_caught
    watched.disk.free["two"] = 40
    with pytest.raises(SpaceAgainError):
        await watched.watch.run()
