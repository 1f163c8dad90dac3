"""The final look at a world: recover every ledger, read it, and read every bookie's storage.

Inside: gathering a ``FinalState``, as an ordinary client and from the storage of each bookie.
Not inside: judging it (``checkers``).
"""

from __future__ import annotations

import contextlib
import json
import random
from typing import TYPE_CHECKING

import trio

from bookie.errors import EntryUnreadableError, NoEntryError, NoLedgerError
from ledger.client import LedgerClient, open_ledger_client
from ledger.context import ClientSeams
from ledger.digest import EntryCodec
from ledger.errors import CorruptEntryError, LedgerError
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import MetadataError
from tests.simulation.bookies import ROOT, WRITE_CACHE_BYTES, BookieMachine
from tests.simulation.clients import client_config, log_path
from tests.simulation.history import FinalState, Place, Replica, Size

if TYPE_CHECKING:
    from tests.simulation.world import World

RETRY_TIMEOUT_S = 60.0
GARBAGE_S_MAX = 60.0


async def look_at_everything(world: World, unfinished: tuple[str, ...]) -> FinalState:
    """Recover and read every ledger, then read every bookie. Faults have stopped before."""
    unclosed: dict[int, str] = {}
    read: dict[Place, bytes | str] = {}
    node = world.network.join("judge")
    async with open_ledger_client(
        world.new_session(node),
        lambda address: world.network.dial(node, address),
        client_config(2),
        root=ROOT,
        seams=ClientSeams(rng=random.Random(f"judge {world.shape.seed}"), wall_ms=world.wall_ms),
    ) as client:
        for ledger_id in sorted(world._metadata):
            if ledger_id not in world.deleted:
                await _read_ledger(world, client, ledger_id, unclosed, read)
    # Not judged: ledgers that a client began to delete, and ledgers with a loss that no bookie can detect.
    skipped = world.deleted | world.excused
    metadata = {i: m for i, m in world._metadata.items() if i not in skipped}
    unclosed = {i: why for i, why in unclosed.items() if i not in skipped}
    replicas: dict[Place, dict[str, Replica | str]] = {}
    for name, machine in sorted(world.bookies.items()):
        if machine.storage is not None:
            await _read_bookie(world, name, metadata, replicas)
    chains = {}
    for log in world.logs:
        found = world.tree.value_now(log_path(log))
        chains[log] = tuple(json.loads(found.value)) if found is not None else ()
    damaged = frozenset(world.damaged)
    machines = [world.bookies[name] for name in sorted(world.filled - damaged)]
    sizes = {each.name: await _measure(world, each) for each in machines if each.storage is not None}
    return FinalState(metadata, unclosed, replicas, read, damaged, chains, unfinished, sizes)


async def _measure(world: World, machine: BookieMachine) -> Size:
    """Collect the bookie's garbage, and measure its entry logs."""
    storage, garbage = machine.storage, machine.garbage
    assert storage is not None
    assert garbage is not None
    await storage.flush()
    rounds = garbage.state.rounds
    with trio.move_on_after(GARBAGE_S_MAX):
        for _ in range(2):  # the first one may be under way
            garbage.force(major=True)
            while garbage.state.rounds == rounds:  # noqa: ASYNC110 - the collector has no event for it
                await trio.sleep(0.5)
            rounds = garbage.state.rounds
    entry_bytes = 0
    for ledger_id in storage.ledger_ids():
        with contextlib.suppress(NoLedgerError, NoEntryError):  # it is deleted just now
            for entry_id in await storage.entry_ids(ledger_id):
                entry_bytes += 4 + len(await storage.read(ledger_id, entry_id))
    inodes = {inode for path, inode in machine.platter.names.items() if ".log" in path}
    log_bytes = sum(len(inode.now) for inode in inodes)
    logs = world.shape.entry_log_bytes * world.shape.ledger_directories
    return Size(log_bytes, entry_bytes, 2 * logs + machine.kills * WRITE_CACHE_BYTES)


async def _read_ledger(
    world: World,
    client: LedgerClient,
    ledger_id: int,
    unclosed: dict[int, str],
    read: dict[Place, bytes | str],
) -> None:
    deadline = world.now() + RETRY_TIMEOUT_S
    while True:
        try:
            reader = await client.open(ledger_id, password=world.shape.password)
            break
        except (LedgerError, MetadataError) as exc:
            if world.now() > deadline:
                unclosed[ledger_id] = f"{type(exc).__name__}: {exc}"
                return
            await trio.sleep(2)
    async with reader:
        world.saw_end("judge", reader)
        at = 0
        while at <= reader.last_confirmed:
            try:
                payloads = await reader.read_payloads(at, reader.last_confirmed)
            except LedgerError as exc:
                read[ledger_id, at] = f"{type(exc).__name__}: {exc}"
                at += 1
                continue
            for payload in payloads:
                read[ledger_id, at] = payload
                at += 1


async def _read_bookie(
    world: World,
    name: str,
    metadata: dict[int, LedgerMetadata],
    replicas: dict[Place, dict[str, Replica | str]],
) -> None:
    storage = world.bookies[name].storage
    assert storage is not None
    codec = EntryCodec(world.shape.digest_type, world.shape.password)
    for ledger_id in storage.ledger_ids():
        if ledger_id not in metadata:
            continue
        try:
            entry_ids = await storage.entry_ids(ledger_id)
        except (EntryUnreadableError, OSError) as exc:  # its index cannot be read
            replicas.setdefault((ledger_id, 0), {})[name] = f"{type(exc).__name__}: {exc}"
            continue
        for entry_id in entry_ids:
            found: Replica | str
            try:
                entry = codec.unpack(await storage.read(ledger_id, entry_id), ledger_id, entry_id)
                found = Replica(entry.payload, entry.length_bytes, entry.lac)
            except (CorruptEntryError, EntryUnreadableError, NoEntryError, NoLedgerError, OSError) as exc:
                found = f"{type(exc).__name__}: {exc}"
            replicas.setdefault((ledger_id, entry_id), {})[name] = found
