"""The options of the source, parsed strictly. Spark passes them as strings with lower-case names.

An unknown name is an error that suggests the nearest known name: a misspelt option that is silently ignored
would be found only in production.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import attrs

from dlog.metadata.namespace_uri import parse_namespace_uri
from spark_integration.errors import OptionError
from spark_integration.offsets import BEFORE_EVERYTHING, Position, parse_position_option

EARLIEST = "earliest"
LATEST = "latest"

KNOWN = (
    "uri",
    "stream",
    "startingOffsets",
    "endingOffsets",
    "maxEntriesPerTrigger",
    "minPartitions",
    "pollTimeoutMs",
    "readTimeoutMs",
    "keyFile",
    "bookieSecurity",
)
_BY_LOWER = {name.lower(): name for name in KNOWN}
# Options that Spark itself may add.
_SPARKS_OWN = {"path", "checkpointlocation"}


@attrs.frozen
class SecurityFiles:
    """Names of files that each Python process opens itself. A plan has the names and never the contents."""

    keys: str | None = None  # of payloads, as ``dlog.encryption.KeyFile``
    bookies: str | None = None  # TLS and authentication, as ``ledger.load_bookie_security``


@attrs.frozen
class SourceOptions:
    """The options of a query. They are picklable, because Spark sends them to the executors."""

    uri: str
    stream: str
    starting: Position | str  # LATEST or a position; EARLIEST is BEFORE_EVERYTHING
    ending: Position | str  # LATEST or a position; batch only
    entries_per_trigger_max: int | None
    partitions_min: int | None
    poll_timeout_ms: int  # maximum wait of a streaming trigger for new records
    read_timeout_ms: int  # maximum time without a record before the task of a range fails
    files: SecurityFiles = SecurityFiles()


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options of a batch or a streaming query.

    Raises:
        OptionError: An option is missing, unknown or invalid; the message names it.
        dlog.InvalidUriError: The URI does not parse, or has a user name or a password.
        OffsetFormatError: A position in an option is invalid.
    """
    options = {key.lower(): value for key, value in given.items()}
    for key in options:
        if key not in _BY_LOWER and key not in _SPARKS_OWN:
            near = difflib.get_close_matches(key, _BY_LOWER, n=1)
            hint = (
                f"; did you mean {_BY_LOWER[near[0]]}?"
                if near
                else f"; the known options are {', '.join(KNOWN)}"
            )
            raise OptionError(f"unknown option {key!r}{hint}")
    stream = _required(options, "stream")
    ending = options.get("endingoffsets", LATEST)
    if streaming and ending != LATEST:
        raise OptionError(
            f"option endingOffsets={ending!r} is for batch queries; a streaming query has no end, so remove"
            " the option"
        )
    uri = _required(options, "uri")
    parse_namespace_uri(uri)  # a URI with a password must not reach a plan
    return SourceOptions(
        uri=uri,
        stream=stream,
        starting=_starting(options, stream, streaming=streaming),
        ending=ending if ending == LATEST else parse_position_option("endingOffsets", ending, stream),
        entries_per_trigger_max=_positive(options, "maxEntriesPerTrigger"),
        partitions_min=_positive(options, "minPartitions"),
        poll_timeout_ms=_positive(options, "pollTimeoutMs") or 300,
        read_timeout_ms=_positive(options, "readTimeoutMs") or 120_000,
        files=SecurityFiles(_file(options, "keyFile"), _file(options, "bookieSecurity")),
    )


def _starting(options: Mapping[str, str], stream: str, *, streaming: bool) -> Position | str:
    text = options.get("startingoffsets", LATEST if streaming else EARLIEST)
    if text == EARLIEST:
        return BEFORE_EVERYTHING
    if text == LATEST:
        if not streaming:
            raise OptionError(
                "option startingOffsets: a batch query that starts at latest reads nothing; give earliest"
                " or a position"
            )
        return LATEST
    return parse_position_option("startingOffsets", text, stream)


def _required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name.lower(), "")
    if not value:
        raise OptionError(f"option {name} is required; add .option({name!r}, ...)")
    return value


def _file(options: Mapping[str, str], name: str) -> str | None:
    given = options.get(name.lower())
    if given is not None and not given.startswith("/"):
        # The value is not quoted: it may be the secret itself.
        raise OptionError(
            f"option {name} must be the absolute path of a file that the driver and each executor can read"
        )
    return given


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise OptionError(f"option {name} must be a whole number of at least 1, not {text!r}")
    return number
