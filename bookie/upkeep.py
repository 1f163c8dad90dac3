"""What a bookie of a cluster does beside serving: collecting garbage, healing, keeping its secrets fresh.

Inside: which rounds run, and what each works on. Not inside: the rounds themselves.
Always: the service gets here what it must know before the first request: which ledgers may exist, which
fenced ledgers are deleted, how many new ones a peer may begin.

Source: BookieImpl.java.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from bookie.gc.collector import GarbageCollector
from bookie.healing.damage_healing import DamageHealing
from bookie.healing.integrity import IntegrityRepair
from bookie.ledger_metadata.gone_ledgers import GoneLedgers
from bookie.ledger_metadata.live_ledgers import LiveLedgers, ServedLedgers, load_tombstones, node_of
from bookie.ledger_metadata.new_ledger_check import NewLedgerCheck
from bookie.ledger_metadata.over_replicated import OverReplicated
from bookie.membership import BookieSetup, Membership
from bookie.requests.new_ledgers import NewLedgers
from bookie.requests.session import BookieService


@attrs.frozen
class Upkeep:
    """The rounds of one bookie. Made by ``prepare_upkeep``."""

    garbage: GarbageCollector
    healing: DamageHealing
    integrity: IntegrityRepair
    rounds: Sequence[Callable[[], Awaitable[None]]]

    def start(self, nursery: trio.Nursery) -> None:
        """Run all of them until the nursery is cancelled. A failure of one round ends nothing."""
        for each in self.rounds:
            nursery.start_soon(each)


async def prepare_upkeep(service: BookieService, member: Membership, setup: BookieSetup) -> Upkeep:
    """Make the rounds for a storage that is open and not served yet.

    Raises:
        DirectoryError: The tombstones cannot be read.
    """
    config, nodes, storage = setup.config, member.nodes, service.storage
    bookie_id, open_client = member.identity.bookie_id, member.cluster.open_client
    service.may_exist = lambda ledger_id: node_of(nodes.root, nodes.layout, ledger_id) is not None
    live = LiveLedgers(nodes, bookie_id, member.cookie.instance_id, config.gc.metadata_requests_per_s)
    tombstones = await load_tombstones(service, config.storage.ledger_directories[0], setup.disk)
    served = ServedLedgers(service, tombstones)
    garbage = GarbageCollector(
        served,
        live,
        config=config.gc,
        compaction=config.storage.compaction,
        delete_over_replicated=OverReplicated(
            nodes, bookie_id, socket.getfqdn(), config.gc.metadata_requests_per_s
        ),
        delete_local_copy=served.delete_local_copy,
    )
    gone = GoneLedgers(live, served)
    repair = IntegrityRepair(storage, bookie_id, open_client, gone, config.integrity)
    healing = DamageHealing(storage, bookie_id, open_client, may_write=lambda: service.rights.writable)

    async def keep_raising_incarnation() -> None:
        await member.startup_check.keep_raising_incarnation(nodes.session, lambda: storage.progress)

    async def keep_secrets() -> None:
        await setup.secrets.keep(config.secrets_refresh_s)

    rounds = [garbage.run, keep_raising_incarnation, repair.run, healing.run]
    if member.policies is not None:
        rounds.append(member.policies.keep_fresh)
    if config.secrets_refresh_s > 0:
        rounds.append(keep_secrets)
    if config.new_ledgers.unconfirmed_max:
        service.new_ledgers = NewLedgers(config.new_ledgers, trio.current_time)
        rounds.append(NewLedgerCheck(service.new_ledgers, live.find, served.delete_ledgers).run)
    return Upkeep(garbage, healing, repair, rounds)
