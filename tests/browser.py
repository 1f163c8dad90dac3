"""A headless Chromium for tests, driven over the WebDriver protocol with ``http.client``.

Source: W3C WebDriver.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Escape": "\ue00c", "Enter": "\ue007", "Tab": "\ue004", "ArrowDown": "\ue015", "ArrowUp": "\ue013"}
REPLY_S = 30
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1100",
)


class Browser:
    """One window. Each call blocks for at most ``REPLY_S``."""

    def __init__(self, port: int, profile: Path, *arguments: str) -> None:
        self._port = port
        options = {
            "args": [*ARGUMENTS, f"--user-data-dir={profile}", *arguments],
            "binary": shutil.which("chromium"),
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        reply = self._request("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{reply['sessionId']}"

    def open(self, url: str) -> None:
        """Load a page."""
        self._request("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """The value that the body of a JavaScript function returns."""
        body = {"script": script, "args": list(arguments)}
        return self._request("POST", f"{self._session}/execute/sync", body)

    def press(self, keys: str) -> None:
        """Press a key of ``KEYS``, or the keys of a text, where the focus is."""
        active = self._request("GET", f"{self._session}/element/active")[ELEMENT]
        text = KEYS.get(keys, keys)
        self._request("POST", f"{self._session}/element/{active}/value", {"text": text})

    def errors(self) -> list[str]:
        """What the page wrote into the console since the last call."""
        found = self._request("POST", f"{self._session}/se/log", {"type": "browser"})
        return [each["message"] for each in found if each["level"] == "SEVERE"]

    def picture(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._request("GET", f"{self._session}/screenshot"))

    def close(self) -> None:
        """End the browser."""
        self._request("DELETE", self._session)

    def _request(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REPLY_S)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{value['error']}: {value['message']}")
        return value


@contextlib.contextmanager
def open_browser(*arguments: str) -> Iterator[Browser]:
    """A browser with a profile of its own until the end of the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        driver = subprocess.Popen(
            ["chromedriver", "--port=0", "--allowed-ips=127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            browser = Browser(_port_of(driver), Path(directory) / "profile", *arguments)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            # The group: a Chromium that does not reply would stay.
            os.killpg(driver.pid, signal.SIGKILL)
            driver.communicate()


def _port_of(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        if found := re.search(r"started successfully on port (\d+)", line):
            return int(found.group(1))
    raise AssertionError("chromedriver did not start")


async def until(browser: Browser, script: str, *arguments: object) -> Any:
    """Wait until a script returns something true; return it. The caller bounds the time."""
    while True:
        found = await trio.to_thread.run_sync(lambda: browser.run(script, *arguments))
        if found:
            return found
        await trio.sleep(0.1)
