"""Lets the tests here import the parts of the corruption matrix: ``damage`` and ``damaged_store``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
