"""Operators of a log: truncating, purging, retention, cursors by hand, deletion, questions.

Inside: the calls of a namespace that need no writer. Not inside: judging their effects (``rules``).
"""

from __future__ import annotations

import datetime
from functools import partial

from dlog.namespace_handle import Namespace
from tests.simulation.streams.process import StreamProcess
from tests.simulation.streams.requests import some_position, truncate

QUESTIONS = ("segments", "describe_log", "last_dlsn", "count_records", "log_exists")


class OperatorProcess(StreamProcess):
    """Changes the log without writing to it."""

    async def work(self, namespace: Namespace) -> None:
        rng, world, log = self.rng, self.world, self.log
        await self.pause(rng.uniform(0.05, 2.0))
        if world.is_ending:
            return
        cursors = namespace.cursors(log)
        name = f"c{rng.randrange(max(1, world.shape.cursors))}"
        actions = ["truncate", "truncate", "purge", "purge", "retain", "ask", "ask", "place cursor", "list"]
        if world.shape.deletes:
            actions += ["delete", "delete cursor"]
        if world.shape.heals:
            actions += ["heal"] * 6
        match rng.choice(actions):
            case "truncate":
                await truncate(self, partial(namespace.truncate_log, log))
            case "purge":
                purged = await self.do("purge", partial(namespace.purge_log, log))
                world.counts["purged segment"] += len(purged)
            case "retain":
                given_up = await self.do("retain", partial(namespace.retention.apply, log))
                world.counts["segment given up"] += len(given_up)
            case "heal":
                keep = datetime.timedelta(seconds=rng.choice([0, 0, 3]))
                healed = await self.do("heal", partial(namespace.repair.heal, log, keep=keep))
                world.counts["segment healed"] += len(healed)
            case "place cursor":
                position = some_position(self)
                if position is not None:
                    world.requests_of(self.life).placed.add((name, position))
                    await self.do(f"place {name} at {position}", partial(cursors.set, name, position))
                    world.counts["cursor placed"] += 1
            case "delete cursor":
                await self.do(f"delete {name}", partial(cursors.delete, name))
            case "list":
                for cursor in await self.do("list cursors", cursors.list):
                    await self.do(f"lag of {cursor.name}", partial(cursors.lag, cursor))
            case "delete":
                world.requests_of(self.life).deletes = True
                await self.do("delete log", partial(namespace.delete_log, log, lock_timeout_s=2.0))
            case _:
                question = rng.choice(QUESTIONS)
                await self.do(question, partial(getattr(namespace, question), log))
