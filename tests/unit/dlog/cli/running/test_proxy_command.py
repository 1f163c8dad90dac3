"""`dlog proxy`: what it prints, how it ends, and names that it refuses."""

# covers: dlog/cli/running/proxy.py

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dlog.blocking

pytestmark = pytest.mark.slow


def proxy(uri: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dlog", "proxy", "--uri", uri, *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def test_it_says_how_many_logs_it_owns_and_leaves_them_after_sigterm(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/ns"
    with dlog.blocking.open_namespace(uri) as namespace:
        namespace.create_log("shop/orders")
        namespace.create_log("web/hits")
        with proxy(uri, "shop/*", "--name", "east") as process:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, b"")
            assert any(b"proxy east: owns 1 log\n" in line for line in lines)
            with namespace.open_writer("shop/orders", shared=True) as writer:
                assert not writer.is_owner
                writer.append(b"one")
                process.send_signal(signal.SIGTERM)
                writer.append(b"two")
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        with namespace.open_reader("shop/orders", follow=False) as reader:
            assert [record.payload for record in reader] == [b"one", b"two"]


@pytest.mark.parametrize("name", ["", "a/b", ".", "a\nb", "a" * 256])
def test_a_name_that_can_be_no_node_is_refused(tmp_path: Path, name: str) -> None:
    with proxy(f"file://{tmp_path}/ns", "--name", name) as process:
        assert process.stderr is not None
        assert b"a name has 1 to 255 printable characters" in process.stderr.read()
    assert process.returncode == 2
