"""The page of a local cluster in a headless Chromium, while a bookie dies and its ledgers are restored."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import dlog
from dlog.cluster.layout import LEDGERS_ROOT, bookie_id
from dlog.cluster.local import open_local_cluster
from ledger.balancing.run_node import RunningBalance, held_run
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.replication.marks import UnderReplicatedLedgers
from tests.browser import open_browser, until

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]

MARKUP = "<img src=x onerror=\"document.title='injected'\">"
TEXT_OF = "return document.getElementById(arguments[0])?.textContent"
CARDS = "return [...document.querySelectorAll('.bookie')].map(each => each.textContent)"
FOCUSED = "return document.activeElement.textContent"


async def test_a_viewer_sees_ledgers_fall_short_when_a_bookie_dies_and_recover(tmp_path: Path) -> None:
    with trio.fail_after(150):
        async with open_local_cluster(tmp_path, bookie_count=4, has_page=True, has_recovery=True) as cluster:
            assert await cluster.terminate(3)  # the spare bookie, until the number on the page has risen
            async with dlog.open_namespace(cluster.uri) as namespace:
                await namespace.create_log("shop/orders")
                await namespace.create_log("shop/returns")
                async with namespace.open_writer("shop/orders") as writer:
                    position = await writer.append(b"an order")
                    await writer.append(MARKUP.encode())
                    await writer.append(b"\xff\x00\x01")
                await namespace.cursors("shop/orders").set(MARKUP.replace("/", ""), position)
            url = cluster.state.page_url
            assert url is not None
            with open_browser() as browser:
                # Without the token the page shows nothing but the question for it.
                browser.open(url)
                await until(browser, "return !document.getElementById('token-form').hidden")
                assert browser.run(CARDS) == []
                browser.press(cluster.paths.token.read_text().strip())
                browser.press("Enter")
                await until(browser, f"{TEXT_OF} === '3 of 4'", "tile-bookies")
                assert browser.run("return location.href") == url
                assert browser.run(TEXT_OF, "under-replicated") == "0"

                # The keyboard alone: filter, move, open, read, explain, close.
                await until(browser, "return document.querySelectorAll('#streams button').length === 2")
                browser.run("document.activeElement.blur()")
                browser.press("/")
                assert browser.run("return document.activeElement.id") == "filter"
                browser.press("shop")
                browser.press("Tab")
                assert browser.run(FOCUSED) == "shop/orders"
                browser.press("ArrowDown")
                assert browser.run(FOCUSED) == "shop/returns"
                browser.press("ArrowUp")
                browser.press("Enter")
                await until(browser, "return document.querySelectorAll('#cursors tr').length")
                assert browser.run(FOCUSED) == "shop/orders"
                browser.run("document.getElementById('from').focus()")
                browser.press("Enter")
                await until(browser, "return document.querySelectorAll('#records li').length === 3")

                # Names and payloads of strangers stay text.
                shown = browser.run(
                    "return [...document.querySelectorAll('#records pre')].map(e => e.textContent)"
                )
                assert shown == ["an order", MARKUP, "ff0001"]
                assert MARKUP.replace("/", "") in browser.run(TEXT_OF, "cursors")
                assert browser.run("return document.querySelectorAll('main img').length") == 0
                assert browser.run("return document.title") == "DLog"

                browser.run("document.getElementById('stream-explain').focus()")
                browser.press("Enter")
                await until(browser, f"{TEXT_OF}.includes('is 3 records behind')", "reasons-list")
                browser.press("Escape")
                await until(browser, "return !document.getElementById('reasons').open")
                assert browser.run("return document.activeElement.id") == "stream-explain"
                browser.press("Escape")
                assert browser.run("return document.getElementById('stream').hidden")

                lost = bookie_id(cluster.state.bookies[2])
                cluster.kill(2)
                await until(browser, f"{TEXT_OF} === '2 of 4'", "tile-bookies")
                await until(browser, f"return Number(({_function(TEXT_OF)})('under-replicated')) >= 1")
                cards = browser.run(CARDS)
                assert [card for card in cards if lost in card and "away" in card]
                assert f"bookie {lost} is away" in browser.run(TEXT_OF, "announcer")
                await until(browser, "return document.querySelectorAll('#short-ledgers tr').length")
                browser.run("document.querySelector('#short-ledgers button').focus()")
                browser.press("Enter")
                await until(
                    browser, f"{TEXT_OF}.includes('a bookie is away: ' + arguments[1])", "reasons-list", lost
                )
                browser.press("Escape")

                # Auto-recovery copies the replicas to the spare bookie; the lost one stays away.
                await cluster.restart(3)
                await until(browser, f"return ({_function(TEXT_OF)})('under-replicated') === '0'")
                assert browser.run(TEXT_OF, "tile-bookies") == "3 of 4"
                assert [card for card in browser.run(CARDS) if lost in card and "away" in card]
                # The guard's refusal of the page without a token, and nothing else.
                assert [each for each in browser.errors() if "401" not in each] == []


async def test_a_viewer_sees_a_running_balance(tmp_path: Path) -> None:
    run = RunningBalance("ops1" + MARKUP, 1_700_000_000_000, 96, 17, 50_000_000_000, 9_000_000_000)
    with trio.fail_after(90):
        async with open_local_cluster(tmp_path, bookie_count=1, has_page=True) as cluster:
            url = cluster.state.page_url
            assert url is not None
            async with open_zookeeper_store(cluster.zookeeper_hosts) as store:
                await UnderReplicatedLedgers(store, LEDGERS_ROOT).prepare()
                with open_browser() as browser:
                    browser.open(f"{url}#token={cluster.paths.token.read_text().strip()}")
                    await until(browser, "return !document.getElementById('main').hidden")
                    hidden = "return document.getElementById('balance-note').hidden"
                    assert browser.run(hidden)
                    async with held_run(store, LEDGERS_ROOT, run):
                        await until(browser, f"{TEXT_OF}.includes('17 of 96 moves')", "balance-note")
                        told = browser.run(TEXT_OF, "balance-note")
                        assert f"A balance runs on ops1{MARKUP}" in told
                        assert browser.run("return document.title") == "DLog"
                    await until(browser, hidden)
                    assert [each for each in browser.errors() if "401" not in each] == []


def _function(body: str) -> str:
    return f"function() {{ {body} }}"
