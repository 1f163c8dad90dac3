"""The conversations of Apache's clients with Apache's bookies, with our bookie in the place of theirs.

Each frame that a Java client sent, or that was made by hand, is sent again on its connection. Our answer must
be the Java bookie's, or one of ``DIFFERENT``, which says why.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from bookie.bookie import Bookie, open_bookie
from bookie.journal.files import JournalConfig
from bookie.requests.session import Rights
from bookie.server.config import ServerConfig
from bookie.storage.config import StorageConfig
from ledger.auth.authentication import AuthRefusedError, AuthStep
from ledger.wire.messages import AuthReply, BookieInfoReply, IncomingReply, ReadReply
from tests.fuzz.frame_talk import Steps, Talk, decoded

HERE = Path(__file__).parent
ALONE = ("hand-made", "add-read", "batch-read", "bookie-info", "explicit-lac", "deferred-sync")
"""Captures without a ledger of another one, requests at once whose order was free, or TLS."""
CAPTURES = [
    path
    for path in sorted(HERE.glob("*/wire/*.jsonl"))
    if path.stat().st_size and any(name in path.name for name in ALONE)
]
HANG_S = 60.0
WITHOUT_BODY = "Java acts on ledger 0 (4.17.3) or closes the connection (4.18.0); ours says BAD_REQUEST"
DIFFERENT = {  # the answer of Java, and why ours is another one: docs/protocol.md 9.1
    "ADD_ENTRY response txn=9 ": "the ids beside the body are not those in it; ours refuses",
    "READ_ENTRY response txn=11 ": "so the entry in that body is not there",
    "GET_LIST_OF_ENTRIES_OF_LEDGER response txn=20 ": "nor in the list",
    "ADD_ENTRY response txn=40 ": "a negative entry id, which Java's journal would read as another record",
    "READ_ENTRY response txn=7 EUA (no": "Java says nothing to a wrong token; ours refuses it and closes",
    **{
        f"{operation} response txn={number} ": WITHOUT_BODY
        for operation, number in (
            *(("READ_ENTRY", 801), ("ADD_ENTRY", 802), ("WRITE_LAC", 806), ("READ_LAC", 807)),
            *(("GET_BOOKIE_INFO", 808), ("FORCE_LEDGER", 810), ("GET_LIST_OF_ENTRIES_OF_LEDGER", 811)),
        )
    },
}


ANSWERED = (  # ours answers, where Java closes the connection
    "v3 after v2 on one connection",
    *(
        f"{name} without its sub-message"
        for name in ("READ", "ADD", "WRITE_LAC", "READ_LAC", "INFO", "FORCE", "LIST")
    ),
)


def lines_of(capture: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in capture.read_text().splitlines()]


class Sasl(Steps):
    """The place of the SASL plug-in: one challenge, and no answer to it is right."""

    plugin = "sasl"

    def answer(self, token: bytes) -> AuthStep:
        self._tokens += 1
        if self._tokens > 1:
            raise AuthRefusedError("a wrong answer")
        return AuthStep(b"challenge")


@asynccontextmanager
async def bookie_for(name: str, directory: Path) -> AsyncIterator[Bookie]:
    config = StorageConfig(
        journal_directories=[directory / "journal"],
        ledger_directories=[directory / "ledgers"],
        journal=JournalConfig(file_bytes_max=1 << 20, preallocate_bytes=1 << 16),
    )
    server = ServerConfig(auth=Sasl()) if "not-authenticated" in name else None
    async with open_bookie(config, server_config=server) as bookie:
        if "read-only" in name:
            bookie.service.rights = Rights(writable=False)
        yield bookie


def comparable(incoming: IncomingReply) -> IncomingReply:
    """Without what differs from run to run: sizes of disks, times, challenges."""
    reply = incoming.reply
    if isinstance(reply, BookieInfoReply):
        sizes = (reply.total_disk_bytes, reply.free_disk_bytes)
        total, free = (None if size is None else 1 for size in sizes)
        reply = attrs.evolve(reply, total_disk_bytes=total, free_disk_bytes=free, takes_lac_hints=False)
    elif isinstance(reply, ReadReply) and reply.lac_update_ms is not None:
        reply = attrs.evolve(reply, lac_update_ms=1)
    elif isinstance(reply, AuthReply) and reply.payload:
        reply = attrs.evolve(reply, payload=b"challenge")
    return attrs.evolve(incoming, reply=reply)


class Replay:
    """The connections of one capture."""

    def __init__(self, bookies: dict[str, Bookie], nursery: trio.Nursery) -> None:
        self._bookies, self._nursery = bookies, nursery
        self._asked = ""
        self._talks: dict[tuple[str, int, int], Talk] = {}
        self._turns: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._taken: defaultdict[tuple[str, int, int], int] = defaultdict(int)

    def _key(self, line: dict[str, Any]) -> tuple[str, int, int]:
        place = (line["bookie"], line["conn"])
        return (*place, self._turns[place])

    def _begin(self, line: dict[str, Any]) -> None:
        """The files use the number of a closed connection again, or send on it to show that it is closed."""
        talk = self._talks.get(self._key(line))
        if talk is not None and talk.is_closed and not line["what"].startswith("then a"):
            self._turns[line["bookie"], line["conn"]] += 1

    def _talk(self, line: dict[str, Any]) -> Talk:
        key = self._key(line)
        if key not in self._talks:
            ours, theirs = trio.socket.socketpair()
            self._talks[key] = Talk(trio.SocketStream(ours))
            bookie = self._bookies[line["bookie"]]
            self._nursery.start_soon(bookie.serve_stream, trio.SocketStream(theirs))
        return self._talks[key]

    async def close(self) -> None:
        for talk in self._talks.values():
            await trio.aclose_forcefully(talk.stream)

    async def step(self, line: dict[str, Any]) -> str | None:
        """Send a frame, or await an answer; how ours differs, or None."""
        if line["dir"] == "c2b":
            self._begin(line)
        talk = self._talk(line)
        if line["dir"] == "c2b":
            self._asked = line["what"]
            await talk.send(bytes.fromhex(line["hex"]))
            return None
        if line["proto"] == "tcp":
            if "no answer" in line["what"] or self._asked.startswith(ANSWERED):
                return None
            while not talk.is_closed:
                await talk.receive()
            return None
        wanted = bytes.fromhex(line["hex"])
        key = self._key(line)
        at = self._taken[key]
        while len(talk.replies) <= at and not talk.is_closed:
            await talk.receive()
        if len(talk.replies) <= at:
            return "ours closes the connection"
        self._taken[key] += 1
        ours, theirs = comparable(talk.replies[at]), comparable(decoded(wanted, 4, len(wanted)))
        return None if ours == theirs else f"ours says {ours.reply}, Java's {theirs.reply}"


@pytest.mark.slow
@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
async def test_our_bookie_answers_as_java_does(capture: Path, tmp_path: Path) -> None:
    lines = lines_of(capture)
    names = sorted({line["bookie"] for line in lines})
    differences = []
    with trio.fail_after(HANG_S):
        async with AsyncExitStack() as stack:
            bookies = {
                name: await stack.enter_async_context(bookie_for(capture.name, tmp_path / name))
                for name in names
            }
            serving = await stack.enter_async_context(trio.open_nursery())
            replay = Replay(bookies, serving)
            for line in lines:
                if (difference := await replay.step(line)) is not None:
                    differences.append(f"{line['what']}: {difference}")
            await replay.close()
            serving.cancel_scope.cancel()
    assert not [one for one in differences if not one.startswith(tuple(DIFFERENT))], "\n".join(differences)
