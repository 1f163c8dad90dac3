"""The data source of Spark is looked up by name: its package stands above this one.

Inside: registering it in a session. Spark finds an installed source by itself, but not that of a checkout.
"""

from __future__ import annotations

import importlib
from typing import Any

SOURCE = "spark_integration"


def register_source(spark: Any) -> None:
    """Make the formats of ``spark_integration`` known to a ``SparkSession``."""
    importlib.import_module(SOURCE).register(spark)
