r"""The node of the program that balances the bookies: a lock, and the progress for those who look.

```
node                         data
underreplication/dlogbalance {"version": 1, "host": NAME, "began_ms": N, "moves": N, "moves_done": N,
                              "bytes": N, "bytes_done": N}, ephemeral
```

Inside: both directions, taking and releasing it, reading it. Not inside: the moves (``balance``).
Always: one session at most has the node. It ends with that session, so a killed program needs no cleaning up;
a program that wants it waits ``WAIT_S`` for that.

Source: our own; docs/metadata.md 12.6.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from ledger.catalog.paths import BALANCE
from ledger.errors import BalanceRunningError
from ledger.metadata_store.errors import MetadataError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import MetadataStore

VERSION = 1
WAIT_S = 30.0  # longer than the usual sessions of a metadata store
RELEASE_S = 2.0  # else the lock ends with the session
_COUNTS = ("began_ms", "moves", "moves_done", "bytes", "bytes_done")


@attrs.frozen
class RunningBalance:
    """A balance, and how far it is."""

    host: str  # the machine of the program
    began_ms: int  # epoch milliseconds
    moves: int = 0  # 0: it is still looking at the cluster
    moves_done: int = 0
    bytes: int = 0
    bytes_done: int = 0


def encode_run(run: RunningBalance) -> bytes:
    """The data of the node."""
    return json.dumps({"version": VERSION, **attrs.asdict(run)}).encode()


def decode_run(data: bytes) -> RunningBalance | None:
    """The balance of a node; None if the data are those of another version."""
    try:
        document = json.loads(data)
        if document["version"] != VERSION or not isinstance(document["host"], str):
            return None
        counts = [document[name] for name in _COUNTS]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if not all(type(count) is int and count >= 0 for count in counts):
        return None
    return RunningBalance(document["host"], *counts)


async def running_balance(store: MetadataStore, root: str) -> RunningBalance | None:
    """The balance that runs in the cluster; None if there is none."""
    try:
        return decode_run((await store.get(f"{root}/{BALANCE}")).value) or RunningBalance("", 0)
    except NoNodeError:
        return None


@asynccontextmanager
async def held_run(
    session: MetadataStore,
    root: str,
    run: RunningBalance,
    *,
    wait_s: float = WAIT_S,
    on_wait: Callable[[RunningBalance], object] = lambda _: None,
) -> AsyncIterator[str]:
    """Hold the node in the block; yield its path. If cancelled, it ends with the session at the latest.

    Args:
        wait_s: How long to wait for the end of another program's session.
        on_wait: Gets the other program, before the wait.

    Raises:
        BalanceRunningError: Another program has it.
    """
    path = f"{root}/{BALANCE}"
    deadline_s = trio.current_time() + wait_s
    is_told = False
    while True:
        other: RunningBalance | None = None
        try:
            await session.create(path, encode_run(run), ephemeral=True, parents=True)
            break
        except NodeExistsError:
            pass
        gone = trio.Event()
        stat = await session.exists(path, watch=gone)
        if stat is None or stat.ephemeral_owner == session.session_id:
            if stat is not None:
                break  # the reply to the creation was lost
            continue
        other = await running_balance(session, root)
        if other is not None and not is_told:
            is_told = True
            on_wait(other)
        with trio.move_on_at(deadline_s):
            await gone.wait()
        if trio.current_time() >= deadline_s:
            holder = f"on {other.host} " if other is not None and other.host else ""
            raise BalanceRunningError(
                f"another balance {holder}runs in this cluster ({path}); wait for its end. If it was"
                " killed, its node ends with its session"
            )
    try:
        yield path
    finally:
        with trio.move_on_after(RELEASE_S, shield=True):
            try:
                await session.delete(path)
            except MetadataError:
                pass  # it ends with the session
