"""The options of the sink, parsed strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from dlog.shards.layout import shard_log
from namespace.log_name import check_log_name
from spark_integration.errors import OptionError
from spark_integration.option_names import by_lower_name
from spark_integration.options import (
    ClientOptions,
    client_options,
    flag,
    positive,
    required,
    size,
    uri_of,
)

KNOWN = (
    "uri",
    "stream",
    "shardedStream",
    "keyColumn",
    "createStream",
    "driverBytesMax",
    "failOnChangedBatch",
    "lockTimeoutMs",
    "series",
    "number",
    "txidColumn",
    "bookieSecurity",
    "configFile",
)
DRIVER_BYTES_MAX = 16 << 20  # of a batch's rows, that go through the driver
SHARES = 10  # the sum of 1/1 to 1/n is less for up to 12,000 tasks
# Java copies all of the rest for each 200 KiB that it sends by a Unix-domain socket (docs/performance.md).
TASK_BYTES_MAX = 16 << 20
TASK_BYTES_MIN = 64 << 10  # a segment with less is not worth its place in the metadata


@attrs.frozen
class SinkOptions:
    """The options of a query that writes. They are picklable, because Spark sends them to the executors."""

    uri: str
    stream: str  # the log of rows without a stream; its properties record what the query has written
    create_stream: bool
    driver_bytes_max: int  # of a batch
    lock_timeout_s: float
    series: str | None  # in place of the id of a streaming query
    number: int | None  # of a batch write in its series
    client: ClientOptions
    txid_column: str | None = None  # None: all rows of a batch in one log have the same id
    fail_on_changed_batch: bool = True
    sharded: str | None = None  # a sharded log: the key of a row chooses the shard; ``stream`` is shard 0
    key_column: str | None = None

    def driver_bytes_of_task(self, partition: int) -> int:
        """How many bytes of rows the task of this partition (from 0) may return to the driver.

        A task knows its number and not how many there are, so later ones may return less. All together may
        return ``driver_bytes_max``, and each of them ``TASK_BYTES_MIN`` if that is less. None returns more
        than ``TASK_BYTES_MAX``.
        """
        share = self.driver_bytes_max // (SHARES * (partition + 1))
        return max(min(share, TASK_BYTES_MAX), min(TASK_BYTES_MIN, self.driver_bytes_max))


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options of a query that writes.

    Raises:
        OptionError: An option is missing, unknown or invalid, or gives a secret; the message names it.
        dlog.InvalidUriError: The URI does not parse, or has a user name or a password.
        dlog.InvalidLogNameError: No log can have this name.
    """
    names = {key.lower() for key in given}
    if "keyfile" in names or "client.key_file" in names:
        raise OptionError(
            "option keyFile: the sink does not encrypt payloads; encrypt the column, or remove it"
        )
    options = by_lower_name(given, KNOWN)
    uri = uri_of(options)
    series, number = options.get("series"), options.get("number")
    if streaming and number is not None:
        raise OptionError("option number is for batch writes; Spark numbers the batches of a streaming query")
    if not streaming and (series is None) != (number is None):
        raise OptionError("options series and number belong together: give both, or none")
    if number is not None and not re.fullmatch("[0-9]{1,18}", number):
        raise OptionError(f"option number must be a whole number of at least 0, not {number!r}")
    sharded, key_column = options.get("shardedstream"), _column(options, "keycolumn")
    if (sharded is None) != (key_column is None):
        raise OptionError("options shardedStream and keyColumn belong together: the key chooses the shard")
    if sharded is not None and "stream" in options:
        raise OptionError("options stream and shardedStream exclude each other; remove one of them")
    stream = required(options, "stream") if sharded is None else shard_log(check_log_name(sharded), 0)
    return SinkOptions(
        uri=uri,
        stream=check_log_name(stream),
        # A shard that is missing must not be made without the layout of the sharded log.
        create_stream=flag(options, "createStream", default="true") and sharded is None,
        driver_bytes_max=size(options, "driverBytesMax") or DRIVER_BYTES_MAX,
        lock_timeout_s=(positive(options, "lockTimeoutMs") or 10_000) / 1000,
        series=series,
        number=None if number is None else int(number),
        client=client_options(options),
        txid_column=_column(options, "txidcolumn"),
        fail_on_changed_batch=flag(options, "failOnChangedBatch", default="true"),
        sharded=sharded,
        key_column=key_column,
    )


def _column(options: Mapping[str, str], name: str) -> str | None:
    """In lower case, as ``rows_of`` has the names of columns."""
    given = options.get(name)
    return None if given is None else given.lower()
