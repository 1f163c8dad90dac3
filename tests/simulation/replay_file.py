"""A failing world in a file, from which it can be played again.

Inside: encoding to JSON and decoding. Not inside: playing (``world``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from ledger.digest import DigestType
from tests.simulation.faults import KINDS, Fault
from tests.simulation.healing.shape import HealShape
from tests.simulation.shape import Shape
from tests.simulation.streams.shape import StreamShape

FORMAT = 4


class ReplayFileError(ValueError):
    """The file does not hold a world. Nothing was played."""


@attrs.frozen
class Replay:
    """A world: shape and plan, its violation, its trace hash, and the known bug that was put back, if any."""

    shape: Shape
    plan: tuple[Fault, ...]
    violation: str | None
    digest: str
    known_bug: str | None = None

    @property
    def streams(self) -> bool:
        """True for a world with logs."""
        return isinstance(self.shape, StreamShape)

    @property
    def healing(self) -> bool:
        """True for a world with auto-recovery."""
        return isinstance(self.shape, HealShape)


def encode_replay(replay: Replay) -> str:
    shape: dict[str, Any] = attrs.asdict(replay.shape)
    shape["digest_type"] = replay.shape.digest_type.name
    shape["password"] = replay.shape.password.decode()
    content = {
        "format": FORMAT,
        "violation": replay.violation,
        "digest": replay.digest,
        "known_bug": replay.known_bug,
        "streams": replay.streams,
        "healing": replay.healing,
        "shape": shape,
        "plan": [attrs.asdict(fault) for fault in replay.plan],
    }
    return json.dumps(content, indent=1) + "\n"


def decode_replay(text: str) -> Replay:
    """Decode what ``encode_replay`` made.

    Raises:
        ReplayFileError: The text is something else.
    """
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise ReplayFileError(f"format {content['format']!r}; this program reads format {FORMAT}")
        shape = dict(content["shape"])
        shape["digest_type"] = DigestType[shape["digest_type"]]
        shape["password"] = shape["password"].encode()
        shape["losses"] = tuple(shape["losses"])
        plan = tuple(Fault(**fault) for fault in content["plan"])
        unknown = [fault.kind for fault in plan if fault.kind not in KINDS]
        if unknown:
            raise ReplayFileError(f"no fault is called {unknown[0]!r}")
        kind = StreamShape if content["streams"] else HealShape if content["healing"] else Shape
        return Replay(kind(**shape), plan, content["violation"], content["digest"], content["known_bug"])
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        if isinstance(exc, ReplayFileError):
            raise
        raise ReplayFileError(f"this is no replay file: {exc!r}") from exc


def read_replay(path: Path) -> Replay:
    return decode_replay(path.read_text("utf-8"))
