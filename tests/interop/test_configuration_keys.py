"""The list of Apache's configuration keys in the tests is the one in Apache's classes."""

from __future__ import annotations

import glob
import re
import subprocess
from pathlib import Path

import pytest

from tests.interop.conftest import VERSIONS
from tests.interop.jars import class_path, find_program

LIST = Path(__file__).parents[1] / "unit" / "bookie" / "config" / "apache_keys.txt"
CLASSES = ("AbstractConfiguration", "ServerConfiguration", "ClientConfiguration")
# Constants that are values of keys, or a property of the system, and no keys.
NOT_KEYS = {"", "available", "standard", "system", "org.apache.bookkeeper.conf.readsystemproperties"}


@pytest.mark.interop
def test_the_list_of_keys_has_every_key_of_apaches_classes() -> None:
    listed = set(LIST.read_text("utf-8").split())
    for version in VERSIONS:
        keys = keys_of(version)
        assert "metastoreImplClass" in keys
        assert keys - listed == set(), version


def keys_of(version: str) -> set[str]:
    """The names of keys in the configuration classes of one release."""
    jars = class_path(version).rpartition(":")[2]
    (jar,) = glob.glob(f"{jars[:-1]}bookkeeper-server-{version}.jar")
    names = [f"org.apache.bookkeeper.conf.{name}" for name in CLASSES]
    shown = subprocess.run(
        [find_program("javap"), "-constants", "-p", "-cp", jar, *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,  # a superclass in another jar is a complaint, not a failure
    )
    return set(re.findall(r'static final java\.lang\.String \w+ = "([^"]*)"', shown.stdout)) - NOT_KEYS
