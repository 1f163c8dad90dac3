"""A service that checks permissions, and a peer of it."""

from __future__ import annotations

import pytest

from bookie.requests.session import BookieService
from tests.fakes.service_by_hand import HandDisk
from tests.unit.bookie.requests.guarded_sessions import ALICE, Oracle, Peer


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def guarded(disk: HandDisk, oracle: Oracle) -> BookieService:
    return BookieService(disk, permissions=oracle.permissions)  # type: ignore[arg-type]


@pytest.fixture
def alice(guarded: BookieService) -> Peer:
    return Peer(guarded, ALICE)
