"""Where the parts of one client count what they do, and measure or trace it if that is turned on.

Inside: counters, the timings of operations, objects that keep integers of their own.
Not inside: the names (``names``), the values at one moment (``snapshot``).
Always: without the settings ``statistics`` and ``tracing`` no clock is read, and no object is made.

An object that keeps integers anyway, such as a writer, is a source: it is read at the snapshot, and its
counters are added to the totals when it ends. So counting costs it nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType

import attrs

from ledger.runtime.statistics.histogram import Timing
from ledger.runtime.statistics.snapshot import Statistics
from ledger.runtime.statistics.tracing import Attribute, Span, Tracing

Clock = Callable[[], float]
Read = Callable[[], Mapping[str, int]]


@attrs.frozen
class _Source:
    counters: Read
    gauges: Read


class _Unobserved:
    """The operation while nothing is measured or traced."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Observed:
    """One operation under way. Its time counts only if it ends without an exception."""

    __slots__ = ("_began_s", "_clock", "_manager", "_span", "_timing")

    def __init__(
        self, timing: Timing | None, clock: Clock | None, manager: AbstractContextManager[Span] | None
    ) -> None:
        self._timing, self._clock, self._manager = timing, clock, manager
        self._began_s = 0.0
        self._span: Span | None = None

    def __enter__(self) -> Span | None:
        if self._manager is not None:
            self._span = self._manager.__enter__()
        if self._clock is not None:
            self._began_s = self._clock()
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._timing is not None and self._clock is not None:
            self._timing.add(self._clock() - self._began_s)
        if self._manager is not None:
            if kind is not None and self._span is not None:
                self._span.set_attribute("error.type", kind.__qualname__)
            self._manager.__exit__(kind, exc, trace)


_UNOBSERVED = _Unobserved()


def _nothing() -> Mapping[str, int]:
    return {}


class Recorder:
    """The counters and timings of one client. Made by ``open_ledger_client``, shared by all its parts."""

    def __init__(self, clock: Clock | None = None, tracing: Tracing | None = None) -> None:
        """Args:
        clock: Returns seconds; None: measure nothing.
        tracing: Makes spans; None: make none.
        """
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.timings: defaultdict[str, Timing] | None = None if clock is None else defaultdict(Timing)
        self._clock, self._tracing = clock, tracing
        self._sources: dict[Hashable, _Source] = {}

    def __repr__(self) -> str:
        times = "with" if self.timings is not None else "no"
        return f"<Recorder of {len(self._sources)} sources, {times} histograms>"

    @property
    def observes(self) -> bool:
        """True if times are measured or spans are made."""
        return self.timings is not None or self._tracing is not None

    @property
    def makes_spans(self) -> bool:
        """True if spans are made."""
        return self._tracing is not None

    def open_source(self, key: Hashable, counters: Read, gauges: Read = _nothing) -> None:
        """Read these integers at each snapshot, until ``close_source`` of the same key."""
        self._sources[key] = _Source(counters, gauges)

    def close_source(self, key: Hashable) -> None:
        """Add the counters of a source to the totals, and forget it; a second call does nothing."""
        source = self._sources.pop(key, None)
        if source is not None:
            _add(self.counts, source.counters())

    def operation(
        self, name: str, span: str | None = None, **attributes: Attribute
    ) -> AbstractContextManager[Span | None]:
        """Measure the block under this name if times are measured; make a span of it if spans are made.

        Args:
            span: The name of the operation in its span; None: it has none.
            attributes: See ``Tracing.start``.

        The value of the block is the span; None if there is none.
        """
        if not self.observes:
            return _UNOBSERVED
        return _Observed(
            None if self.timings is None else self.timings[name],
            self._clock,
            None if self._tracing is None or span is None else self._tracing.start(span, attributes),
        )

    def trace_headers(self) -> dict[str, bytes]:
        """The headers that carry the current span to the readers of a record; none if no spans are made."""
        return {} if self._tracing is None else self._tracing.headers()

    def link(self, span: Span | None, headers: Callable[[], Iterable[Mapping[str, bytes]]]) -> None:
        """Link a span of ``operation`` with the spans that the headers of records carry."""
        if span is not None and self._tracing is not None:
            self._tracing.link(span, headers())

    def statistics(
        self,
        counters: Iterable[str],
        gauges: Iterable[str],
        timings: Iterable[str],
    ) -> Statistics:
        """The values now; the names given are there also if they never occurred."""
        counts, values = dict.fromkeys(counters, 0), dict.fromkeys(gauges, 0)
        _add(counts, self.counts.copy())
        for source in list(self._sources.values()):  # a copy: the caller may be in another thread
            _add(counts, source.counters())
            _add(values, source.gauges())
        measured = self.timings
        names = [] if measured is None else [*timings, *measured.copy()]
        return Statistics(
            counts,
            values,
            {name: (Timing() if measured is None else measured[name]).histogram() for name in names},
        )


def _add(totals: dict[str, int], counts: Mapping[str, int]) -> None:
    for name, value in counts.items():
        totals[name] = totals.get(name, 0) + value
