"""Programs with certificates that share the writer of a log: who may write it, and what others learn."""

# covers: dlog/connect.py
# covers: dlog/forwarding/network_meeting.py

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import dlog
from dlog.connect import meet_by_network
from dlog.forwarding.network_meeting import NetworkMeeting
from ledger.auth.auth import ClientAuth
from ledger.policy import Policy, Right, Rule
from ledger.transport.bookie_security import NO_SECURITY, BookieSecurity
from namespace.owner_address import parse_listen_at
from tests.fakes.certificates import TestAuthority, make_authority

pytestmark = pytest.mark.slow
TEST_TIMEOUT_S = 60


@attrs.frozen
class Shop:
    """A namespace whose programs have certificates."""

    home: Path
    authority: TestAuthority = attrs.field(factory=make_authority)

    @asynccontextmanager
    async def program(
        self, name: str, authority: TestAuthority | None = None, principal: str | None = None
    ) -> AsyncIterator[dlog.Namespace]:
        """A namespace as a program with this name in its certificate has it."""
        security = BookieSecurity(
            tls=True,
            tls_authorities=self.authority.write_pem(self.home / "authority.pem"),
            tls_certificate=(authority or self.authority).sign(name).write_pem(self.home / f"{name}.pem"),
        )
        config = dlog.NamespaceConfig(principal=principal or f"CN={name}")
        async with dlog.open_namespace(f"file://{self.home}/ns", config=config) as namespace:
            meet = partial(NetworkMeeting, parse_listen_at("127.0.0.1"), security=security)
            yield dlog.Namespace(attrs.evolve(namespace.context, meet=meet))

    async def allow(self, **rights: Right) -> None:
        """Give each name a right on all logs."""
        given = {"operator": Right.ADMIN, **rights}
        rules = [Rule(f"CN={name}", "*", frozenset({right})) for name, right in given.items()]
        async with self.program("operator") as namespace:
            await namespace.create_log("log")
            await namespace.policy.set(Policy(tuple(rules)))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    with trio.fail_after(TEST_TIMEOUT_S):
        yield Shop(tmp_path)


async def test_programs_of_one_authority_share_a_log_and_take_it_over(shop: Shop) -> None:
    await shop.allow(shop=Right.WRITE, billing=Right.WRITE)
    async with shop.program("billing") as billing, shop.program("shop") as namespace:
        async with (
            namespace.open_writer("log", shared=True) as first,
            billing.open_writer("log", shared=True) as second,
        ):
            await second.append(b"one")
            assert (first.is_owner, second.is_owner) == (True, False)
            await first.aclose()
            await second.append(b"two")
            assert second.is_owner
        async with billing.open_reader("log", follow=False) as reader:
            assert [record.payload async for record in reader] == [b"one", b"two"]


async def test_a_program_whose_certificate_gives_it_no_right_is_refused_by_the_owner(shop: Shop) -> None:
    """Its own library would let it: it says that it is another principal."""
    await shop.allow(shop=Right.WRITE, reader=Right.READ)
    async with shop.program("shop") as namespace, namespace.open_writer("log", shared=True) as owner:
        async with shop.program("reader", principal="CN=shop") as other:
            with pytest.raises(dlog.AccessDeniedError, match="'CN=reader' no right to write"):
                async with other.open_writer("log", shared=True):
                    raise AssertionError("it was opened")
        await owner.append(b"one")
        await owner.flush()
        async with namespace.open_reader("log", follow=False) as reader:
            assert [record.payload async for record in reader] == [b"one"]


async def test_a_writer_without_the_right_of_an_administrator_neither_truncates_nor_seals(shop: Shop) -> None:
    """Not its own library stops it here but the owner, which has this right."""
    await shop.allow(shop=Right.ADMIN, billing=Right.WRITE)
    async with shop.program("shop") as namespace, namespace.open_writer("log", shared=True) as owner:
        async with (
            shop.program("billing", principal="CN=shop") as other,
            other.open_writer("log", shared=True) as writer,
        ):
            await writer.append(b"one")
            for call in (partial(writer.truncate, dlog.DLSN(1, 0, 0)), writer.seal):
                with pytest.raises(dlog.AccessDeniedError, match="'CN=billing' no right to admin"):
                    await call()
            await writer.append(b"two")
        await owner.append(b"three")


async def test_the_library_of_a_program_stops_it_before_it_asks_the_owner(shop: Shop) -> None:
    await shop.allow(shop=Right.ADMIN, billing=Right.WRITE)
    async with (
        shop.program("shop") as namespace,
        namespace.open_writer("log", shared=True),
        shop.program("shop", principal="CN=billing") as other,
        other.open_writer("log", shared=True) as writer,
    ):
        for call in (partial(writer.truncate, dlog.DLSN(1, 0, 0)), writer.seal):
            with pytest.raises(dlog.AccessDeniedError, match="'CN=billing' no right to admin"):
                await call()


async def test_a_program_that_could_not_be_the_owner_learns_that_before_it_has_to(shop: Shop) -> None:
    async with (
        shop.program("shop") as namespace,
        namespace.open_writer("log", create=True, shared=True),
    ):
        elsewhere = partial(NetworkMeeting, parse_listen_at("192.0.2.1"))
        without_certificate = partial(
            NetworkMeeting,
            parse_listen_at("127.0.0.1"),
            security=BookieSecurity(tls=True, tls_authorities=shop.home / "authority.pem"),
        )
        for meet, message in ((elsewhere, "owner_address"), (without_certificate, "tls_certificate")):
            other = dlog.Namespace(attrs.evolve(namespace.context, meet=meet))
            with pytest.raises(dlog.ConfigError, match=message):
                async with other.open_writer("log", shared=True):
                    raise AssertionError("it was opened")


async def test_a_program_of_another_authority_is_refused_at_once_and_learns_why(shop: Shop) -> None:
    async with (
        shop.program("shop") as namespace,
        namespace.open_writer("log", create=True, shared=True) as owner,
        shop.program("billing", make_authority("stranger.test")) as other,
    ):
        with pytest.raises(dlog.AccessDeniedError, match="the program that owns its writer, at 127"):
            async with other.open_writer("log", shared=True, lock_timeout_s=3600):
                raise AssertionError("it was opened")
        assert owner.forwarder_count == 0
        await owner.append(b"one")


class Proof:
    """A plug-in for authentication that has no items, so it counts as false."""

    def __call__(self) -> ClientAuth:
        raise AssertionError("nobody was to be met")

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize(
    "given", [{"tls": ssl.create_default_context()}, {"auth": Proof()}], ids=["tls", "auth"]
)
async def test_a_program_with_security_as_objects_is_refused_and_creates_nothing(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    """Other programs could not prove their names to it: it would meet them in clear text."""
    config = dlog.NamespaceConfig(**given)
    async with dlog.open_namespace(f"file://{tmp_path}/ns") as opened:
        context = attrs.evolve(opened.context, meet=partial(meet_by_network, config, NO_SECURITY))
        with pytest.raises(dlog.ConfigError, match="give bookie_security in place of tls and auth"):
            async with dlog.Namespace(context).open_writer("log", create=True, shared=True):
                raise AssertionError("it was opened")
        assert not await opened.log_exists("log")


async def test_a_program_without_security_or_with_files_may_share_a_writer(tmp_path: Path) -> None:
    files = BookieSecurity(tls=True, tls_authorities=tmp_path / "authority.pem")
    async with dlog.open_namespace(f"file://{tmp_path}/ns") as opened:
        nodes = opened.context.nodes("log")
    opened_files = dlog.NamespaceConfig(tls=ssl.create_default_context())  # as ``connect`` has read them
    assert isinstance(meet_by_network(dlog.NamespaceConfig(), NO_SECURITY, nodes), NetworkMeeting)
    assert isinstance(meet_by_network(opened_files, files, nodes), NetworkMeeting)


async def test_a_writer_that_is_refused_creates_no_log(tmp_path: Path) -> None:
    async with dlog.open_namespace(f"file://{tmp_path}/ns") as opened:
        meet = partial(NetworkMeeting, parse_listen_at("192.0.2.1"))
        elsewhere = dlog.Namespace(attrs.evolve(opened.context, meet=meet))
        for namespace, producer, error in ((elsewhere, "shop", dlog.ConfigError), (opened, "", ValueError)):
            with pytest.raises(error):
                async with namespace.open_writer("log", create=True, shared=True, producer=producer):
                    raise AssertionError("it was opened")
            assert not await opened.log_exists("log")
