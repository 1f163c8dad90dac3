"""The file of a backup: what was written is read, and a part of it is refused."""

from __future__ import annotations

import attrs
import pytest

from ledger.catalog.backup_file import BackupNode, ClusterBackup, decode_backup, encode_backup
from ledger.errors import BackupFileError

BACKUP = ClusterBackup(
    ledgers_root="/ledgers",
    namespaces=("/dlog",),
    instance_id="6f1cbd0e-6a0e-4f6a-9a4e-2f7f6c4b7c55",
    id_series=0,
    created_ms=1_700_000_000_000,
    nodes=(
        BackupNode("/dlog", b"\x00binding"),
        BackupNode("/ledgers", b""),
        BackupNode("/ledgers/LAYOUT", b"2\nx:1"),
    ),
)


def test_what_was_encoded_is_decoded() -> None:
    assert decode_backup(encode_backup(BACKUP)) == BACKUP


def test_a_file_cut_anywhere_is_refused() -> None:
    data = encode_backup(BACKUP)
    for length in range(len(data)):
        with pytest.raises(BackupFileError):
            decode_backup(data[:length])


def test_a_changed_byte_is_refused() -> None:
    data = encode_backup(BACKUP)
    for at in range(len(data)):
        with pytest.raises(BackupFileError):
            decode_backup(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.mark.parametrize(
    "nodes",
    [
        BACKUP.nodes[:2][::-1],
        BACKUP.nodes[:1],
        (*BACKUP.nodes, BackupNode("/zoo", b"")),
        (*BACKUP.nodes, BackupNode("/ledgers/x/y", b"")),
        (*BACKUP.nodes, BackupNode("/ledgers/x/../y", b"")),
    ],
)
def test_nodes_that_form_no_trees_are_refused(nodes: tuple[BackupNode, ...]) -> None:
    with pytest.raises(BackupFileError):
        decode_backup(encode_backup(attrs.evolve(BACKUP, nodes=nodes)))


def test_trees_within_each_other_are_refused() -> None:
    with pytest.raises(BackupFileError, match="lies in"):
        decode_backup(encode_backup(attrs.evolve(BACKUP, namespaces=("/ledgers/dlog",))))
