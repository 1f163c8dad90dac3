"""The errors of the metadata store, as a caller of the ledger client gets them."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

import ledger
from dlog.cli.terminal.exit_codes import ExitCode, exit_code_of
from dlog.errors import AccessDeniedError, LogUnavailableError, NamespaceLostError, as_dlog_error
from ledger.catalog.store_errors import as_ledger_error
from ledger.causes import cause_of
from ledger.client import open_ledger_client
from ledger.metadata_store import errors as store_errors
from ledger.metadata_store.memory import open_memory_store
from tests.fakes.dict_bookies import open_cluster


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_ledger_client_raises_its_own_errors_for_a_store_that_is_away(
    is_over: bool, autojump_clock: MockClock
) -> None:
    async with (
        open_cluster() as cluster,
        open_memory_store(cluster.tree) as store,
        open_ledger_client(store, cluster.dial) as client,
    ):
        writer = await client.create()
        ledger_id = writer.ledger_id
        if is_over:
            store.expire()
        else:
            store.suspend()
        wanted = ledger.MetadataStoreError if is_over else ledger.MetadataUnavailableError
        for call in (
            client.create,
            client.create_adv,
            lambda: client.open(ledger_id),
            lambda: client.open(ledger_id, recover=False),
            lambda: client.recover(ledger_id),
            lambda: client.replica_copy(ledger_id, "b1:1"),
            lambda: client.delete(ledger_id),
            lambda: client.metadata(ledger_id),
            client.ledger_ids,
        ):
            with pytest.raises(wanted) as caught:
                await call()
            assert type(caught.value) is wanted
            assert isinstance(cause_of(caught.value), store_errors.MetadataError)
        writer.abandon()


@pytest.mark.parametrize(
    ("error", "of_dlog", "code"),
    [
        (store_errors.ConnectionLostError("/a"), LogUnavailableError, ExitCode.UNAVAILABLE),
        (store_errors.SessionExpiredError("/a"), NamespaceLostError, ExitCode.UNAVAILABLE),
        (store_errors.StoreUnreachableError("x"), LogUnavailableError, ExitCode.UNAVAILABLE),
        (store_errors.AccessDeniedError("/a"), AccessDeniedError, ExitCode.DENIED),
    ],
)
def test_logs_and_commands_react_to_the_error_of_the_store(
    error: store_errors.MetadataError, of_dlog: type[Exception], code: ExitCode
) -> None:
    translated = as_ledger_error(error)
    translated.__cause__ = error
    assert type(as_dlog_error(translated, "log", "doing it")) is of_dlog
    assert exit_code_of(translated) is code
    assert str(error) in str(translated)
