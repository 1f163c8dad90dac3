"""Each error has one exit code; the documentation has the same table."""

# covers: dlog/cli/terminal/exit_codes.py

from __future__ import annotations

import re

import pytest

from bookie import errors as bookie_errors
from dlog import errors
from dlog.cli.terminal.exit_codes import ExitCode, exit_code_of, first_cause
from ledger import errors as ledger_errors
from ledger.metadata_store import errors as store_errors
from tests.places import ROOT

CLI_PAGE = ROOT / "docs" / "cli.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.LogNotFoundError("a"), ExitCode.NOT_FOUND),
        (errors.LogExistsError("a"), ExitCode.EXISTS),
        (errors.LogLockedError("a", None, 1), ExitCode.IN_USE),
        (errors.LogFencedError("a", "fenced"), ExitCode.IN_USE),
        (errors.InvalidUriError("bad"), ExitCode.USAGE),
        (errors.ConfigError("bad"), ExitCode.USAGE),
        (errors.LogUnavailableError("away"), ExitCode.UNAVAILABLE),
        (errors.LogWriteError("a", "stopped"), ExitCode.UNAVAILABLE),
        (errors.CorruptLogError("a", 1, "bad"), ExitCode.DAMAGED),
        (errors.RecordTooLongError(2, 1), ExitCode.FAILED),
        (store_errors.InvalidStoreAddressError("bad"), ExitCode.USAGE),
        (store_errors.ConnectionLostError("/ledgers"), ExitCode.UNAVAILABLE),
        (ledger_errors.NoSuchLedgerError(1), ExitCode.NOT_FOUND),
        (ledger_errors.NoSuchEntryError(1, 2, {}), ExitCode.DAMAGED),
        (ledger_errors.LedgerReadError(1, 2, {}), ExitCode.UNAVAILABLE),
        (ledger_errors.BookieSecurityError("b", "no"), ExitCode.UNAVAILABLE),
        (ledger_errors.NotEnoughBookiesError(3, 1), ExitCode.UNAVAILABLE),
        (bookie_errors.FormatError("bad"), ExitCode.DAMAGED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (ValueError(), ExitCode.FAILED),
    ],
)
def test_each_error_has_its_exit_code(error: BaseException, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_of_several_errors_the_one_with_a_code_is_reported() -> None:
    inner = errors.LogNotFoundError("orders")
    group = BaseExceptionGroup("", [ValueError("consequence"), BaseExceptionGroup("", [inner])])
    assert first_cause(group) is inner
    assert first_cause(BaseExceptionGroup("", [ValueError("a"), inner])) is inner
    assert first_cause(inner) is inner


def test_the_documentation_lists_exactly_these_codes() -> None:
    table = CLI_PAGE.read_text("utf-8").partition("## Exit codes")[2]
    documented = {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert documented == set(ExitCode)
