"""The text format of Prometheus, as Apache's programs write it.

Inside: kinds, labels, numbers. Not inside: what is measured.
Always: a summary is in milliseconds, as in Apache's programs, so that their dashboards fit. A histogram
is in seconds, because those programs have none.

Source: PrometheusTextFormatUtil.java; docs/http.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs


@attrs.frozen
class Metric:
    """One name with its series."""

    name: str
    kind: str
    series: tuple[tuple[str, float], ...]  # what follows the name, such as labels, and the value
    help: str = ""  # one line of plain text; empty: none is written


@attrs.frozen
class Summary:
    """The times of one series, in seconds."""

    labels: str
    quantiles: tuple[tuple[float, float], ...]
    count: int
    sum_s: float


def exposition(metrics: Iterable[Metric]) -> str:
    """The text of all metrics."""
    lines: list[str] = []
    for metric in metrics:
        if metric.help:
            lines.append(f"# HELP {metric.name} {metric.help}\n")
        lines.append(f"# TYPE {metric.name} {metric.kind}\n")
        lines += [f"{metric.name}{more} {number(value)}\n" for more, value in metric.series]
    return "".join(lines)


def gauge(name: str, value: float) -> Metric:
    """A value that rises and falls."""
    return Metric(name, "gauge", (("", value),))


def counter(name: str, value: float) -> Metric:
    """A value that only rises."""
    return Metric(name, "counter", (("", value),))


def summary(name: str, summaries: Iterable[Summary]) -> Metric:
    """An operation as Apache writes it, in milliseconds."""
    series: list[tuple[str, float]] = []
    for one in summaries:
        series += [(f'{{{one.labels},quantile="{at}"}}', took_s * 1000) for at, took_s in one.quantiles]
        series.append((f"_count{{{one.labels}}}", one.count))
        series.append((f"_sum{{{one.labels}}}", one.sum_s * 1000))
    return Metric(name, "summary", tuple(series))


def histogram(name: str, bounds_s: Sequence[float], counts: Sequence[int], sum_s: float) -> Metric:
    """Times in seconds, as programs of Prometheus write them. Histograms of one name can be added.

    Args:
        counts: The samples up to each of ``bounds_s``, and last the number of all.
    """
    series: list[tuple[str, float]] = [
        (f'_bucket{{le="{bound_s!r}"}}', count) for bound_s, count in zip(bounds_s, counts, strict=False)
    ]
    series += [('_bucket{le="+Inf"}', counts[-1]), ("_sum", sum_s), ("_count", counts[-1])]
    return Metric(name, "histogram", tuple(series))


def number(value: float) -> str:
    """The text of a value."""
    return "NaN" if value != value else repr(value)


def quoted(text: str) -> str:
    """A label's value, to be put in quotation marks."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
