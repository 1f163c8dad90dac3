"""Marking a ledger as under-replicated, so that a worker of auto-recovery looks at it.

Inside: one mark, in the node that Apache's tools read. Not inside: the bytes (``replication_nodes``), taking
marks (``ledger.replication.marks``), when to mark (``ledger.replication.auditor``, ``ledger.write.missed``).
Always: a mark names all bookies that any program marked; one that names them already is written again only if
the caller says that more was missed since: a worker that began before it deletes no mark that was written.

Source: ZkLedgerUnderreplicationManager.java; docs/metadata.md 12.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ledger.catalog.paths import underreplicated_path
from ledger.catalog.replication_nodes import Mark, decode_mark, encode_mark
from ledger.errors import MetadataFormatError
from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import MetadataStore


async def mark_under_replicated(
    session: MetadataStore,
    root: str,
    ledger_id: int,
    bookies: Collection[str],
    now_ms: Callable[[], int],
    *,
    missed_more: bool = False,
) -> None:
    """Mark a ledger: these bookies lack entries of it. If cancelled, it may or may not be marked.

    Args:
        missed_more: A worker that has taken the mark already may not know of all that they lack.

    Raises:
        MetadataFormatError: The ledger has a mark that does not parse.
        ledger.metadata_store.errors.StoreError: The metadata store failed.
    """
    path, wanted = underreplicated_path(root, ledger_id), tuple(bookies)
    while True:
        try:
            await session.create(path, encode_mark(Mark(wanted, now_ms())), parents=True)
            return
        except NodeExistsError:
            pass
        except NoNodeError:
            continue  # a worker deletes empty parents while this creates them
        try:
            node = await session.get(path)
            try:
                found = decode_mark(node.value)
            except MetadataFormatError as exc:
                raise MetadataFormatError(f"{path}: {exc}") from None
            changed = found.with_replicas(wanted, now_ms())
            if changed is None and not missed_more:
                return
            data = node.value if changed is None else encode_mark(changed)
            await session.put(path, data, expected=node.stat.version)
            return
        except (NoNodeError, BadVersionError):
            continue
