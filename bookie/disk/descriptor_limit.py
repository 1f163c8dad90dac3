"""How many files a bookie's process may open, and how it divides them.

Inside: the process's limit, the share of storage, the rest for connections. Not inside: a shortage
(``descriptors``).
Always: connections get only what storage leaves, except under a limit so low that storage would leave less
than a quarter.

Source: getrlimit(2); docs/security.md, "Connections and descriptors".
"""

from __future__ import annotations

import resource

from ledger.runtime.log_lines import get_logger

SPARES = 16  # descriptors that a bookie's process holds for a shortage
_LIMIT_MAX = 1 << 20  # a limit of "infinity" is no number that the kernel takes
ADMIN_CONNECTIONS_MAX = 32  # to the HTTP port

_BASE = 64  # standard streams, the loop, ZooKeeper, logs, name look-ups
_OF_JOURNAL = 8  # the file in use, the next ones, marks, a replay
_OF_LEDGER_DIRECTORY = 96  # 64 open entry logs of the reader, open logs of writer and compactor, the summary
_KEY_VALUE_FILES_MAX = 256

log = get_logger(__name__)


def raise_limit() -> int:
    """Raise this process's soft limit of open files to the hard one. Return the limit now in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return descriptor_limit()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as exc:
        log.warning("the limit of %d open files cannot be raised to %d: %s", soft, wanted, exc)
    return descriptor_limit()


def descriptor_limit() -> int:
    """The soft limit of open files of this process."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _LIMIT_MAX if soft == resource.RLIM_INFINITY else min(soft, _LIMIT_MAX)


def key_value_files_max() -> int:
    """How many files one index database may keep open under the present limit."""
    return min(_KEY_VALUE_FILES_MAX, max(32, descriptor_limit() // 16))


def connections_below_limit(
    journals_count: int, ledger_directories_count: int, index_files_count: int = 0
) -> int:
    """How many connections leave storage the descriptors that it may need, at least a quarter of the limit.

    Args:
        index_files_count: Index files and entry logs of single ledgers that may be open at once.
    """
    limit = descriptor_limit()
    reserved = (
        _BASE
        + ADMIN_CONNECTIONS_MAX
        + SPARES
        + _OF_JOURNAL * journals_count
        + (_OF_LEDGER_DIRECTORY + key_value_files_max()) * ledger_directories_count
        + index_files_count
    )
    return max(limit - reserved, limit // 4, 1)
