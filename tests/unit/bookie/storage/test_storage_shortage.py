"""A storage in a process that has no file descriptor left: the kernel's own EMFILE, in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tests

SCRIPT = """
import logging, resource, sys, trio
from pathlib import Path
from bookie.disk import rocksdb
from bookie.disk.real_disk import RealDisk
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.index.page_cache import PageIndexConfig
from bookie.bookie import open_bookie
from bookie.storage.config import StorageConfig
from bookie.storage.entry_reads import ReadConfig
from ledger.digest import DigestType, EntryCodec, master_key

rocksdb._MEMTABLE_BYTES = 1 << 16
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
ENTRIES = EntryCodec(DigestType.CRC32C, b"")
LEDGERS = 600 if sys.argv[2] == "chunks" else 100
root = Path(sys.argv[1])
config = StorageConfig(
    journal_directories=[root / "journal"],
    ledger_directories=[root / "ledgers"],
    index=IndexConfig(kind=IndexKind(sys.argv[2]), pages=PageIndexConfig(pages_max=8, open_files_max=4)),
    reads=ReadConfig(cache_bytes_max=0),
)

def take_descriptors():
    # Below the next free number, so that each open fails.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, HARD))

class Pauses:
    left = 0

    def __call__(self, seconds):
        self.left -= 1
        if self.left == 0:
            resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))

async def write(storage, entry_id, ledgers=LEDGERS):
    batch = storage.new_batch()
    for ledger_id in range(ledgers):
        ledger = storage.ledger(ledger_id) or storage.create_ledger(batch, ledger_id, master_key(b""))
        body = ENTRIES.pack(ledger_id, entry_id, entry_id - 1, 1, b"%d:%d" % (ledger_id, entry_id))
        storage.stage_entry(batch, ledger, entry_id, entry_id - 1, body)
    await storage.submit_durably(batch)

async def read(storage, entry_ids):
    for entry_id in entry_ids:
        for ledger_id in range(0, LEDGERS, 9):
            body = await storage.read(ledger_id, entry_id)
            assert body.endswith(b"%d:%d" % (ledger_id, entry_id)), (ledger_id, entry_id)

async def main():
    disk = RealDisk()
    pauses = disk.descriptors._pause = Pauses()
    async with open_bookie(config, disk=disk) as bookie:
        storage = bookie.storage
        await write(storage, 0, LEDGERS + 5)
        await storage.flush()
        for entry_id in range(1, 6):
            await write(storage, entry_id)
            take_descriptors()
            pauses.left = 7
            async with trio.open_nursery() as nursery:
                nursery.start_soon(storage.flush)
                nursery.start_soon(read, storage, range(entry_id))
                nursery.start_soon(read, storage, range(entry_id))
                nursery.start_soon(storage.delete_ledger, LEDGERS - 1 + entry_id)
        print(disk.descriptors.shortages)
        take_descriptors()
        pauses.left = 7
        await storage.flush()
        resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))
    take_descriptors()
    pauses.left = 7
    async with open_bookie(config, disk=disk) as bookie:
        await read(bookie.storage, range(6))
        assert bookie.storage.ledger_ids() == list(range(LEDGERS))

logging.basicConfig(level=logging.ERROR)
trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chunks", "pages"])
def test_a_storage_without_descriptors_goes_on_when_it_gets_some_and_has_all_it_acknowledged(
    kind: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), kind],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(tests.__file__).parent.parent,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert int(ended.stdout) >= 5
    assert ended.stderr == "", "nothing failed"
