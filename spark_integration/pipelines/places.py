"""A namespace of a pipeline, as its tasks open it."""

from __future__ import annotations

import attrs

from spark_integration.client import NamedLog
from spark_integration.options import ClientOptions

READ_TIMEOUT_MS = 120_000


@attrs.frozen(kw_only=True)
class Place:
    """A namespace, and how a process opens it. It can be pickled."""

    uri: str
    client: ClientOptions

    def log(self, name: str) -> NamedLog:
        """One log of it."""
        return NamedLog(self.uri, name, READ_TIMEOUT_MS, self.client)
