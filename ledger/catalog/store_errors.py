"""The errors of the metadata store as errors of this package.

Not inside: the reaction of a writer or a reader to them; it sees the errors of the store.
Always: the error of the store is the ``__cause__``.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ledger.errors import LedgerError, MetadataStoreError, MetadataUnavailableError
from ledger.metadata_store.errors import (
    ConnectionLostError,
    InvalidStoreAddressError,
    MetadataError,
    StoreUnreachableError,
)

Call = ParamSpec("Call")
T = TypeVar("T")


class InvalidLedgersUriError(LedgerError, InvalidStoreAddressError):
    """The URI of ledgers cannot be parsed; the message names the part."""


def as_ledger_error(error: MetadataError) -> LedgerError:
    """The error of this package for an error of the metadata store."""
    if isinstance(error, ConnectionLostError | StoreUnreachableError):
        return MetadataUnavailableError(f"the metadata store is out of reach: {error}")
    if isinstance(error, InvalidStoreAddressError):
        return InvalidLedgersUriError(str(error))
    return MetadataStoreError(f"the metadata store: {error}")


def raises_ledger_errors(call: Callable[Call, Awaitable[T]]) -> Callable[Call, Coroutine[Any, Any, T]]:
    """Raise the store's errors as those of this package."""

    @wraps(call)
    async def translating(*args: Call.args, **kwargs: Call.kwargs) -> T:
        try:
            return await call(*args, **kwargs)
        except MetadataError as exc:
            raise as_ledger_error(exc) from None

    return translating
