"""The loop: mutate, run, compare with the limits, keep inputs that reach new code, report failures.

Inside: the corpus and its directory, the report with a command that replays. Not inside: mutation
(``mutate``), measuring (``measure``), the targets.
Always: a run with a number of cases, a seed and an empty corpus is the same on every machine.
"""

from __future__ import annotations

import hashlib
import random
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from tests.fuzz.measure import Cost, TooManyStepsError, measured
from tests.fuzz.mutate import INPUT_BYTES_MAX, Mutator

KEPT_BYTES_MAX = 4096  # longer inputs stay out of the corpus
HEX_BYTES_MAX = 120  # shorter inputs are printed; each failing input is in a file too


@attrs.frozen(kw_only=True)
class Target:
    """One decoder: what it takes, which errors it documents, what a byte of its input may cost."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = ()
    tokens: Sequence[bytes] = ()
    repair: Callable[[bytes], bytes] | None = (
        None  # sets lengths and checksums right, so that more is decoded
    )
    input_bytes_max: int = INPUT_BYTES_MAX
    memory_base: int = 512 * 1024
    memory_per_byte: int = 200
    lines_base: int = 5_000
    lines_per_byte: int = 60

    def verdict(self, data: bytes) -> tuple[str | None, str, Cost]:
        """(why the input fails or None, the kind of its result, its cost)."""
        lines_max = self.lines_base + self.lines_per_byte * len(data)
        memory_max = self.memory_base + self.memory_per_byte * len(data)
        error, cost = measured(lambda: self.decode(data), lines_max)
        if cost.peak_bytes > memory_max:
            # The first call may import a module, and another thread may allocate: look at the cost again.
            error, cost = measured(lambda: self.decode(data), lines_max)
        kind = "value" if error is None else type(error).__name__
        if isinstance(error, TooManyStepsError):
            return f"ran for {error}", kind, cost
        if error is not None and not isinstance(error, self.errors):
            return f"raised {kind}: {str(error)[:200]}", kind, cost
        if cost.peak_bytes > memory_max:
            return f"took {cost.peak_bytes} bytes of memory, at most {memory_max}", kind, cost
        return None, kind, cost


@attrs.frozen
class Failure:
    """An input that a decoder did not survive as documented."""

    target: str
    data: bytes
    reason: str
    seed: int

    def report(self, corpus: Path) -> str:
        """What happened, with a command that does it again. Writes the input to a file."""
        path = corpus / "failures" / f"{self.target}-{name_of(self.data)}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        command = f"python -m tests.fuzz --target {self.target} --input {path}"
        if len(self.data) <= HEX_BYTES_MAX:
            command += f"\n  or: python -m tests.fuzz --target {self.target} --hex '{self.data.hex()}'"
        return (
            f"FAILED {self.target}: {self.reason}\n  {len(self.data)} bytes, seed {self.seed}\n"
            f"  replay: {command}"
        )


def name_of(data: bytes) -> str:
    """The file name of an input."""
    return hashlib.sha256(data).hexdigest()[:16]


class Fuzzer:
    """Fuzzes one target.

    Args:
        corpus: The directory where interesting inputs are kept, and from which they are read; None for none.
    """

    def __init__(self, target: Target, seed: int, corpus: Path | None = None) -> None:
        self.target, self.seed = target, seed
        self.cases = 0
        self.kept = 0
        self._rng = random.Random(f"{seed} {target.name}")
        self._mutator = Mutator(self._rng, target.tokens)
        self._corpus = None if corpus is None else corpus / target.name
        self._seen: set[object] = set()
        self._seeds = [data for data in target.seeds() if len(data) <= INPUT_BYTES_MAX]
        assert self._seeds, f"{target.name} has no seeds"
        self._fresh = list(self._seeds)  # run as they are first, so that they are not new later
        if self._corpus is not None and self._corpus.is_dir():
            self._fresh += [path.read_bytes() for path in sorted(self._corpus.iterdir())]

    def step(self) -> Failure | None:
        """Run one input; return its failure, if it fails."""
        self.cases += 1
        is_mutated = not self._fresh
        if is_mutated:
            data = self._mutator.mutate(self._seeds)
            if self.target.repair is not None and self._rng.random() < 0.7:
                data = self.target.repair(data)
            data = data[: self.target.input_bytes_max]
        else:
            data = self._fresh.pop(0)
        reason, kind, cost = self.target.verdict(data)
        if reason is not None:
            return Failure(self.target.name, data, reason, self.seed)
        found = {*cost.covered, kind} - self._seen
        if found:
            self._seen |= found
            if is_mutated and len(data) <= KEPT_BYTES_MAX:
                self._keep(data)
        return None

    def _keep(self, data: bytes) -> None:
        self.kept += 1
        self._seeds.append(data)
        if self._corpus is not None:
            self._corpus.mkdir(parents=True, exist_ok=True)
            (self._corpus / name_of(data)).write_bytes(data)


def fuzz_cases(target: Target, seed: int, cases: int, corpus: Path | None = None) -> list[Failure]:
    """Run so many inputs; return the failures, one for each reason."""
    fuzzer = Fuzzer(target, seed, corpus)
    failures: dict[str, Failure] = {}
    with tracing_memory():
        for _ in range(cases):
            if (failure := fuzzer.step()) is not None:
                failures.setdefault(failure.reason, failure)
    return list(failures.values())


class tracing_memory:  # noqa: N801 - used as a function
    """``tracemalloc`` is on inside ``with``, also if it was on before."""

    def __enter__(self) -> None:
        self._was_on = tracemalloc.is_tracing()
        tracemalloc.start()

    def __exit__(self, *exc: object) -> None:
        if not self._was_on:
            tracemalloc.stop()
