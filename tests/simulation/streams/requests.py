"""Requests that several kinds of clients make, noted before they are sent.

Inside: truncating, moving cursors. Not inside: judging (``rules``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from namespace.dlsn import DLSN

if TYPE_CHECKING:
    from tests.simulation.streams.process import StreamProcess


def some_position(client: StreamProcess) -> DLSN | None:
    """A position in the log that a client may have heard of; None if there is none."""
    known = client.life.dlsns
    if not known:
        return None
    at = client.rng.choice(known)
    return client.rng.choice([at, at, at.next_slot(), at.next_segment()])


async def truncate(client: StreamProcess, call: Callable[[DLSN], Awaitable[object]]) -> None:
    """Truncate the client's log somewhere."""
    world, life = client.world, client.life
    before = some_position(client)
    if before is None:
        return
    world.requests_of(life).truncates(before)
    completed = tuple(each for each in world.segments_now(client.log).values() if not each.in_progress)
    await client.do(f"truncate before {before}", partial(call, before))
    world.counts["truncation"] += 1
    if life is client.life and not life.is_deleted:
        world.truncated(client.log, life, before, completed)
