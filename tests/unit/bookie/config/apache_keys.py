"""Apache's configuration keys, as ``tests.interop.test_configuration_keys`` found them in its classes."""

from __future__ import annotations

from pathlib import Path

LIST = Path(__file__).with_name("apache_keys.txt")  # key, class; one a line


def apache_keys() -> dict[str, str]:
    """Each key of releases 4.17 and 4.18, with its class."""
    return dict(line.split() for line in LIST.read_text("utf-8").splitlines())
