"""Shared by all tests: Hypothesis without deadlines, since a loaded machine is no failure; assertions of
helpers that tell what they compared, as those of tests do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "dlog", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dlog")

# Before the conftest files of these folders, which put them on the path, import any of them.
for _folder in ("crash", "interop", "property", "spark"):
    _modules = {each.stem for each in Path(__file__).with_name(_folder).glob("*.py")}
    pytest.register_assert_rewrite(*(each for each in _modules if not each.startswith(("test_", "conftest"))))
