"""Choosing bookies for an ensemble, and others in the place of failed ones.

Inside: the random policy, as pure functions of what is writable and a source of chance.
Not inside: who is writable (``membership``), when to replace (``repair``), racks and regions.
Always: no bookie twice in an ensemble; a bookie that is suspected is taken only when no other is left.

Source: DefaultEnsemblePlacementPolicy.java; reference section 5.6.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from ledger.errors import NotEnoughBookiesError


def choose_ensemble(
    writable: Collection[str], size: int, rng: random.Random, *, suspects: Collection[str] = ()
) -> tuple[str, ...]:
    """``size`` different bookies in random order, suspected ones only to fill up.

    Raises:
        NotEnoughBookiesError: Fewer than ``size`` bookies are writable.
    """
    if len(writable) < size:
        raise NotEnoughBookiesError(size, len(writable))
    chosen = _prefer_unsuspected(writable, suspects, rng)[:size]
    rng.shuffle(chosen)
    return tuple(chosen)


def choose_replacements(
    ensemble: Sequence[str],
    failed: Collection[int],
    writable: Collection[str],
    rng: random.Random,
    *,
    suspects: Collection[str] = (),
    tried: Sequence[str] = (),
) -> dict[int, str]:
    """A new bookie for as many of the failed indices as there are bookies outside the ensemble.

    Members of the ensemble are never chosen, failed ones included: a bookie that just failed is tried
    again where it is, not moved to another index. Those ``tried`` come after all others, in that order.
    """
    spare = _prefer_unsuspected(set(writable) - set(ensemble), suspects, rng)
    turns = {bookie: number for number, bookie in enumerate(tried, 1)}
    spare.sort(key=lambda bookie: turns.get(bookie, 0))
    return dict(zip(sorted(failed), spare, strict=False))


def _prefer_unsuspected(bookies: Collection[str], suspects: Collection[str], rng: random.Random) -> list[str]:
    # Sorted before shuffling: sets of strings have another order in each process, and one seed must
    # choose the same bookies every time.
    good = sorted(bookie for bookie in bookies if bookie not in suspects)
    rng.shuffle(good)
    doubtful = sorted(bookie for bookie in bookies if bookie in suspects)
    rng.shuffle(doubtful)
    return good + doubtful
