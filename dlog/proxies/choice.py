"""Which of several proxies has a log: hashes choose, and none has many more than its share.

Inside: the choice. Not inside: which proxies there are (``proxy``).
Always: each proxy that knows the same logs and proxies chooses the same; a log has a proxy if the patterns of
one match it; when a proxy comes or goes, few other logs change hands than its own.

Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2018.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256

SHARE_MAX = 1.25  # of the mean, that a proxy has


def divided(logs: Iterable[str], proxies: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The proxy of each log that has one.

    Args:
        proxies: The patterns of each proxy.
    """
    candidates = {log: [each for each in proxies if _matches(log, proxies[each])] for log in logs}
    wanted = sorted((log for log, found in candidates.items() if found), key=lambda log: _hash(log, ""))
    most = math.ceil(SHARE_MAX * len(wanted) / max(1, len(proxies)))
    counts: Counter[str] = Counter()
    chosen: dict[str, str] = {}
    for log in wanted:
        ranked = sorted(candidates[log], key=lambda each: _hash(each, log))
        chosen[log] = next((each for each in ranked if counts[each] < most), ranked[0])
        counts[chosen[log]] += 1
    return chosen


def _matches(log: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(log, each) for each in patterns)


def _hash(one: str, other: str) -> tuple[bytes, str]:
    return sha256(f"{one}\0{other}".encode("utf-8", "surrogatepass")).digest(), one
