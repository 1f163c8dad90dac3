"""The data source of Spark is looked up by name: its package stands above this one.

Inside: registering it in a session, the positions in a checkpoint. Spark finds an installed source by itself,
but not that of a checkout.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from namespace.dlsn import DLSN

SOURCE = "spark_integration"


def register_source(spark: Any) -> None:
    """Make the formats of ``spark_integration`` known to a ``SparkSession``."""
    importlib.import_module(SOURCE).register(spark)


def committed_positions(directory: Path) -> dict[str, DLSN]:
    """See ``spark_integration.checkpoint``."""
    found: dict[str, DLSN] = importlib.import_module(f"{SOURCE}.checkpoint").committed_positions(directory)
    return found
