"""The options of the source, parsed strictly, and what the sink's share with them. Spark passes strings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

import attrs

from dlog.errors import ConfigError
from dlog.settings import read_texts, split_query
from namespace.log_name import check_log_name
from namespace.namespace_uri import parse_namespace_uri
from spark_integration.errors import OptionError
from spark_integration.option_names import CLIENT, TABLE_HINT, by_lower_name
from spark_integration.places import EARLIEST, LATEST, Places, parse_places

CHOICES = ("stream", "streams", "streamPattern", "shardedStream")
STARTS = ("startingOffsets", "startingDlsn", "startingTxId", "startingTimestamp", "startingCursor")
ENDS = ("endingOffsets", "endingDlsn", "endingTxId", "endingTimestamp", "endingCursor")
KNOWN = (
    "uri",
    *CHOICES,
    *STARTS,
    "startingTimestampStrategy",
    *ENDS,
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "maxEntriesPerTrigger",
    "minRecordsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeTimestamp",
    "includeSequence",
    "includeHeaders",
    "payloadFormat",
    "payloadSchema",
    "payloadErrors",
    "discoveryIntervalMs",
    "pollTimeoutMs",
    "inlineBytesMax",
    "readTimeoutMs",
    "keyFile",
    "bookieSecurity",
    "configFile",
    "readOnly",
)
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@attrs.frozen
class ClientOptions:
    """Settings, and names of files that each Python process opens itself. No secret is in them."""

    keys: str | None = None  # of payloads, as ``dlog.encryption.KeyFile``
    bookies: str | None = None  # TLS and authentication, as ``ledger.load_bookie_security``
    config_file: str | None = None
    settings: tuple[tuple[str, str], ...] = ()  # names and texts
    read_only: bool = False

    @property
    def all_settings(self) -> dict[str, str]:
        """Every setting by its name in docs/settings.md."""
        files = {"key_file": self.keys, "bookie_security": self.bookies}
        return {name: file for name, file in files.items() if file is not None} | dict(self.settings)


@attrs.frozen
class Selection:
    """The streams of a query: one of these is given."""

    names: tuple[str, ...] = ()
    pattern: str | None = None  # as of ``Namespace.list_logs``; new logs that match join the query
    sharded: str | None = None  # a sharded log, of which each shard is a stream

    def may_have(self, stream: str) -> bool:
        """True if the query could read a stream of this name."""
        if self.pattern is not None:
            return fnmatchcase(stream, self.pattern)
        if self.sharded is not None:
            return stream.startswith(f"{self.sharded}/shard-")
        return stream in self.names

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"the streams {self.pattern!r}"
        return f"the shards of {self.sharded!r}" if self.sharded else f"the streams {list(self.names)}"


@attrs.frozen
class Limits:
    """The most that a micro-batch reads; None: no limit. Each stream with data gives at least one entry."""

    records: int | None = None
    size_bytes: int | None = None
    entries: int | None = None

    @property
    def any(self) -> bool:
        """True if there is a limit."""
        return self != Limits()


@attrs.frozen
class Columns:
    """The columns of the query, and what becomes of a payload."""

    timestamp: bool = False
    sequence: bool = False
    headers: bool = False  # and the key
    payload_format: str = "bytes"  # or utf8, json
    payload_schema: str | None = None  # DDL of the columns in a JSON payload
    null_on_error: bool = False  # a payload of another format is null; otherwise the query fails


@attrs.frozen
class SourceOptions:
    """The options of a query. They are picklable, because Spark sends them to the executors."""

    uri: str
    selection: Selection
    starting: Places
    ending: Places  # batch only
    start_at_latest_if_none: bool  # where no record has the starting transaction id or a later one
    limits: Limits
    records_per_trigger_min: int | None
    trigger_delay_ms_max: int
    partitions_min: int | None
    records_per_partition_max: int | None
    fail_on_data_loss: bool
    columns: Columns
    discovery_interval_ms: int
    poll_timeout_ms: int  # maximum wait of a streaming trigger for new records
    inline_bytes_max: int | None  # of records that the driver sends with a partition; None: see docs/spark.md
    read_timeout_ms: int  # maximum time without a record before the task of a range fails
    client: ClientOptions = ClientOptions()


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options of a batch or a streaming query.

    Raises:
        OptionError: An option is missing, unknown or invalid, or gives a secret; the message names it.
        dlog.InvalidUriError: The URI does not parse, or has a user name or a password.
        dlog.InvalidLogNameError: No log can have this name.
        OffsetFormatError: A position in an option is invalid.
    """
    options = by_lower_name(given, KNOWN)
    uri = uri_of(options)
    selection = _selection(options)
    starting = parse_places(options, "starting", LATEST if streaming else EARLIEST)
    ending = parse_places(options, "ending", LATEST)
    if not streaming and LATEST in (starting.everywhere, *dict(starting.by_stream).values()):
        raise OptionError(
            "option startingOffsets: a batch query that starts at latest reads nothing; give earliest or a"
            " position"
        )
    for option in ENDS:
        if streaming and option.lower() in options and options[option.lower()] != LATEST:
            raise OptionError(
                f"option {option}={options[option.lower()]!r} is for batch queries; a streaming query has no"
                " end, so remove the option"
            )
    starting.check("starting", selection.names)
    ending.check("ending", selection.names)
    return SourceOptions(
        uri=uri,
        selection=selection,
        starting=starting,
        ending=ending,
        start_at_latest_if_none=_choice(options, "startingTimestampStrategy", "error", "latest") == "latest",
        limits=Limits(
            positive(options, "maxRecordsPerTrigger"),
            size(options, "maxBytesPerTrigger"),
            positive(options, "maxEntriesPerTrigger"),
        ),
        records_per_trigger_min=positive(options, "minRecordsPerTrigger"),
        trigger_delay_ms_max=_duration_ms(options, "maxTriggerDelay", "15m"),
        partitions_min=positive(options, "minPartitions"),
        records_per_partition_max=positive(options, "maxRecordsPerPartition"),
        fail_on_data_loss=flag(options, "failOnDataLoss", default="true"),
        columns=_columns(options),
        discovery_interval_ms=positive(options, "discoveryIntervalMs") or 5_000,
        poll_timeout_ms=positive(options, "pollTimeoutMs") or 300,
        inline_bytes_max=_size_or_0(options, "inlineBytesMax"),
        read_timeout_ms=positive(options, "readTimeoutMs") or 120_000,
        client=client_options(options),
    )


def uri_of(options: Mapping[str, str]) -> str:
    """The URI of the namespace.

    Raises:
        OptionError: It is missing.
        dlog.InvalidUriError: It does not parse, or has a user name or a password.
    """
    if not options.get("uri"):
        raise OptionError(
            f"option uri is required; add .option('uri', ...). If this is a table: {TABLE_HINT}"
        )
    uri = options["uri"]
    bare, _ = split_query(uri)
    parse_namespace_uri(bare)  # a URI with a password must not reach a plan
    return uri


def _selection(options: Mapping[str, str]) -> Selection:
    given = [name for name in CHOICES if name.lower() in options]
    if not given:
        raise OptionError(
            f"option stream is required; add .option('stream', ...) or {', '.join(CHOICES[1:])}"
        )
    if len(given) > 1:
        raise OptionError(f"options {' and '.join(given)} exclude each other; remove all but one")
    value = required(options, given[0])
    match given[0]:
        case "stream":
            return Selection(names=(check_log_name(value),))
        case "streams":
            return Selection(names=tuple(sorted({check_log_name(each) for each in _list(value)})))
        case "streamPattern":
            return Selection(pattern=value)
        case _:
            return Selection(sharded=check_log_name(value))


def _list(text: str) -> list[str]:
    """Names from ``a,b`` or ``["a", "b"]``."""
    if text.lstrip().startswith("["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            raise OptionError(f"option streams must be names with commas, or a JSON list, not {text!r}")
        return value
    names = [each.strip() for each in text.split(",")]
    if not all(names):
        raise OptionError(f"option streams has an empty name: {text!r}")
    return names


def _columns(options: Mapping[str, str]) -> Columns:
    payload_format = _choice(options, "payloadFormat", "bytes", "utf8", "json")
    schema = options.get("payloadschema")
    if (schema is not None) != (payload_format == "json"):
        raise OptionError(
            "options payloadFormat=json and payloadSchema belong together: give the columns of the payload,"
            " such as .option('payloadSchema', 'id BIGINT, name STRING')"
        )
    return Columns(
        flag(options, "includeTimestamp"),
        flag(options, "includeSequence"),
        flag(options, "includeHeaders"),
        payload_format,
        schema,
        _choice(options, "payloadErrors", "fail", "null") == "null",
    )


def client_options(options: Mapping[str, str]) -> ClientOptions:
    """The settings of the client.

    Raises:
        OptionError: A setting is unknown or wrong, or is given twice.
    """
    given = {key.removeprefix(CLIENT): text for key, text in options.items() if key.startswith(CLIENT)}
    for name, text in given.items():
        try:
            read_texts({name: text}, "the options client.*", directory=None)
        except ConfigError as exc:
            raise OptionError(str(exc)) from None
    made = ClientOptions(
        _file(options, "keyFile"),
        _file(options, "bookieSecurity"),
        _file(options, "configFile"),
        tuple(sorted(given.items())),
        flag(options, "readOnly"),
    )
    for option, name, value in (
        ("keyFile", "key_file", made.keys),
        ("bookieSecurity", "bookie_security", made.bookies),
    ):
        if value is not None and name in given:
            raise OptionError(f"options {option} and {CLIENT}{name} are the same setting; remove one of them")
    return made


def required(options: Mapping[str, str], name: str) -> str:
    """An option that must be there."""
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


def flag(options: Mapping[str, str], name: str, *, default: str = "false") -> bool:
    """True or false."""
    text = options.get(name.lower(), default)
    if text.lower() not in ("true", "false"):
        raise OptionError(f"option {name} must be true or false, not {text!r}")
    return text.lower() == "true"


def _choice(options: Mapping[str, str], name: str, *values: str) -> str:
    """One of some words; the first is the default."""
    text = options.get(name.lower(), values[0])
    if text.lower() not in values:
        raise OptionError(f"option {name} must be {' or '.join(values)}, not {text!r}")
    return text.lower()


def positive(options: Mapping[str, str], name: str) -> int | None:
    """A whole number of at least 1; None if the option is missing."""
    text = options.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < 1:
        raise OptionError(f"option {name} must be a whole number of at least 1, not {text!r}")
    return int(text)


def size(options: Mapping[str, str], name: str) -> int | None:
    """A number of bytes; None if the option is missing."""
    text = options.get(name.lower())
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,18})([kmgt]?)", text.strip().lower())
    if found is None or int(found[1]) < 1:
        raise OptionError(f"option {name} must be bytes, or a number with K, M, G or T, not {text!r}")
    return int(found[1]) * _SIZES[found[2]]


def _size_or_0(options: Mapping[str, str], name: str) -> int | None:
    return 0 if options.get(name.lower()) == "0" else size(options, name)


def _duration_ms(options: Mapping[str, str], name: str, default: str) -> int:
    text = options.get(name.lower(), default)
    found = re.fullmatch(r"([0-9]{1,12})(ms|s|m|h|d)", text.strip().lower())
    if found is None:
        raise OptionError(f"option {name} must be a time such as 500ms, 30s, 15m, 2h or 1d, not {text!r}")
    return int(found[1]) * _UNITS[found[2]]
