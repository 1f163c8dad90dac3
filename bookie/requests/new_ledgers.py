"""The budget of ledgers that this bookie created and the metadata have not confirmed yet.

A bookie creates a ledger at the first add, fence or LAC packet that names it. It cannot ask the metadata
store first: that would delay each new ledger. So a stranger could create ledgers that do not exist, without
end. This budget limits how many unconfirmed ledgers there are, and how many are created in a second. Beyond a
limit the request gets TOO_MANY_REQUESTS, and nothing is created.

Inside: the counts, the limits. Not inside: asking the metadata store (``ledger_metadata.new_ledger_check``),
creating ledgers (``session``).
Always: a ledger leaves the budget only when the metadata have confirmed it, or when it is deleted here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import attrs

from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

_LOG_INTERVAL_S = 60.0


@attrs.frozen(kw_only=True)
class NewLedgersConfig:
    """The limits. A writer creates the metadata of a ledger before it sends the first entry."""

    unconfirmed_max: int = attrs.field(default=10_000, validator=attrs.validators.ge(0))  # 0: no limits
    per_second_max: int = attrs.field(default=2_000, validator=attrs.validators.ge(1))
    grace_s: float = attrs.field(default=60.0, validator=attrs.validators.ge(0))  # then an unknown one goes


class NewLedgers:
    """See the module. On the loop."""

    def __init__(self, config: NewLedgersConfig, now_s: Callable[[], float]) -> None:
        assert config.unconfirmed_max > 0  # ``run_bookie`` makes none for 0
        self.config = config
        self.refused = 0
        self._now_s = now_s
        self._created_s: dict[int, float] = {}  # oldest first
        self._tokens = float(config.per_second_max)
        self._tokens_at_s = now_s()
        self._logged_at_s = -_LOG_INTERVAL_S

    def __repr__(self) -> str:
        return f"<NewLedgers, {len(self._created_s)} not confirmed, {self.refused} refused>"

    def __len__(self) -> int:
        return len(self._created_s)

    def admit(self, ledger_id: int) -> bool:
        """Count a ledger that is about to be created. False: it must not be created now."""
        now_s, rate = self._now_s(), self.config.per_second_max
        self._tokens = min(rate, self._tokens + (now_s - self._tokens_at_s) * rate)
        self._tokens_at_s = now_s
        if self._tokens < 1 or len(self._created_s) >= self.config.unconfirmed_max:
            self._refuse(now_s)
            return False
        self._tokens -= 1
        self._created_s[ledger_id] = now_s
        return True

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """The metadata have confirmed these ledgers, or they are deleted here."""
        for ledger_id in ledger_ids:
            self._created_s.pop(ledger_id, None)

    def oldest(self, count_max: int) -> dict[int, float]:
        """The oldest unconfirmed ledgers, with the time of their creation."""
        return dict(itertools.islice(self._created_s.items(), count_max))

    def created_s(self, ledger_id: int) -> float | None:
        """When the unconfirmed ledger was created; None if it is not unconfirmed."""
        return self._created_s.get(ledger_id)

    def _refuse(self, now_s: float) -> None:
        self.refused += 1
        if now_s - self._logged_at_s >= _LOG_INTERVAL_S:
            self._logged_at_s = now_s
            log.warning(
                "a new ledger is refused: the metadata have not confirmed %d ledgers that peers began here,"
                " of at most %d, and at most %d may begin in a second. So far %d requests were refused. If"
                " the writers are many, raise unconfirmedLedgersMax or newLedgersPerSecondMax. If they are"
                " few, check which machines may connect",
                len(self._created_s),
                self.config.unconfirmed_max,
                self.config.per_second_max,
                self.refused,
            )
