"""A namespace of a pipeline, as its tasks open it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import attrs

import dlog.blocking
from spark_integration.client import NamedLog, with_namespace
from spark_integration.errors import OptionError
from spark_integration.option_names import by_lower_name
from spark_integration.options import ClientOptions, client_options, uri_of

READ_TIMEOUT_MS = 120_000
_KNOWN = ("uri", "keyFile", "bookieSecurity", "configFile")

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Place:
    """A namespace, and how a process opens it. It can be pickled."""

    uri: str
    client: ClientOptions = attrs.field(factory=ClientOptions)

    def log(self, name: str) -> NamedLog:
        """One log of it."""
        return NamedLog(self.uri, name, READ_TIMEOUT_MS, self.client)

    def call(self, request: Callable[[dlog.blocking.Namespace], T]) -> T:
        """The result of a request to this process's namespace; see ``client.with_namespace``."""
        return with_namespace(self.uri, self.client, request)


def place_of(uri: str, options: Mapping[str, str] | None) -> Place:
    """A namespace that is opened with options of the data source: ``client.*``, ``bookieSecurity``,
    ``configFile``.

    Raises:
        OptionError: An option is unknown or wrong, or gives keys: what is written would be in clear.
    """
    given = by_lower_name({**(options or {}), "uri": uri}, _KNOWN)
    client = client_options(given)
    if "key_file" in client.all_settings:
        raise OptionError(
            "option keyFile: pipelines cannot write encrypted logs, so they read none; remove the option"
        )
    return Place(uri=uri_of(given), client=client)
