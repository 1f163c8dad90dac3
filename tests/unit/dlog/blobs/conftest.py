"""A namespace with small pieces, so that a short blob has many entries and ledgers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dlog.blobs import writer
from tests.fakes.dict_bookies import DictCluster, open_cluster

ENTRY, PIECE = 8, 24


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ENTRY_BYTES", ENTRY)
    monkeypatch.setattr(writer, "BLOCK_BYTES", 2 * ENTRY)
    monkeypatch.setattr(writer, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(writer, "PIECES_OF_A_SIZE", 2)
