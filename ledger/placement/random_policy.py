"""The random policy: choosing bookies for an ensemble, and replacements for failed ones.

Inside: pure functions of the writable bookies and a random generator.
Not inside: the list of writable bookies (``membership``), the decision to replace (``repair``), racks and
regions.
Always: no bookie is twice in an ensemble; a suspected bookie is chosen only if there are too few others.

Source: DefaultEnsemblePlacementPolicy.java; docs/protocol.md 5.6, 11.3.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from ledger.errors import NotEnoughBookiesError


def choose_ensemble(
    writable: Collection[str], size: int, rng: random.Random, *, suspects: Collection[str] = ()
) -> tuple[str, ...]:
    """``size`` different bookies in random order, suspected ones only if there are too few others.

    Raises:
        NotEnoughBookiesError: Fewer than ``size`` bookies are writable.
    """
    if len(writable) < size:
        raise NotEnoughBookiesError(size, len(writable), writable)
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
    """Replacements for the failed indices, as many as there are bookies outside the ensemble.

    Members of the ensemble are never chosen, not even failed ones: a failed bookie is tried again at its
    index, and not moved to another index. The bookies in ``tried`` come after all others, in that order.
    """
    spare = _prefer_unsuspected(set(writable) - set(ensemble), suspects, rng)
    rank = {bookie: number for number, bookie in enumerate(tried, 1)}
    spare.sort(key=lambda bookie: rank.get(bookie, 0))
    return dict(zip(sorted(failed), spare, strict=False))


def _prefer_unsuspected(bookies: Collection[str], suspects: Collection[str], rng: random.Random) -> list[str]:
    # Sorted before shuffling: the order of a set of strings differs between processes, and one seed must
    # always choose the same bookies.
    good = sorted(bookie for bookie in bookies if bookie not in suspects)
    rng.shuffle(good)
    suspected = sorted(bookie for bookie in bookies if bookie in suspects)
    rng.shuffle(suspected)
    return good + suspected
