"""Moving all replicas off some bookies, as an operator asks for it, without an auditor and without a worker.

Inside: the ledgers concerned, their locks, the outcome of each. Not inside: restoring one ledger
(``ledger_restorer``), cookies, commands.
Always: a ledger is changed only under its lock, so that workers and the garbage collection of over-replicated
ledgers keep away; a ledger whose lock another program holds is left to that program and reported.

Source: BookKeeperAdmin.java (recoverBookieData); docs/autorecovery.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Collection

import attrs

from ledger.catalog.catalog import LedgerCatalog
from ledger.context import ClientContext
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.metadata_store.errors import MetadataError, NoNodeError
from ledger.replication.ledger_restorer import LedgerRestorer, Outcome
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.runtime.tasks.failure_domain import first_line, report_contained


@attrs.frozen
class Planned:
    """A ledger that names one of the bookies, before anything is done."""

    ledger_id: int
    is_open_end: bool  # not closed, and written to one of the bookies
    fragments: int  # ensembles with one of the bookies
    reason: str | None = None  # its metadata do not parse, so it is not known whether it names one


@attrs.frozen
class Evacuated:
    """The result of moving one ledger."""

    ledger_id: int
    outcome: Outcome | None  # None: it was not tried, or failed with ``reason``
    reason: str | None = None

    @property
    def is_done(self) -> bool:
        """True if none of the bookies is in its ensembles any more."""
        return self.outcome in (Outcome.RESTORED, Outcome.GONE)


async def planned_evacuations(
    context: ClientContext, bookies: Collection[str], *, ledger_id: int | None = None
) -> AsyncGenerator[Planned, None]:
    """The ledgers that ``evacuate_bookies`` would try. It changes nothing.

    Raises: as ``evacuate_bookies``.
    """
    catalog: LedgerCatalog = context.catalog
    for one in await catalog.ledger_ids() if ledger_id is None else [ledger_id]:
        try:
            metadata = (await catalog.get(one)).metadata
        except NoSuchLedgerError:
            if ledger_id is not None:
                raise
            continue
        except LedgerError as exc:
            yield Planned(one, False, 0, str(exc))
            continue
        fragments = sum(not set(bookies).isdisjoint(ensemble.bookies) for ensemble in metadata.ensembles)
        if fragments:
            in_end = not set(bookies).isdisjoint(metadata.last_ensemble.bookies)
            yield Planned(one, in_end and not metadata.is_closed, fragments)


async def evacuate_bookies(
    context: ClientContext,
    marks: UnderReplicatedLedgers,
    restorer: LedgerRestorer,
    bookies: Collection[str],
    *,
    close_open: bool,
    ledger_id: int | None = None,
) -> AsyncGenerator[Evacuated, None]:
    """Copy the entries of these bookies to others, ledger by ledger; yield the result of each.

    The bookies may run or be lost. If cancelled, the ledgers so far are done; call it again for the others.

    Args:
        close_open: Fence and close a ledger that is written to one of the bookies; its writer fails then.
        ledger_id: Only this ledger; None for all.

    Raises:
        NoSuchLedgerError: The ledger ``ledger_id`` does not exist.
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    async with contextlib.aclosing(planned_evacuations(context, bookies, ledger_id=ledger_id)) as planned:
        async for one in planned:
            if one.reason is not None:
                yield Evacuated(one.ledger_id, None, one.reason)
                continue
            taken = await marks.take_unmarked(one.ledger_id)
            if taken is None:
                yield Evacuated(one.ledger_id, None, "another program works on it")
                continue
            try:
                result = Evacuated(
                    one.ledger_id, await restorer.evacuate(one.ledger_id, bookies, close_open=close_open)
                )
            except (LedgerError, NoNodeError) as exc:
                result = Evacuated(one.ledger_id, None, str(exc))
            except MetadataError:
                raise
            except Exception as exc:  # the other ledgers are moved all the same
                report_contained("moving a ledger", exc, ledger_id=one.ledger_id)
                result = Evacuated(one.ledger_id, None, f"{type(exc).__name__}: {first_line(exc)}")
            finally:
                await marks.release(taken)
            yield result
