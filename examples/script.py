"""A script without async: write the lines of stdin to a log, many at once, then count the log's lines.

seq 1000 | python examples/script.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import dlog.blocking

uri = Path(sys.argv[1]).absolute().as_uri()

with dlog.blocking.open_namespace(uri) as namespace:
    with namespace.open_writer("lines", create=True) as log:
        pending = [log.submit(line.rstrip("\n").encode()) for line in sys.stdin]
        positions = [future.result() for future in pending]
        print(f"{len(positions)} lines durable", f"up to {positions[-1]}" if positions else "")
    with namespace.open_reader("lines", follow=False) as reader:
        print(f"{sum(1 for _ in reader)} lines in the log")
