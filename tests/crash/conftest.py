"""Lets the tests here import ``crash_appender``, which is a program as well."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
