"""A service that checks permissions, and a peer of it."""

from __future__ import annotations

import pytest

from bookie.requests.permissions import (
    GuardedService,
)
from tests.fakes.service_by_hand import HandDisk
from tests.unit.bookie.requests.guarded_sessions import ALICE, Oracle, Peer


@pytest.fixture
def disk() -> HandDisk:
    return HandDisk()


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def service(disk: HandDisk, oracle: Oracle) -> GuardedService:
    return GuardedService(disk, oracle.permissions)  # type: ignore[arg-type]


@pytest.fixture
def alice(service: GuardedService) -> Peer:
    return Peer(service, ALICE)
