"""For this folder: the log laid out by hand is on the path, its assertions rewritten as those of tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
pytest.register_assert_rewrite("log_by_hand")
