"""A headless Chromium of the benchmark's own, driven through chromedriver.

Always: both listen on loopback only and end with the benchmark, also when it is killed. Each call blocks for
at most ``REPLY_S``; call it in a thread.

Source: W3C WebDriver; W3C Paint Timing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trio

from dlog.cluster import process
from dlog.cluster.guardian import open_guardian
from dlog.cluster.ports import free_ports
from tests.bench.work.link import BenchError

HOST = "127.0.0.1"
REPLY_S = 30
START_S = 30
PAINT_S = 15
POLL_S = 0.05
PACKAGES = "chromium and chromedriver: `apt-get install chromium chromium-driver`"
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1100",
)
_PAINTS = """
const found = Object.fromEntries(performance.getEntriesByType("paint").map(e => [e.name, e.startTime]));
const [page] = performance.getEntriesByType("navigation");
return page && page.loadEventEnd > 0 && "first-contentful-paint" in found
    ? {first_paint_ms: found["first-paint"], first_contentful_paint_ms: found["first-contentful-paint"],
       load_ms: page.loadEventEnd}
    : null;
"""


def find_missing() -> str | None:
    """The packages to install, or None if nothing is missing."""
    return None if shutil.which("chromium") and shutil.which("chromedriver") else PACKAGES


class Browser:
    """One window, without a cache of pages."""

    def __init__(self, port: int, profile: Path) -> None:
        self._port = port
        options = {
            "args": [*ARGUMENTS, f"--user-data-dir={profile}"],
            "binary": shutil.which("chromium"),
        }
        wanted = {"browserName": "chrome", "goog:chromeOptions": options}
        reply = self._request("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{reply['sessionId']}"
        self._command("Network.enable", {})
        self._command("Network.setCacheDisabled", {"cacheDisabled": True})

    def paints(self, url: str) -> dict[str, float]:
        """Load a page; return its times in milliseconds from the start of the navigation.

        Raises:
            BenchError: The page was not painted within ``PAINT_S``.
        """
        self._request("POST", f"{self._session}/url", {"url": url})
        deadline = time.monotonic() + PAINT_S
        while time.monotonic() < deadline:
            found = self._request("POST", f"{self._session}/execute/sync", {"script": _PAINTS, "args": []})
            if found:
                return dict(found)
            time.sleep(POLL_S)
        raise BenchError(f"chromium did not paint {url} within {PAINT_S} s")

    def close(self) -> None:
        """End the browser."""
        self._request("DELETE", self._session)

    def _command(self, name: str, parameters: dict[str, object]) -> None:
        self._request("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def _request(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=REPLY_S)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        except OSError as exc:
            raise BenchError(f"chromedriver does not reply: {exc}") from exc
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise BenchError(f"chromedriver: {value['error']}: {value['message']}")
        return value


@contextlib.asynccontextmanager
async def open_browser(directory: Path) -> AsyncIterator[Browser]:
    """A browser with a profile in a new directory, until the end of the block.

    Raises:
        BenchError: It did not start.
    """
    driver = shutil.which("chromedriver")
    assert driver is not None, "the caller asked find_missing"  # as it says
    await trio.Path(directory).mkdir()
    (port,) = free_ports(1, random.Random(), host=HOST)
    command = [driver, f"--port={port}", "--allowed-ips=127.0.0.1"]
    with open_guardian() as group:  # its end kills a Chromium that does not reply, too
        started = process.start_detached(command, directory / "chromedriver.log", group=group)
        await _wait_ready(port, started)
        browser = await trio.to_thread.run_sync(Browser, port, directory / "profile")
        try:
            yield browser
        finally:
            with trio.CancelScope(shield=True), contextlib.suppress(BenchError):
                await trio.to_thread.run_sync(browser.close)


async def _wait_ready(port: int, driver: process.ProcessId) -> None:
    with trio.move_on_after(START_S):
        while process.is_alive(driver):
            with contextlib.suppress(OSError):
                stream = await trio.open_tcp_stream(HOST, port)
                await stream.aclose()
                return
            await trio.sleep(POLL_S)
    raise BenchError(f"chromedriver did not start within {START_S} s")
