"""Fixtures of a bookie's service over a disk by hand."""

from __future__ import annotations

import pytest

from bookie.requests.session import BookieService
from tests.fakes.service_by_hand import HandDisk, Peer


@pytest.fixture
def disk() -> HandDisk:
    return HandDisk()


@pytest.fixture
def service(disk: HandDisk) -> BookieService:
    return BookieService(disk)  # type: ignore[arg-type]


@pytest.fixture
def peer(service: BookieService) -> Peer:
    return Peer(service)
