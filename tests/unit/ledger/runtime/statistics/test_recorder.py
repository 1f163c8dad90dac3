"""Counting, sources that come and go, and what a snapshot and its text hold."""

# covers: ledger/runtime/statistics/exposition.py
# covers: ledger/runtime/statistics/snapshot.py

from __future__ import annotations

import json
import re

import attrs
import pytest

from ledger.runtime.statistics import Recorder, Statistics


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_source_is_read_while_it_is_open_and_its_counters_stay_afterwards() -> None:
    recorder = Recorder()
    sent, waiting = {"sent": 2}, {"waiting": 7}
    recorder.open_source("one", lambda: sent, lambda: waiting)
    recorder.open_source("other", lambda: {"sent": 10})
    seen = recorder.statistics(["sent", "never"], ["waiting"], [])
    assert seen.counters == {"never": 0, "sent": 12}
    assert seen.gauges == {"waiting": 7}
    sent["sent"] = 3
    recorder.close_source("one")
    recorder.close_source("one")
    seen = recorder.statistics([], ["waiting"], [])
    assert seen.counters == {"sent": 13}
    assert seen.gauges == {"waiting": 0}


def test_only_operations_that_succeed_are_measured() -> None:
    clock = Clock()
    recorder = Recorder(clock)
    with recorder.operation("roll"):
        clock.now_s += 2.0
    with pytest.raises(KeyError), recorder.operation("roll"):
        raise KeyError
    found = recorder.statistics([], [], ["roll", "never"]).histograms
    assert (found["roll"].count, found["roll"].max_s, found["never"].count) == (1, 2.0, 0)


def test_without_a_clock_nothing_is_measured_and_no_object_is_made() -> None:
    recorder = Recorder()
    assert recorder.operation("roll") is recorder.operation("append")
    with recorder.operation("roll"):
        pass
    assert recorder.timings is None
    assert recorder.statistics([], [], ["roll"]).histograms == {}


def test_a_snapshot_does_not_change() -> None:
    recorder = Recorder()
    recorder.counts["sent"] += 1
    seen = recorder.statistics([], [], [])
    recorder.counts["sent"] += 1
    assert seen.counters == {"sent": 1}
    with pytest.raises(TypeError):
        seen.counters["sent"] = 2  # type: ignore[index]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        seen.counters = {}  # type: ignore[misc]


def test_the_text_for_prometheus_has_every_value_of_the_snapshot() -> None:
    clock = Clock()
    recorder = Recorder(clock)
    recorder.counts["sent"] += 3
    recorder.open_source("one", dict, lambda: {"waiting": 7})
    for took_s in (0.25, 0.5):
        with recorder.operation("roll"):
            clock.now_s += took_s
    seen = recorder.statistics([], [], ["never"])
    text = seen.prometheus()
    assert re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE) == [
        *(("sent", "counter"), ("waiting", "gauge"), ("never", "summary"), ("roll", "summary")),
    ]
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values["sent"] == "3"
    assert values["waiting"] == "7"
    assert values['roll_count{success="true"}'] == "2"
    assert values['roll_sum{success="true"}'] == "750.0"
    assert values['roll{success="true",quantile="1.0"}'] == "500.0"
    assert float(values['roll{success="true",quantile="0.5"}']) == seen.histograms["roll"].p50() * 1000
    assert values['never{success="true",quantile="0.5"}'] == "NaN"


def test_the_values_for_json_have_null_in_place_of_a_time_that_is_not_known() -> None:
    seen = Recorder(Clock()).statistics(["sent"], ["waiting"], ["never"])
    document = json.loads(json.dumps(seen.as_json(), allow_nan=False))
    never = {"count": 0, "sum_s": 0.0, "max_s": None, "p50_s": None, "p99_s": None, "p999_s": None}
    assert document == {"counters": {"sent": 0}, "gauges": {"waiting": 0}, "histograms": {"never": never}}
    assert isinstance(seen, Statistics)
