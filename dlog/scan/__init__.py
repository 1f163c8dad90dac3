"""A log as a table: its records as a stream of Arrow record batches, for DuckDB, Polars, pandas and the like.

Inside: the columns of a scan (``schema``), the scan (``scan``), files (``files``), a
query of DuckDB (``query``).
Not inside: reading (``dlog.read``), the columns of records themselves (``dlog.read.arrow_columns``).
Entry point: ``Namespace.scan``. Needs the extra ``scan``.
"""

from dlog.scan.errors import PayloadFieldsError
from dlog.scan.scan import Scan

__all__ = ["PayloadFieldsError", "Scan"]
