"""The list of Apache's configuration keys in the tests is the one in Apache's classes.

Run as a program, the file writes the list again; then ``python -m tests.docs.test_configuration_page`` writes
the table of the keys.
"""

from __future__ import annotations

import glob
import re
import subprocess

import pytest

from tests.interop.conftest import VERSIONS
from tests.interop.jars import class_path, find_program
from tests.unit.bookie.config.apache_keys import LIST, apache_keys

CLASSES = ("AbstractConfiguration", "ServerConfiguration", "ClientConfiguration")
# Constants that are values of keys, or a property of the system, and no keys.
NOT_KEYS = {"", "available", "standard", "system", "org.apache.bookkeeper.conf.readsystemproperties"}


@pytest.mark.interop
def test_the_list_of_keys_has_every_key_of_apaches_classes() -> None:
    listed = apache_keys()
    for version in VERSIONS:
        keys = keys_of(version)
        assert "metastoreImplClass" in keys
        assert keys.items() <= listed.items(), version


def keys_of(version: str) -> dict[str, str]:
    """The keys in the configuration classes of one release, each with the first class that has it."""
    jars = class_path(version).rpartition(":")[2]
    (jar,) = glob.glob(f"{jars[:-1]}bookkeeper-server-{version}.jar")
    keys: dict[str, str] = {}
    for name in CLASSES:
        shown = subprocess.run(
            [
                find_program("javap"),
                "-constants",
                "-p",
                "-cp",
                jar,
                f"org.apache.bookkeeper.conf.{name}",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,  # a superclass in another jar is a complaint, not a failure
        )
        for key in re.findall(r'static final java\.lang\.String \w+ = "([^"]*)"', shown.stdout):
            if key not in NOT_KEYS:
                keys.setdefault(key, name)
    return keys


if __name__ == "__main__":
    found: dict[str, str] = {}
    for one in VERSIONS:
        found = keys_of(one) | found
    LIST.write_text("".join(f"{key} {found[key]}\n" for key in sorted(found)), "utf-8")
