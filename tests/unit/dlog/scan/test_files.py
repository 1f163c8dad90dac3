"""Files of scans: CSV holds what is text."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dlog.scan.files import CsvFile


def test_csv_refuses_nested_columns(tmp_path: Path) -> None:
    schema = pa.schema([("tags", pa.list_(pa.string()))])
    with pytest.raises(ValueError, match="column 'tags' is list"):
        CsvFile(tmp_path / "file", schema)
