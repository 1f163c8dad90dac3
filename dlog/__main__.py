"""``python -m dlog``: the command ``dlog``."""

import sys

from dlog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
