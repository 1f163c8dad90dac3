"""For Spark's workers: moves zip files to the end of the path, because PySpark in a zip imports 3 times
slower."""

import sys

sys.path.sort(key=lambda entry: entry.endswith(("/pyspark.zip", "-src.zip")))
