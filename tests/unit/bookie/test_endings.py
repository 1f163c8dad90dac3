"""What may end a bookie, and that the page lists the same."""

from __future__ import annotations

import re

import pytest

from bookie.endings import ENDINGS, BookieExit, ending_of, exit_code_of
from bookie.errors import DirectoryInUseError, JournalCorruptError
from bookie.main import run_bookie
from ledger.metadata_store.errors import SessionExpiredError
from tests.places import ROOT

ROW = re.compile(r"^\| `(\w+)` \| (\d) \| (at any time|before it serves) \| (.+) \|$", re.MULTILINE)


def test_the_page_lists_what_ends_a_bookie() -> None:
    page = (ROOT / "docs/running.md").read_text()
    section = page.split("## What ends a bookie\n")[1].split("\n## ")[0]
    assert ROW.findall(section) == [
        (
            one.error.__name__,
            str(int(one.exit_code)),
            "at any time" if one.while_serving else "before it serves",
            one.reason,
        )
        for one in ENDINGS
    ]


def test_the_program_says_that_it_raises_these() -> None:
    assert run_bookie.__doc__ is not None
    raised = set(re.findall(r"\w+Error", run_bookie.__doc__))
    listed = {one.error.__name__ for one in ENDINGS}
    assert raised <= listed | {"StoreUnreachableError"}  # a subclass of ``MetadataError``


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DirectoryInUseError("x"), BookieExit.DISKS),
        (JournalCorruptError("x"), BookieExit.DISKS),
        (SessionExpiredError("/x", "expired"), BookieExit.METADATA),
        (KeyError("a fault"), BookieExit.SERVER),
        (MemoryError(), BookieExit.SERVER),
    ],
)
def test_an_error_ends_the_process_with_the_code_of_its_row(error: Exception, code: BookieExit) -> None:
    assert exit_code_of(error) is code
    assert (ending_of(error) is None) == isinstance(error, KeyError | MemoryError)
