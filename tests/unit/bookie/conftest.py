"""Lets the tests here import ``service_by_hand``, and its fixtures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from service_by_hand import HandDisk, Peer

from bookie.service import BookieService


@pytest.fixture
def disk() -> HandDisk:
    return HandDisk()


@pytest.fixture
def service(disk: HandDisk) -> BookieService:
    return BookieService(disk)  # type: ignore[arg-type]


@pytest.fixture
def peer(service: BookieService) -> Peer:
    return Peer(service)
