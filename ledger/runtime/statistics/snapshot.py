"""What a client has counted and measured at one moment.

Inside: the values, and their forms for other programs. Not inside: counting (``recorder``).
Always: a snapshot does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from ledger.runtime.statistics.exposition import Metric, Summary, counter, exposition, gauge, summary
from ledger.runtime.statistics.histogram import QUANTILES, Histogram, quantile_of


def _fixed(mapping: Mapping[str, object]) -> MappingProxyType[str, object]:
    return MappingProxyType(dict(sorted(mapping.items())))


@attrs.frozen
class Statistics:
    """Counters, gauges and histograms by name; docs/observability.md has the tables of names.

    ``histograms`` is empty unless the client was opened with the setting ``statistics``.
    """

    counters: Mapping[str, int] = attrs.field(converter=_fixed)
    """They only rise, from the opening of the client on."""
    gauges: Mapping[str, int] = attrs.field(converter=_fixed)
    """Values of this moment."""
    histograms: Mapping[str, Histogram] = attrs.field(converter=_fixed)

    def __reduce__(self) -> tuple[Any, ...]:
        return Statistics, (dict(self.counters), dict(self.gauges), dict(self.histograms))

    def prometheus(self) -> str:
        """The text format of Prometheus; times are summaries in milliseconds, as in Apache's programs."""
        return exposition(self._metrics())

    def as_json(self) -> dict[str, dict[str, object]]:
        """The same as values that ``json.dumps`` takes; times in seconds, null without samples."""
        return {
            "counters": dict(self.counters),
            "gauges": dict(self.gauges),
            "histograms": {name: _as_json(one) for name, one in self.histograms.items()},
        }

    def _metrics(self) -> Iterator[Metric]:
        for name, value in self.counters.items():
            yield counter(name, value)
        for name, value in self.gauges.items():
            yield gauge(name, value)
        for name, one in self.histograms.items():
            quantiles = tuple((at, min(quantile_of(one.buckets, at), one.max_s)) for at in QUANTILES)
            yield summary(name, [Summary('success="true"', quantiles, one.count, one.sum_s)])


def _as_json(one: Histogram) -> dict[str, object]:
    times = {"max_s": one.max_s, "p50_s": one.p50(), "p99_s": one.p99(), "p999_s": one.p999()}
    return {
        "count": one.count,
        "sum_s": one.sum_s,
        **{name: value if one.count else None for name, value in times.items()},
    }
