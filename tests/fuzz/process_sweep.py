"""``python -m tests.fuzz.process_sweep``: frames and HTTP requests to a bookie in a process of its own.

What ``frame_sweep`` sends to a bookie in its own process, and HTTP/1.1 and HTTP/2 (``http_cases``), to both
ports of a process, at the same time, beside an honest client that goes on adding and reading.

Inside: what is sent to which port, what must hold. Not inside: the cases, the process (``bookie_process``).
Always: the process lives, logs no error, answers ``/heartbeat`` and the honest client, has a bounded memory,
and ends by itself when it is told to. One seed sends the same bytes again.

Exit codes: 0 nothing failed, 1 something failed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections.abc import Awaitable, Sequence
from pathlib import Path

import attrs
import trio

from ledger.auth.tls import client_context
from ledger.codes import Code
from ledger.wire import v2
from ledger.wire.messages import AddRequest, ReadReply, ReadRequest
from tests.fuzz.bookie_process import TOKEN, BookieProcess, open_bookie_process
from tests.fuzz.frame_cases import ENTRIES, KEY, Case, State
from tests.fuzz.frame_sweep import Batch, batches
from tests.fuzz.frame_talk import HANG_S, HONEST_LEDGER, UNSERVED_LEDGER, Talk, converse, open_talk
from tests.fuzz.frame_world import HONEST_PHASES, PAYLOAD, place_of, setup_frames
from tests.fuzz.http_cases import HttpCase, draw_http
from tests.fuzz.http_port import HEARTBEAT
from tests.fuzz.http_port import converse as say

MEMORY_BYTES_MAX = 600 << 20  # a bookie that has just started has 100 MB
HTTP_SHARE = 8  # one HTTP connection for so many frames
_WITHOUT_METADATA = (State.DELETED, State.DELETED_FENCED)


@attrs.define
class _Honest:
    """A client that adds entries and reads them back."""

    talk: Talk
    added: int = 0

    async def add(self) -> str | None:
        entry_id = self.added
        body = ENTRIES.pack(HONEST_LEDGER, entry_id, entry_id - 1, len(PAYLOAD), PAYLOAD)
        reply = await self.talk.ask(v2.encode_request(AddRequest(HONEST_LEDGER, entry_id, KEY, body)))
        if reply is None or reply.reply.code is not Code.OK:
            return f"the honest add of entry {entry_id} got {reply}"
        self.added += 1
        self.talk.replies.clear()
        return None

    async def check(self, entry_id: int) -> str | None:
        reply = await self.talk.ask(v2.encode_request(ReadRequest(HONEST_LEDGER, entry_id)))
        self.talk.replies.clear()
        if reply is None or not isinstance(reply.reply, ReadReply) or reply.reply.body is None:
            return f"the honest read of entry {entry_id} got {reply}"
        if ENTRIES.unpack(reply.reply.body, HONEST_LEDGER, entry_id).payload != PAYLOAD:
            return f"entry {entry_id} has other bytes than the honest client wrote"
        reply = await self.talk.ask(v2.encode_request(ReadRequest(UNSERVED_LEDGER, 0)))
        self.talk.replies.clear()
        if reply is None or reply.reply.code is not Code.NO_LEDGER:
            return f"an add in clear text behind START_TLS was served: {reply}"
        return None


async def _http(process: BookieProcess, cases: Sequence[HttpCase]) -> str | None:
    for case in cases:
        reason: str | None = None
        with trio.move_on_after(HANG_S) as hang:
            reason = case.verdict(await say(process.http_port, case.data))
            if not (await say(process.http_port, HEARTBEAT + b"\r\n")).startswith(b"HTTP/1.1 200 "):
                reason = reason or "/heartbeat does not answer"
        if hang.cancelled_caught:
            reason = f"no answer for {HANG_S:g} s"
        if reason is not None:
            return f"{reason}\n  {case}"
    return None


async def _frames(process: BookieProcess, batch: Batch) -> str | None:
    context = client_context(authorities=process.directory / "authority.pem")
    for number, one in enumerate(batch.conversations):
        cases = [attrs.evolve(case, codes=None) if _differs(case) else case for case in one.cases]
        reason = await converse(process.address, batch.mode, one.phase, cases, context)
        if reason is not None:
            told = "\n".join(f"  {case}" for case in one.cases)
            return f"{reason}\n  conversation {number}, connection {one.phase.value}\n{told}"
    return None


def _differs(case: Case) -> bool:
    return case.shape.state in _WITHOUT_METADATA


async def _prepare(talk: Talk, batch: Batch) -> None:
    states = {case.ledger_id: case.shape.state for one in batch.conversations for case in one.cases}
    frames = [
        frame
        for ledger_id, state in states.items()
        if state not in _WITHOUT_METADATA
        for frame in setup_frames(ledger_id, state)
    ]
    for start in range(0, len(frames), 500):
        part = frames[start : start + 500]
        await talk.send(b"".join(part))
        while len(talk.replies) < len(part):
            assert not talk.is_closed, "the bookie closed the connection of an honest client"
            await talk.receive()
        talk.replies.clear()


async def attack(process: BookieProcess, batch: Batch, http: Sequence[HttpCase]) -> str | None:
    """Send all to both ports at once; the first promise that does not hold, or None."""
    reasons: list[str] = []
    context = client_context(authorities=process.directory / "authority.pem")
    talk = await open_talk(process.address, HONEST_PHASES[batch.mode], context)
    await _prepare(talk, batch)
    honest = _Honest(talk)

    async def note(part: Awaitable[str | None]) -> None:
        reason = await part
        if reason is not None:
            reasons.append(reason)

    async with trio.open_nursery() as nursery:

        async def go_on() -> None:
            while not reasons:
                with trio.move_on_after(HANG_S) as hang:
                    reason = await honest.add() or await honest.check(honest.added // 2)
                if hang.cancelled_caught:
                    reason = f"no answer to the honest client for {HANG_S:g} s"
                if reason is not None:
                    reasons.append(reason)

        nursery.start_soon(go_on)
        async with trio.open_nursery() as hostile:
            hostile.start_soon(note, _frames(process, batch))
            hostile.start_soon(note, _http(process, http))
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(talk.stream)
    return _verdict(process, reasons)


def _verdict(process: BookieProcess, reasons: Sequence[str]) -> str | None:
    errors = "\n  ".join(process.errors)
    if not process.is_alive:
        return f"the bookie ended\n  {errors}"
    if reasons:
        return "\n".join(reasons)
    if errors:
        return f"the bookie logged an error\n  {errors}"
    if process.memory_peak_bytes > MEMORY_BYTES_MAX:
        return f"the bookie held {process.memory_peak_bytes} bytes"
    return None


async def _run(batch: Batch, http: Sequence[HttpCase], directory: Path) -> str | None:
    async with open_bookie_process(batch.mode, directory) as process:
        try:
            return await attack(process, batch, http)
        except (AssertionError, OSError) as exc:
            return _verdict(process, [f"an honest client is not served: {place_of(exc)}"])


def run_batch(seed: int, batch: Batch) -> str | None:
    """The report of the batch's failure, or None."""
    cases = draw_http(random.Random(f"{seed} http {batch.number}"), TOKEN.encode())
    http = list(itertools.islice(cases, batch.frames // HTTP_SHARE))
    with tempfile.TemporaryDirectory(prefix="dlog-sweep-") as directory:
        reason = trio.run(_run, batch, http, Path(directory))
    if reason is None:
        return None
    return (
        f"FAILED process_sweep: {reason}\n  port with {batch.mode.value}\n"
        f"  replay: python -m tests.fuzz.process_sweep --seed {seed} --batch {batch.number}"
    )


def sweep(seed: int, count: int) -> list[str]:
    """Send so many frames, and HTTP requests beside them; the reports of what failed, one of each batch."""
    reports = (run_batch(seed, batch) for batch in batches(seed, count))
    return [report for report in reports if report is not None]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.process_sweep", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=4000, help="frames to send (default 4,000)")
    parser.add_argument("--batch", type=int, help="only this batch")
    options = parser.parse_args(arguments)
    every = batches(options.seed, options.count if options.batch is None else (options.batch + 1) * 1000)
    chosen = [one for one in every if options.batch in (None, one.number)]
    reports = [report for one in chosen if (report := run_batch(options.seed, one)) is not None]
    print("\n".join(reports) or "every connection passes")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
