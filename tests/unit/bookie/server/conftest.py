"""Fixtures for a bookie whose connections have a gate."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from bookie.bookie import open_bookie
from tests.fakes.certificates import make_authority
from tests.unit.bookie.server.gated_bookie import Certificates, Opened
from tests.unit.bookie.server.test_server import storage_config


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    authority = make_authority()
    trusted = authority.write_pem(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("bookie.test").write_pem(tmp_path / "bookie.pem"))
    context.load_verify_locations(trusted)
    context.verify_mode = ssl.CERT_OPTIONAL
    return Certificates(tmp_path, authority, context)


@pytest.fixture
async def opened(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Opened]:
    async with open_bookie(storage_config(tmp_path)) as bookie:
        yield Opened(bookie, nursery)
        nursery.cancel_scope.cancel()
