"""Performing the faults of a plan in a running world.

Inside: the effect of each kind of fault. Not inside: drawing faults and their times (``faults``).
Always: each fault is counted when it takes effect. It is undone when its time is over or when faults end. No
machine loses data beyond the promise.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.catalog.paths import cookie_path
from tests.simulation.bookies import JOURNALS, LEDGERS, ROOT, BookieMachine
from tests.simulation.clients import ClientProcess
from tests.simulation.faults import DATA_LOSING, Fault, Promise
from tests.simulation.metadata import STORE

if TYPE_CHECKING:
    from tests.simulation.world import World

STEPS_MAX = 250  # of the target's tasks, from a fault's time until it strikes
DISK_STEPS_MAX = 12
DISK_SYNCS_MAX = 3
SCARCE_BYTES = 1 << 20  # that a full disk reports; fewer operations may find room
GROWTHS_MAX = 150  # operations until a disk is full
STEP_GROWTHS_MAX = 8  # operations that find room after a little was freed
STARTS_MAX = 20
STORM_REFUSAL_CHANCE = 0.05  # that a bookie refuses an add, in a storm of ensemble changes


class Injector:
    """Performs faults until ``stop``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._promise = Promise(world.shape.ack_quorum)
        self._undo: list[Callable[[], None]] = []
        self.is_over = False

    def schedule(self, plan: tuple[Fault, ...]) -> None:
        for fault in plan:
            self._world.timeline.at(fault.at_s, self._perform, fault)
        shape = self._world.shape
        if shape.storm == "takeover":
            self._world.store_troubles.late_watch = 0.5  # writers learn late that another writer took over
        if shape.storm == "ensemble":
            self._world.store_troubles.slow_chance = 0.5
            for machine in self._world.bookies.values():
                machine.refusal_chance = STORM_REFUSAL_CHANCE

    def stop(self) -> None:
        """Perform no further faults and undo the current ones."""
        self.is_over = True
        world = self._world
        for undo in self._undo:
            undo()
        self._undo.clear()
        world.network.heal()
        world.network.is_stormy = world.network.is_jittery = False
        for machine in world.bookies.values():
            machine.read_only(False)
            machine.accept_adds()
            troubles = machine.platter.troubles
            troubles.read_error = troubles.write_error = troubles.sync_error = 0.0
            troubles.is_full, troubles.slowness, troubles.cut_at_step = False, 1.0, None
            troubles.free_bytes = None
        store = world.store_troubles
        store.lost_before = store.lost_after = store.slow_chance = 0.0
        store.stale_lag_s = store.late_watch = 0.0
        for node in world.network.nodes.values():
            node.resume()
        world.network.pump_all()
        for session in world.sessions:
            session.resume()  # watches whose notice was lost fire upon reconnection
        for machine in world.bookies.values():
            machine.start()

    def _perform(self, fault: Fault) -> None:
        if self.is_over:
            return
        world = self._world
        if fault.kind in DATA_LOSING and not self._promise.allows(world.damaged, fault.target):
            return
        world.trace.note("fault", str(fault))
        world.counts[fault.kind] += 1
        rng = random.Random(fault.number)
        machine = world.bookies.get(fault.target)
        client = world.process_named(fault.target)
        match fault.kind:
            case "slow link":
                other = rng.choice(sorted(world.network.nodes.keys() | {STORE}))
                amount_s = rng.choice([0.02, 0.2, 1.0])
                for link in ((fault.target, other), (other, fault.target)):
                    world.network.slow_until[link] = (world.now() + fault.seconds, amount_s)
            case "broken connection":
                mine = [
                    connection
                    for connection in world.network.open_connections()
                    if fault.target in (connection.there.source.name, connection.there.target.name)
                ]
                for connection in rng.sample(mine, min(len(mine), rng.choice([1, 1, 3]))):
                    world.network.break_connection(connection)
            case "flaky connections":
                world.network.flaky[fault.target] = (world.now() + fault.seconds, rng.choice([0.05, 0.3]))
            case "one-way partition" | "two-way partition":
                others = sorted(world.network.nodes.keys() - {fault.target})
                chosen = (
                    others
                    if rng.random() < 0.3
                    else rng.sample(others, rng.randint(1, max(1, len(others) // 2)))
                )
                outward = rng.random() < 0.5
                for other in chosen:
                    if fault.kind == "two-way partition" or outward:
                        self._block(fault.target, other, fault.seconds)
                    if fault.kind == "two-way partition" or not outward:
                        self._block(other, fault.target, fault.seconds)
            case "partition from the store":
                self._block(fault.target, STORE, fault.seconds)
                self._block(STORE, fault.target, fault.seconds)
                world.suspend_sessions(fault.target, fault.seconds)
            case "swizzle":
                self._swizzle(rng, fault.seconds)
            case "crash at any await":
                assert machine is not None
                self._at_some_step(fault, rng, lambda: self._kill(machine, fault.seconds))
            case "client crash at any await":
                assert client is not None
                self._at_some_step(fault, rng, client.kill)
            case "orderly restart":
                assert machine is not None
                machine.stop()
                world.timeline.after(fault.seconds, machine.start)
            case "pause" | "sleeping writer":
                self._pause(fault.target, fault.seconds)
            case "clock jump":
                process = machine or client
                assert process is not None
                process.wall_offset_ms += rng.choice([-1, 1]) * rng.choice([500, 60_000, 86_400_000])
            case "cancellation":
                assert client is not None
                self._at_some_step(fault, rng, lambda: self._cancel(client))
            case "power cut":
                assert machine is not None
                self._kill(machine, fault.seconds, power=True)
            case "power cut at a disk step" | "kill at a disk step":
                assert machine is not None
                power = fault.kind.startswith("power")
                troubles = machine.platter.troubles
                troubles.cut_at = rng.choice(["", "sync", "journal", "journal"])
                if fault.step or not power:
                    troubles.cut_at = ""
                steps_max = DISK_SYNCS_MAX if troubles.cut_at else DISK_STEPS_MAX
                troubles.cut_at_step = fault.step or rng.randint(1, steps_max)

                def cut() -> None:
                    world.counts["struck at a step"] += 1
                    self._kill(machine, fault.seconds, power=power)

                troubles.on_cut = cut
            case "power cut everywhere":
                for each in world.bookies.values():
                    self._kill(each, fault.seconds * rng.uniform(0.5, 2), power=True)
            case (
                "I/O error on read"
                | "I/O error on write"
                | "I/O error on sync"
                | "disk full"
                | "slow disk"
                | "read-only bookie"
                | "refused adds"
            ):
                assert machine is not None
                self._trouble(machine, fault, rng)
            case "disk freed in small steps":
                assert machine is not None
                self._fill_and_free(machine, fault.seconds, rng)
            case "bit flip":
                assert machine is not None
                self._flip(machine, rng)
            case "bit flip in the newest journal":
                assert machine is not None
                self._flip_newest_journal(machine, rng)
            case "bit flip in lastMark":
                assert machine is not None
                marks = machine.platter.flip_bit(lambda path: path.name.startswith("lastMark"), rng)
                self._damaged(machine, marks and f"{marks[0].name} byte {marks[1]}")
            case "bit flip in the index":
                assert machine is not None
                self._damaged(machine, machine.platter.flip_index_bit(rng))
            case "wiped disk" | "replaced bookie":
                assert machine is not None
                self._wipe(machine, fault, rng)
            case "old copy":
                assert machine is not None
                self._restore_later(machine, fault)
            case "session expiry":
                world.expire_sessions(fault.target)
            case "store request lost" | "store reply lost" | "slow store" | "stale reads" | "lost watches":
                self._store_trouble(fault, rng)
            case _:
                raise AssertionError(f"no code performs {fault.kind!r}")

    def _for(self, seconds: float, undo: Callable[[], None]) -> None:
        """Call ``undo`` after some seconds, or when faults end."""
        self._undo.append(undo)

        def now() -> None:
            if undo in self._undo:
                self._undo.remove(undo)
                undo()

        self._world.timeline.after(seconds, now)

    def _block(self, source: str, target: str, seconds: float) -> None:
        network = self._world.network
        network.block(source, target)
        self._for(seconds, lambda: network.unblock(source, target))

    def _swizzle(self, rng: random.Random, seconds: float) -> None:
        # Block nodes one by one, then unblock them in another order.
        world = self._world
        names = rng.sample(sorted(world.network.nodes), min(len(world.network.nodes), rng.randint(2, 4)))
        others = sorted(world.network.nodes)
        for position, name in enumerate(names):
            begin_s = seconds * position / len(names) / 2
            end_s = seconds * (0.5 + rng.random() / 2)

            def clog(name: str = name, seconds: float = end_s - begin_s) -> None:
                if not self.is_over:
                    for other in others:
                        self._block(name, other, seconds)
                        self._block(other, name, seconds)

            world.timeline.after(begin_s, clog)

    def _at_some_step(self, fault: Fault, rng: random.Random, act: Callable[[], None]) -> None:
        # Counts the steps of the target's own tasks, so that the fault strikes at one of its awaits.
        def unless_over() -> None:
            if not self.is_over:
                self._world.counts["struck at a step"] += 1
                act()

        steps = fault.step or rng.randint(1, STEPS_MAX)
        self._world.timeline.loop.before_step(steps, fault.target, unless_over)

    def _kill(self, machine: BookieMachine, seconds: float, *, power: bool = False) -> None:
        machine.kill(power=power)
        self._world.timeline.after(seconds, machine.start)

    def _cancel(self, client: ClientProcess) -> None:
        if client.operation is not None:
            self._world.counts["operation cancelled"] += 1
            client.operation.scope.cancel()

    def _pause(self, name: str, seconds: float) -> None:
        world = self._world
        node = world.network.nodes.get(name)
        if node is None or node.is_paused:
            return
        node.pause()
        world.suspend_sessions(name, seconds)  # a paused process sends no heartbeats

        world.contend(name)

        def wake() -> None:
            node.resume()
            world.network.pump_all()

        self._for(seconds, wake)

    def _trouble(self, machine: BookieMachine, fault: Fault, rng: random.Random) -> None:
        troubles = machine.platter.troubles
        match fault.kind:
            case "I/O error on read":
                troubles.read_error = rng.choice([0.05, 0.5])
            case "I/O error on write":
                troubles.write_error = rng.choice([0.02, 0.3])
            case "I/O error on sync":
                troubles.sync_error = rng.choice([0.05, 0.5])
            case "disk full":
                troubles.is_full = True
            case "read-only bookie":
                machine.read_only(True)
            case "refused adds":
                machine.refusal_chance = rng.choice([0.05, 0.3])
            case "slow disk":
                troubles.slowness = rng.choice([10.0, 50.0, 300.0])

        def undo() -> None:
            match fault.kind:
                case "I/O error on read":
                    troubles.read_error = 0.0
                case "I/O error on write":
                    troubles.write_error = 0.0
                case "I/O error on sync":
                    troubles.sync_error = 0.0
                case "disk full":
                    troubles.is_full = False
                    self._world.counts["space again"] += 1
                case "read-only bookie":
                    machine.read_only(False)
                case "refused adds":
                    machine.accept_adds()
                case "slow disk":
                    troubles.slowness = 1.0

        self._for(fault.seconds, undo)

    def _fill_and_free(self, machine: BookieMachine, seconds: float, rng: random.Random) -> None:
        """Fill the disk at a write; then free a little at a time, with a start of the bookie after each."""
        world, troubles = self._world, machine.platter.troubles
        if troubles.is_full:
            return
        world.filled.add(machine.name)
        troubles.is_full, troubles.free_bytes = True, SCARCE_BYTES
        troubles.growths_left = rng.randint(0, GROWTHS_MAX)
        starts = rng.randint(1, STARTS_MAX)

        def free_some() -> None:
            if not self.is_over and troubles.is_full:
                world.counts["start after a little was freed"] += 1
                troubles.growths_left += rng.randint(0, STEP_GROWTHS_MAX)
                machine.stop()
                machine.start()

        for number in range(1, starts):
            world.timeline.after(seconds * number / starts, free_some)

        def undo() -> None:
            troubles.is_full, troubles.free_bytes, troubles.growths_left = False, None, 0
            world.counts["space again"] += 1

        self._for(seconds, undo)

    def _flip(self, machine: BookieMachine, rng: random.Random) -> None:
        newest = self._newest_journals(machine)
        for _ in range(rng.choice([1, 4, 16])):
            flipped = machine.platter.flip_bit(
                lambda path: path.suffix == ".log" or (path.suffix == ".txn" and path not in newest), rng
            )
            self._damaged(machine, flipped and f"{flipped[0].name} byte {flipped[1]}")

    def _flip_newest_journal(self, machine: BookieMachine, rng: random.Random) -> None:
        newest = self._newest_journals(machine)
        flipped = machine.platter.flip_bit(lambda path: path in newest, rng)
        if flipped is not None:
            if machine.platter.is_near_the_end(*flipped):
                # Only a note that is not synced distinguishes this damage from a torn tail.
                machine.unwitnessed |= self._world.ledger_ids()
            self._damaged(machine, f"{flipped[0].name} byte {flipped[1]}")

    def _newest_journals(self, machine: BookieMachine) -> set[Path]:
        newest: dict[Path, Path] = {}
        for path in sorted(path for path, _ in machine.platter.paths() if path.suffix == ".txn"):
            newest[path.parent] = path
        return set(newest.values())

    def _damaged(self, machine: BookieMachine, where: str | None) -> None:
        if where is not None:
            self._world.damage(machine)
            self._world.trace.note(machine.name, f"bits flip: {where}")

    def _wipe(self, machine: BookieMachine, fault: Fault, rng: random.Random) -> None:
        world = self._world
        machine.kill()
        world.damage(machine)
        part = (
            None
            if fault.kind == "replaced bookie"
            else rng.choice([None, None, None, JOURNALS[0], LEDGERS[0]])
        )
        if part is None:
            machine.platter.wipe()
        else:
            machine.platter.lose_directory(part)
        if fault.kind == "replaced bookie":
            world.remove_node(cookie_path(ROOT, machine.name))  # as an operator does before such a start
            machine.lose_memory()
        world.timeline.after(fault.seconds, machine.start)

    def _restore_later(self, machine: BookieMachine, fault: Fault) -> None:
        copy = machine.platter.snapshot()
        path = cookie_path(ROOT, machine.name)
        before = self._world.tree.value_now(path)

        def restore() -> None:
            now = self._world.tree.value_now(path)
            if self.is_over or before is None or now is None:
                return
            if not self._promise.allows(self._world.damaged, machine.name):
                return  # other machines have lost data meanwhile
            if now.stat.version < before.stat.version + 2:
                # A copy younger than the last raise of its number cannot be detected: beyond the promise.
                self._world.timeline.after(0.5, restore)
                return
            machine.kill()
            self._world.damage(machine)
            machine.platter.restore(copy)
            machine.lose_memory()
            machine.start()

        self._world.timeline.after(fault.seconds, restore)

    def _store_trouble(self, fault: Fault, rng: random.Random) -> None:
        troubles = self._world.store_troubles
        match fault.kind:
            case "store request lost":
                troubles.lost_before = rng.choice([0.05, 0.3])
            case "store reply lost":
                troubles.lost_after = rng.choice([0.05, 0.3])
            case "slow store":
                troubles.slow_chance = rng.choice([0.1, 0.5])
            case "stale reads":
                troubles.stale_lag_s = rng.choice([0.1, 1.0, 4.0])
            case "lost watches":
                troubles.late_watch = rng.choice([0.3, 1.0])

        def undo() -> None:
            match fault.kind:
                case "store request lost":
                    troubles.lost_before = 0.0
                case "store reply lost":
                    troubles.lost_after = 0.0
                case "slow store":
                    troubles.slow_chance = 0.0
                case "stale reads":
                    troubles.stale_lag_s = 0.0
                case "lost watches":
                    troubles.late_watch = 0.0

        self._for(fault.seconds, undo)
