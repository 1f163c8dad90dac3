"""A whole bookie that obeys a policy: real sockets, SASL, a log, and clients with different rights."""

# covers: bookie/upkeep.py

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

import dlog
from bookie.errors import BookieConfigError
from bookie.ledger_metadata import log_permissions
from bookie.main import run_bookie
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.auth.sasl import SaslAuth
from ledger.client import LedgerClient, open_ledger_client
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.errors import AccessDeniedError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.policy import UNMARKED, Policy, Right, Rule, encode_policy
from ledger.transport.config import TransportConfig
from ledger.transport.dial import Address, dial_tcp
from ledger.transport.transport import open_transport
from ledger.wire.messages import (
    AddRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    WriteLacRequest,
)
from tests.unit.bookie.test_main import MACHINE, config_for, running

NS = "/messaging/shop"
USERS = ("writer", "reader", "stranger", "auditor")
POLICY = Policy(
    (
        Rule("auditor", "*", frozenset({Right.ADMIN})),
        Rule("writer", "orders", frozenset({Right.WRITE})),
        Rule("reader", "orders", frozenset({Right.READ})),
    )
)


class Stage:
    """A running bookie, and clients of it by user name."""

    def __init__(self, directory: Path, store: MemoryStore, port: int) -> None:
        self._directory, self.store, self.port = directory, store, port

    def auth(self, user: str) -> SaslAuth:
        return SaslAuth(username=f"bookkeeper-{user}", password_file=self._directory / user)

    @asynccontextmanager
    async def namespace(self, user: str) -> AsyncIterator[Namespace]:
        """The library of this user does not check the policy: its principal is the auditor."""
        async with self.client(user) as client:
            config = dlog.NamespaceConfig(ensemble_size=1, write_quorum=1, ack_quorum=1)
            yield Namespace(
                NamespaceContext(
                    "test:shop",
                    self.store,
                    client,
                    NS,
                    config.for_scheme("distributedlog"),
                    client_id=user,
                    principal="bookkeeper-auditor",
                )
            )

    @asynccontextmanager
    async def client(self, user: str) -> AsyncIterator[LedgerClient]:
        config = ClientConfig(
            transport=TransportConfig(auth=self.auth(user)), overload_timeout_s=0.5, unavailable_timeout_s=0.5
        )
        async with open_ledger_client(self.store, dial_tcp, config, root="/ledgers") as client:
            yield client

    async def ask(self, user: str, *requests: Request, version: int = 3) -> list[Code]:
        """Raw requests, as a program of an attacker sends them."""

        async def resolve(_bookie: str) -> Address:
            return Address("127.0.0.1", self.port)

        config = TransportConfig(auth=self.auth(user), add_version=3 if version == 3 else 2)
        async with open_transport(dial_tcp, resolve, config) as transport:
            return [(await transport.call("b", request)).code for request in requests]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    users = " ".join(f'user_bookkeeper-{user}="secret of {user}"' for user in USERS)
    (tmp_path / "jaas.conf").write_text(f"Bookie {{ M required {users}; }};")
    for user in USERS:
        (tmp_path / user).write_text(f"secret of {user}\n")
    more = (
        "bookieAuthProviderFactoryClass=sasl\n"
        f"java.security.auth.login.config={tmp_path / 'jaas.conf'}\n"
        f"policyNamespaces={NS}\n"
    )
    tree = MemoryTree()
    async with open_memory_store(tree) as store:
        await store.create(NS, b"", parents=True)
        await store_policy(store, POLICY)
        async with running(config_for(tmp_path, more), tree) as bookie:
            yield Stage(tmp_path, store, bookie.port)


async def store_policy(store: MemoryStore, policy: Policy) -> None:
    """Principals are the names of SASL."""
    rules = tuple(attrs.evolve(rule, principal=f"bookkeeper-{rule.principal}") for rule in policy.rules)
    await store.create(f"{NS}/.dlog-policy", encode_policy(Policy(rules)), parents=True)


async def segment_of(namespace: Namespace, log: str) -> int:
    (segment,) = await namespace.segments(log)
    return segment.ledger_id


@pytest.mark.slow
async def test_two_identities_have_the_rights_of_the_policy_and_no_more(stage: Stage) -> None:
    with trio.fail_after(60):
        async with (
            stage.namespace("writer") as writing,
            writing.open_writer("orders", create=True) as writer,
        ):
            await writer.append_many([b"one", b"two"])
            await writer.flush()
            ledger_id = await segment_of(writing, "orders")

            # Another identity reads, and neither writes nor fences the ledger that is being written.
            async with (
                stage.namespace("reader") as reading,
                reading.open_reader("orders", follow=False) as reader,
            ):
                assert [record.payload async for record in reader] == [b"one", b"two"]
                async with stage.client("reader") as client:
                    with pytest.raises(AccessDeniedError, match="lacks the right to write"):
                        await client.open(ledger_id, password=None, recover=True)
                with pytest.raises(dlog.LogWriteError, match="lacks the right to write"):
                    async with reading.open_writer("taken-over", create=True) as denied:
                        await denied.append(b"never")

            # A third one does nothing at all.
            async with stage.namespace("stranger") as strange:
                with pytest.raises(dlog.AccessDeniedError, match="lacks the right"):
                    async with strange.open_reader("orders", follow=False) as reader:
                        assert [record async for record in reader]
            await writer.append(b"three")
        async with stage.namespace("auditor") as auditing:
            verified = await auditing.repair.verify("orders")
            assert (verified.problem, verified.records) == (None, 3)


@pytest.mark.slow
async def test_a_peer_without_rights_is_refused_each_operation_over_the_wire(stage: Stage) -> None:
    with trio.fail_after(60):
        async with stage.namespace("writer") as writing:
            async with writing.open_writer("orders", create=True) as writer:
                await writer.append(b"one")
            ledger_id = await segment_of(writing, "orders")
        async with stage.client("auditor") as client:
            password = (await client.metadata(ledger_id)).password or b""
        entries, key = EntryCodec(DigestType.CRC32C, password), master_key(password)
        add = AddRequest(ledger_id, 9, key, entries.pack(ledger_id, 9, -1, 5, b"never"))
        writes: list[Request] = [
            add,
            attrs.evolve(add, recovery=True),
            ReadRequest(ledger_id, -1, fence=True, master_key=key),
            WriteLacRequest(ledger_id, 0, key, entries.pack_lac(ledger_id, 0)),
            ForceLedgerRequest(ledger_id),
        ]
        reads: list[Request] = [
            ReadRequest(ledger_id, 0),
            ReadRequest(ledger_id, -1, previous_lac=5, timeout_ms=100_000, piggyback_entry=True),
            ReadLacRequest(ledger_id),
            ListEntriesRequest(ledger_id),
        ]
        refused = Code.UNAUTHORIZED
        assert await stage.ask("stranger", *writes, *reads) == [refused] * len(writes + reads)
        assert await stage.ask("reader", *writes) == [refused] * len(writes)
        for version in (2, 3):
            assert (
                await stage.ask("stranger", add, ReadRequest(ledger_id, 0), version=version) == [refused] * 2
            )
            assert await stage.ask("reader", ReadRequest(ledger_id, 0), version=version) == [Code.OK]
        # The writer's right concerns its log only, and no ledger that the metadata do not name.
        nowhere = AddRequest(9_999, 0, key, entries.pack(9_999, 0, -1, 5, b"never"))
        for user in USERS:
            assert await stage.ask(user, nowhere) == [refused]


@pytest.mark.slow
async def test_a_plain_ledger_is_open_to_authenticated_peers_until_a_rule_names_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_permissions, "POLICY_S", 0)
    with trio.fail_after(60):
        async with stage.client("stranger") as client:
            plain = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await plain.append(b"as before")
            await plain.close()
        await stage.store.delete(f"{NS}/.dlog-policy")
        writers = Rule("writer", UNMARKED, frozenset({Right.WRITE}))
        await store_policy(stage.store, Policy((*POLICY.rules, writers)))
        async with stage.client("stranger") as client:
            another = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
            with pytest.raises(AccessDeniedError, match="lacks the right to write"):
                await another.append(b"never")


async def test_a_bookie_does_not_start_with_a_namespace_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "jaas.conf").write_text('Bookie { M required user_bookkeeper="secret"; };')
    more = (
        "bookieAuthProviderFactoryClass=sasl\n"
        f"java.security.auth.login.config={tmp_path / 'jaas.conf'}\npolicyNamespaces=/nowhere\n"
    )
    tree = MemoryTree()
    with pytest.raises(BookieConfigError, match="no node /nowhere"):
        await run_bookie(
            config_for(tmp_path, more), open_store=lambda: open_memory_store(tree), machine=MACHINE
        )
