"""For Spark's workers: they would import PySpark from a zip without byte code, 3 times slower."""

import sys

sys.path.sort(key=lambda entry: entry.endswith(("/pyspark.zip", "-src.zip")))
