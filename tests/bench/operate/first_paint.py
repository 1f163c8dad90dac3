"""The first paint of a bookie's page, beside that of a trivial page in the same browser.

Always: the two pages are loaded in turns, without a cache. The first load of each, in which the browser
starts processes, is left out.
"""

from __future__ import annotations

import http.server
import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from dlog.cluster import open_local_cluster
from tests.bench.operate.browser import HOST, Browser, open_browser

TRIVIAL = b"<!doctype html><meta charset=utf-8><title>floor</title><p>A trivial page."
BOOKIES = 3


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(TRIVIAL)))
        self.end_headers()
        self.wfile.write(TRIVIAL)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Write nothing: standard error is for notes."""


@contextmanager
def trivial_page() -> Iterator[str]:
    """Serve the trivial page on loopback; yield its address."""
    with http.server.ThreadingHTTPServer((HOST, 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


async def measure_paint(directory: Path, loads: int) -> list[dict[str, object]]:
    """The rows of the page and of the trivial one: medians of this many loads.

    Raises:
        BenchError: The browser did not start, or did not paint.
        dlog.cluster.ClusterError: The cluster did not start.
    """
    async with (
        open_local_cluster(directory / "page-cluster", bookie_count=BOOKIES, has_page=True) as cluster,
        open_browser(directory / "browser") as browser,
    ):
        url = cluster.state.page_url
        assert url is not None, "the cluster was asked for a page"  # ``has_page`` above
        token = (await trio.Path(cluster.paths.token).read_text()).strip()
        with trivial_page() as floor:
            pages = {"dlog": f"{url}#token={token}", "trivial page": floor}
            seen = await trio.to_thread.run_sync(_load_in_turns, browser, pages, loads)
    return paint_rows(seen)


def _load_in_turns(
    browser: Browser, pages: Mapping[str, str], loads: int
) -> dict[str, list[dict[str, float]]]:
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in pages}
    for _ in range(loads + 1):
        for name, url in pages.items():
            seen[name].append(browser.paints(url))
    return {name: times[1:] for name, times in seen.items()}


def paint_rows(seen: Mapping[str, Sequence[Mapping[str, float]]]) -> list[dict[str, object]]:
    """The medians of each page."""
    return [
        {
            "system": name,
            "loads": len(times),
            **{key: round(statistics.median(each[key] for each in times), 1) for key in times[0]},
        }
        for name, times in seen.items()
    ]
