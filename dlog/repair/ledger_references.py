"""Which ledgers the nodes of logs name: in segments, in allocation nodes, in allocator pools, in blobs.

Inside: walking the nodes below a path, and doing it twice until logs did not move meanwhile.
Not inside: which unnamed ledgers may be deleted (``orphans``).
Always: a ledger that a node names during the whole walk is in the result; a node that does not parse is an
error, because a ledger that it names would be missed; ``allocation`` is read before the segments, and pools
before all logs, because a ledger moves in this direction.

Source: our own; the nodes are those of docs/metadata.md 16.3, 16.4 and 16.8.
"""

from __future__ import annotations

import re

import attrs

from dlog.errors import LogMetadataError, LogUnavailableError
from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.store import MetadataStore, Node, parent_of
from ledger.policy import POLICY_NODE
from namespace.binding import decode_binding
from namespace.blob_nodes import ledgers_in_node
from namespace.log_nodes import LOCK, ORIGIN, READ_LOCK, RENAMED_NODE, SUBSCRIBERS, UNPARTITIONED
from namespace.node_reads import READS_AT_ONCE, read_children, read_nodes
from namespace.segments.segment import decode_segment, is_segment_name

ATTEMPTS_MAX = 10  # each is lost to a log that was created, deleted or renamed during the walk
NO_LEDGERS = frozenset({LOCK, READ_LOCK, SUBSCRIBERS, ORIGIN, "maxtxid", "version", "ledgers", "allocation"})
_NUMBER = re.compile(rb"[0-9]{1,19}")


@attrs.frozen
class LedgerReferences:
    """The ledgers that the nodes below a path name."""

    ledger_ids: frozenset[int]
    logs: dict[str, int]  # the root node of each log (``…/<default>``) with its creation in epoch ms
    directories: dict[str, tuple[int, int]]  # every other node: its creation, and the version of its children


async def stable_references(store: MetadataStore, scope: str, *, without: str) -> LedgerReferences:
    """All ledgers named below ``scope`` while no log was created, deleted or renamed there.

    Segments may be started, completed and purged during the walk.

    Args:
        without: A path below which no log can be: the ledgers' own root.

    Raises:
        LogMetadataError: A node does not parse, so the ledgers that it names are not known.
        LogUnavailableError: Logs came or went during every attempt.
        ledger.metadata_store.errors.MetadataError: A node cannot be read.
    """
    await store.sync(scope)
    before = await _walk(store, scope, without)
    for _ in range(ATTEMPTS_MAX):
        after = await _walk(store, scope, without)
        if (after.directories, after.logs) == (before.directories, before.logs):
            # At the moment between the walks every log was where both walks found it.
            return attrs.evolve(after, ledger_ids=after.ledger_ids | before.ledger_ids)
        before = after
    raise LogUnavailableError(
        f"the logs below {scope} were created, deleted or renamed during each of {ATTEMPTS_MAX} looks at"
        " them; nothing was deleted, try again"
    )


async def binding_scope(store: MetadataStore, path: str) -> tuple[str, bool]:
    """The topmost bound node at or above a namespace, and True; or the namespace itself and False.

    Every namespace that could take over a log of this one, by renaming it, lies below that node.
    """
    scope, is_bound, here = path, False, path
    while True:
        try:
            data = (await store.get(here)).value
        except NoNodeError:
            data = b""
        if _is_binding(data):
            scope, is_bound = here, True
        if here == "/":
            return scope, is_bound
        here = parent_of(here)


async def log_references(store: MetadataStore, root: str) -> frozenset[int] | None:
    """The ledgers that a log names; None if there is no log at this root node.

    Raises:
        LogMetadataError: A node does not parse.
    """
    while True:
        (allocation,) = (await read_nodes(store, [f"{root}/allocation"])).values()
        try:
            names = (await store.children(f"{root}/ledgers")).names
            others = (await store.children(root)).names
        except NoNodeError:
            return None
        found = set() if allocation is None else _numbers_in(allocation.value)
        segments = [f"{root}/ledgers/{name}" for name in names if is_segment_name(name)]
        nodes = await read_nodes(store, segments)
        if None in nodes.values():
            continue  # one was completed or deleted meanwhile: its replacement is not in this list
        for path, node in nodes.items():
            assert node is not None  # None was looked for above
            found.add(_ledger_of(path, node))
        unknown = [f"{root}/{name}" for name in others if name not in NO_LEDGERS]
        for node in (await read_nodes(store, unknown)).values():
            found |= set() if node is None else _numbers_in(node.value)
        return frozenset(found)


async def _walk(store: MetadataStore, scope: str, without: str) -> LedgerReferences:
    ledger_ids: set[int] = set()
    directories: dict[str, tuple[int, int]] = {}
    roots: list[str] = []
    pending = [scope]
    while pending:
        batch, pending = pending[:READS_AT_ONCE], pending[READS_AT_ONCE:]
        nodes = await read_nodes(store, batch)
        for path, names in zip(batch, await read_children(store, batch), strict=True):
            node = nodes[path]
            if node is None:
                continue
            directories[path] = node.stat.created_ms, node.stat.child_version
            of_blobs = ledgers_in_node(path, node.value)
            names_no_ledgers = path.endswith(f"/{POLICY_NODE}") or f"/{RENAMED_NODE}/" in path
            if of_blobs is not None:
                ledger_ids |= of_blobs
            elif not names_no_ledgers and not _is_binding(node.value):
                ledger_ids |= _numbers_in(node.value)  # of an allocator's pool, for example
            for name in names:
                child = f"/{name}" if path == "/" else f"{path}/{name}"
                if name == UNPARTITIONED:
                    roots.append(child)
                elif child not in (without, "/zookeeper"):
                    pending.append(child)
    logs: dict[str, int] = {}
    for start in range(0, len(roots), READS_AT_ONCE):
        for root, node in (await read_nodes(store, roots[start : start + READS_AT_ONCE])).items():
            if node is not None and (found := await log_references(store, root)) is not None:
                logs[root] = node.stat.created_ms
                ledger_ids |= found
    return LedgerReferences(frozenset(ledger_ids), logs, directories)


def _ledger_of(path: str, node: Node) -> int:
    try:
        return decode_segment(node.value).ledger_id
    except LogMetadataError as exc:
        raise LogMetadataError(
            f"{path}: {exc}; so it is not known which ledgers its log needs. Nothing was deleted;"
            " `dlog log check` shows the log's nodes"
        ) from None


def _numbers_in(data: bytes) -> set[int]:
    """All numbers in the data: any of them may be the id of a ledger."""
    return {int(number) for number in _NUMBER.findall(data)}


def _is_binding(data: bytes) -> bool:
    try:
        decode_binding(data)
    except LogMetadataError:
        return False
    return True
