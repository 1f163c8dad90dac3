"""The node of a proxy: the patterns of the logs that it has.

Inside: its data. Not inside: creating it, which proxy has a log (``dlog.proxies``).
Always: data that no proxy wrote are those of one that has no log.

Source: our own; docs/shared.md, "Proxies".
"""

from __future__ import annotations

import json
from collections.abc import Sequence

VERSION = 1


def encode_patterns(patterns: Sequence[str]) -> bytes:
    """The data of the node."""
    return json.dumps({"version": VERSION, "patterns": list(patterns)}).encode()


def decode_patterns(data: bytes) -> list[str]:
    """The patterns in the data of the node."""
    try:
        found = json.loads(data)
        patterns = found["patterns"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return []
    is_known = found.get("version") == VERSION and isinstance(patterns, list)
    return patterns if is_known and all(isinstance(each, str) for each in patterns) else []
