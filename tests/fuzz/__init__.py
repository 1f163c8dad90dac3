"""A fuzzer of every decoder and of a bookie's port. ``python -m tests.fuzz --help``; README.md explains it.

Inside: mutation (``mutate``), what is fuzzed (``targets``, ``wire_targets``, ``storage_targets``, ``port``),
and the loop that keeps inputs and reports failures (``engine``, ``measure``).
"""
