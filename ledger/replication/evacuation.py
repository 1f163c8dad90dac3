"""Moving all replicas off some bookies, as an operator asks for it, without an auditor and without a worker.

Inside: the ledgers concerned, their locks, the outcome of each. Not inside: restoring one ledger
(``ledger_restorer``), cookies, commands.
Always: a ledger is changed only under its lock, so that workers and the garbage collection of over-replicated
ledgers keep away; a ledger whose lock another program holds is left to that program and reported.

Source: BookKeeperAdmin.java (recoverBookieData); docs/autorecovery.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

import attrs

from ledger.catalog.catalog import LedgerCatalog
from ledger.context import ClientContext
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.replication.ledger_restorer import LedgerRestorer, Outcome
from ledger.replication.marks import UnderReplicatedLedgers
from namespace.errors import NoNodeError


@attrs.frozen
class Evacuated:
    """What became of one ledger."""

    ledger_id: int
    outcome: Outcome | None  # None: it was not tried, or failed with ``reason``
    reason: str | None = None

    @property
    def is_done(self) -> bool:
        """True if none of the bookies is in its ensembles any more."""
        return self.outcome in (Outcome.RESTORED, Outcome.GONE)


async def evacuate_bookies(
    context: ClientContext,
    marks: UnderReplicatedLedgers,
    restorer: LedgerRestorer,
    bookies: Collection[str],
    *,
    close_open: bool,
) -> AsyncIterator[Evacuated]:
    """Copy the entries of these bookies to others, ledger by ledger; yield the result of each.

    The bookies may run or be lost. If cancelled, the ledgers so far are done; call it again for the others.

    Args:
        close_open: Fence and close a ledger that is written to one of the bookies; its writer fails then.

    Raises:
        namespace.errors.NamespaceError: The metadata store failed.
    """
    catalog: LedgerCatalog = context.catalog
    for ledger_id in await catalog.ledger_ids():
        try:
            metadata = (await catalog.get(ledger_id)).metadata
        except NoSuchLedgerError:
            continue
        except LedgerError as exc:
            yield Evacuated(ledger_id, None, str(exc))
            continue
        if all(bookie not in ensemble.bookies for ensemble in metadata.ensembles for bookie in bookies):
            continue
        taken = await marks.take_unmarked(ledger_id)
        if taken is None:
            yield Evacuated(ledger_id, None, "another program works on it")
            continue
        try:
            result = Evacuated(ledger_id, await restorer.evacuate(ledger_id, bookies, close_open=close_open))
        except (LedgerError, NoNodeError) as exc:
            result = Evacuated(ledger_id, None, str(exc))
        finally:
            await marks.release(taken)
        yield result
