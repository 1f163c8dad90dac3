"""The fuzzer on every decoder and on a bookie's port, from a fixed seed, so that a red run can be repeated.

Fresh seeds: ``python -m tests.fuzz --minutes N``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bookie.journal.replay import JournalScan
from bookie.requests.permissions import Access, Decision
from tests.fuzz import port
from tests.fuzz.__main__ import main
from tests.fuzz.engine import Target, fuzz_cases
from tests.fuzz.http_port import fuzz_http, replay_http
from tests.fuzz.mutate import INPUT_BYTES_MAX, Mutator
from tests.fuzz.port import GUARDED_PORT, fuzz_port, inputs_of, replay_port
from tests.fuzz.storage_targets import our_entry_log, our_journal, scan_entry_log
from tests.fuzz.targets import TARGETS

SEED = 12
CASES = 1000  # of each decoder; make soak tries more
CASES_OF_SLOW = {"bookie_config": 250}  # 17 ms a case under the tracer
CASES_OF_CHECK = 25


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_decoder_keeps_its_promises_for_many_inputs(name: str, tmp_path: Path) -> None:
    failures = fuzz_cases(TARGETS[name], SEED, CASES_OF_SLOW.get(name, CASES))
    assert not failures, "\n".join(failure.report(tmp_path) for failure in failures)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_target_takes_its_seeds_and_some_changes(name: str, tmp_path: Path) -> None:
    failures = fuzz_cases(TARGETS[name], SEED + 1, CASES_OF_CHECK)
    assert not failures, "\n".join(failure.report(tmp_path) for failure in failures)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_a_bookie_serves_a_good_client_beside_hostile_connections(seed: int, tmp_path: Path) -> None:
    failures = fuzz_port(seed, 600)
    assert not failures, "\n".join(failure.report(tmp_path) for failure in failures)


@pytest.mark.slow
def test_a_bookie_serves_a_good_client_beside_hostile_http(tmp_path: Path) -> None:
    failures = fuzz_http(SEED, 1500)
    assert not failures, "\n".join(failure.report(tmp_path) for failure in failures)


@pytest.mark.slow
def test_a_bookie_serves_a_good_client_beside_some_hostile_http(tmp_path: Path) -> None:
    failures = fuzz_http(SEED + 1, 60)
    assert not failures, "\n".join(failure.report(tmp_path) for failure in failures)


def test_the_fuzzer_notices_an_error_that_a_request_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise KeyError(1)

    monkeypatch.setattr("bookie.http.exchange.head_of", fail)
    reason = replay_http(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert reason is not None
    assert "an error ended" in reason


@pytest.mark.slow
def test_a_bookie_with_permissions_serves_a_good_client_and_gives_no_stranger_its_entries(
    tmp_path: Path,
) -> None:
    failures = fuzz_port(SEED, 300, GUARDED_PORT)
    assert not failures, "\n".join(failure.report(tmp_path) for failure in failures)


@pytest.mark.slow
def test_the_fuzzer_notices_a_permission_that_is_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replay_port(b"", GUARDED_PORT) is None

    async def grant(name: str, ledger_ids: Sequence[int]) -> dict[int, Decision]:
        return {ledger_id: Decision(Access.READ) for ledger_id in ledger_ids}

    decide = port.decide

    async def forget(name: str, ledger_ids: Sequence[int]) -> Mapping[int, Decision]:
        return await (grant if name == "stranger" else decide)(name, ledger_ids)

    monkeypatch.setattr(port, "decide", forget)
    assert replay_port(b"", GUARDED_PORT) == "a peer without the right to read a ledger got an entry of it"


@pytest.mark.slow
def test_hostile_connections_from_a_seed_are_the_same_again() -> None:
    assert inputs_of(3, 40) == inputs_of(3, 40) != inputs_of(4, 40)
    assert replay_port(b"GET / HTTP/1.1\r\n\r\n") is None


# The fuzzer finds what it is there to find.


def planted(decode: Any, **fields: Any) -> Target:
    return Target(name="planted", seeds=lambda: [b"seed 123"], decode=decode, errors=(ValueError,), **fields)


def crash(data: bytes) -> None:
    if data[:4] == b"seed" and b"9" * 20 in data:
        raise IndexError("list index out of range")


def grow(data: bytes) -> int:
    return len(bytes(4_000_000)) if data[:1] != b"s" else 0


def spin(data: bytes) -> None:
    """Our code runs for long: a scan of an entry log, again and again."""
    log = our_entry_log()
    for _ in range(len(data) * 300):
        scan_entry_log(log)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decode", "reason"),
    [(crash, "raised IndexError"), (grow, "bytes of memory, at most"), (spin, "ran for more than")],
)
def test_a_planted_bug_is_found_and_its_report_replays_it(
    decode: Any,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = planted(decode)
    cases = 10 if decode is spin else 800
    found = [failure for failure in fuzz_cases(target, 1, cases) if reason in failure.reason]
    assert found
    report = found[0].report(tmp_path)
    assert "seed 1" in report
    (path,) = [path for path in (tmp_path / "failures").iterdir() if str(path) in report]
    monkeypatch.setitem(TARGETS, "planted", target)
    assert main(["--target", "planted", "--input", str(path)]) == 1
    assert reason in capsys.readouterr().out
    assert main(["--target", "planted", "--hex", found[0].data.hex()]) == 1


def test_a_documented_error_is_no_failure() -> None:
    def refuse(data: bytes) -> None:
        raise ValueError("no")

    assert fuzz_cases(planted(refuse), 1, 50) == []


@pytest.mark.slow
def test_the_corpus_keeps_inputs_that_reach_new_lines_and_a_later_run_reads_them(tmp_path: Path) -> None:
    assert fuzz_cases(TARGETS["ledger_data"], 5, 300, tmp_path) == []
    kept = sorted(tmp_path.glob("ledger_data/*"))
    assert kept
    assert fuzz_cases(TARGETS["ledger_data"], 6, len(kept) + 1, tmp_path) == []
    assert sorted(tmp_path.glob("ledger_data/*")) == kept


def test_one_seed_gives_the_same_inputs_again() -> None:
    seeds = [our_journal(), b"text;1;2"]
    first, again = Mutator(random.Random(1)), Mutator(random.Random(1))
    inputs = [first.mutate(seeds) for _ in range(300)]
    assert inputs == [again.mutate(seeds) for _ in range(300)]
    assert max(map(len, inputs)) <= INPUT_BYTES_MAX
    assert len(set(inputs)) > 250


def test_the_seeds_of_our_files_are_read_whole() -> None:
    """A seed that no decoder accepts would fuzz nothing but the first check."""
    data = our_journal()
    scan = JournalScan(lambda size, at: data[at : at + size], len(data), 5)
    assert [len(records) for records in scan.groups()] == [3, 2]


def test_the_command_lists_targets_and_refuses_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert {"journal", "v3_request", "port"} <= set(capsys.readouterr().out.split())
    assert main(["--target", "nothing"]) == 2


def test_the_command_runs_a_number_of_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", "dlsn", "--cases", "30", "--seed", "4", "--corpus", str(tmp_path)]) == 0
    assert "30 inputs of 1 decoders" in capsys.readouterr().out
