"""A page whose namespace fails: it says why, and asks again later. No failure ends its task."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import dlog
from dlog.page import Page
from ledger.runtime.tasks.failure_domain import contained_failures


@pytest.mark.parametrize(
    ("fault", "is_ours", "reason"),
    [
        (dlog.LogUnavailableError("the cluster is away"), True, "the cluster is away"),
        (ExceptionGroup("of a nursery", [KeyError("a\nfault")]), False, r"'a\nfault'"),
        (MemoryError(), False, "MemoryError"),
    ],
)
async def test_a_failure_is_the_answer_and_the_next_question_tries_again(
    fault: Exception, is_ours: bool, reason: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def fail(_: Page) -> None:
        raise fault

    monkeypatch.setattr(Page, "_keep_open", fail)
    page, before = Page("file:///n", shows_records=False), contained_failures["page"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.keep)
        for number in (1, 2):
            reply = await page.answer("/api/page/overview", {})
            assert reply.status == 503
            assert page._failure == reason
            reported = contained_failures["page"] - before
            assert reported == 0 if is_ours else reported >= number
            await trio.sleep(2)  # the same question within a second gets the same answer
        nursery.cancel_scope.cancel()
