"""Options are parsed strictly."""

# covers: spark_integration/places.py
# covers: spark_integration/option_names.py

from __future__ import annotations

import pytest

from dlog.settings.table import SETTINGS
from ledger.settings import kinds
from spark_integration.errors import OffsetFormatError, OptionError
from spark_integration.offsets import BEFORE_EVERYTHING, WHOLE_ENTRY, Position
from spark_integration.option_names import ELSEWHERE
from spark_integration.options import ClientOptions, Limits, Selection, parse_options
from spark_integration.places import LATEST, Places, Txid
from spark_integration.sink.options import parse_sink_options
from tests.places import ROOT

GIVEN = {"uri": "file:///somewhere", "stream": "orders"}


def test_a_batch_query_reads_everything_by_default() -> None:
    options = parse_options(GIVEN, streaming=False)
    assert (options.starting, options.ending) == (Places(BEFORE_EVERYTHING), Places(LATEST))


def test_a_streaming_query_starts_at_the_end_by_default() -> None:
    assert parse_options(GIVEN, streaming=True).starting == Places(LATEST)


def test_names_are_read_in_any_case() -> None:
    options = parse_options({**GIVEN, "STARTINGOFFSETS": "[1, 2, 3]", "minpartitions": "4"}, streaming=True)
    assert (options.starting, options.partitions_min) == (Places(Position(1, 2, 3)), 4)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"stream": "a/b"}, Selection(names=("a/b",))),
        ({"streams": "b, a,b"}, Selection(names=("a", "b"))),
        ({"streams": '["a,1", "b"]'}, Selection(names=("a,1", "b"))),
        ({"streamPattern": "eu-*"}, Selection(pattern="eu-*")),
        ({"shardedStream": "clicks"}, Selection(sharded="clicks")),
    ],
)
def test_streams_are_chosen_by_one_option(given: dict[str, str], expected: Selection) -> None:
    assert parse_options({"uri": "file:///x", **given}, streaming=True).selection == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"streams": "a"}, "stream and streams exclude each other"),
        ({"startingTxId": "1", "startingTimestamp": "2"}, "startingTxId and startingTimestamp exclude"),
        ({"startingTxId": "1", "startingCursor": "c"}, "startingTxId and startingCursor exclude"),
        ({"startingOffsets": "latest", "startingDlsn": "1:2:3"}, "startingOffsets and startingDlsn exclude"),
        ({"startingTxId": '{"streams": {}}'}, "use startingOffsets"),
        ({"startingTxId": "-1"}, "startingTxId must be a transaction id"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp must be a date"),
        ({"startingTimestampStrategy": "guess"}, "must be error or latest"),
        ({"maxBytesPerTrigger": "1 MB"}, "maxBytesPerTrigger must be bytes"),
        ({"maxTriggerDelay": "15"}, "maxTriggerDelay must be a time"),
        ({"payloadFormat": "json"}, "belong together"),
        ({"payloadSchema": "a INT"}, "belong together"),
        ({"payloadFormat": "avro"}, "must be bytes or utf8 or json"),
    ],
)
def test_a_contradiction_or_wrong_value_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options({**GIVEN, **given}, streaming=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kafka.bootstrap.servers", "use uri"),
        ("subscribe", "use stream, or streams"),
        ("subscribePattern", "use streamPattern"),
        ("assign", "use stream or streams"),
        ("topic", "use stream"),
        ("maxOffsetsPerTrigger", "use maxRecordsPerTrigger"),
        ("minOffsetsPerTrigger", "use minRecordsPerTrigger"),
        ("startingOffsetsByTimestamp", "use startingTimestamp"),
        ("kafkaConsumer.pollTimeoutMs", "use readTimeoutMs"),
        ("kafka.group.id", "a query joins no group"),
        ("kafka.ssl.keystore.password", "use bookieSecurity"),
        ("kafka.linger.ms", "use a setting of docs/settings.md as client.NAME"),
    ],
)
def test_an_option_of_kafka_is_refused_with_ours_for_source_and_sink(name: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name.lower()}': {message}"):
        parse_options({**GIVEN, name: "x"}, streaming=True)
    with pytest.raises(OptionError, match=f"option '{name.lower()}': {message}"):
        parse_sink_options({**GIVEN, name: "x"}, streaming=True)


def test_the_page_has_the_table_of_options_of_kafka() -> None:
    page = (ROOT / "docs" / "spark.md").read_text().lower()
    kafka = [name for name in ELSEWHERE if not name.startswith("path")]
    assert [name for name in kafka if f"`{name.removesuffix('.')}" not in page] == []


@pytest.mark.parametrize("given", ["", "a,,b", "[]", "[1]"])
def test_a_list_without_names_is_refused(given: str) -> None:
    with pytest.raises(OptionError, match="streams"):
        parse_options({"uri": "file:///x", "streams": given}, streaming=True)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"startingTxId": "17"}, Txid(17)),
        ({"startingTimestamp": "1970-01-02"}, Txid(86_400_000)),
        ({"startingTimestamp": "1970-01-01T01:00:00.5+01:00"}, Txid(500)),
        ({"startingTimestamp": "500"}, Txid(500)),
        ({"startingOffsets": '{"orders": [1, 2, 3]}'}, Position(1, 2, 3)),
        ({"startingOffsets": '{"orders": "1:2:3"}'}, Position(1, 2, 3)),
        ({"startingOffsets": "1:2:3"}, Position(1, 2, 3)),
        ({"startingOffsets": "DLSN(1, 2, 3)"}, Position(1, 2, 3)),
        ({"startingOffsets": '"1:2:3"'}, Position(1, 2, 3)),
        ({"startingOffsets": '"earliest"'}, BEFORE_EVERYTHING),
        ({"startingOffsets": '{"orders": "earliest"}'}, BEFORE_EVERYTHING),
        ({"startingOffsets": '{"v": 1, "streams": {"orders": [1, 2, -1]}}'}, Position(1, 2, WHOLE_ENTRY)),
        ({"startingDlsn": "1:2:3"}, Position(1, 2, 2)),
        ({"startingDlsn": '{"orders": "DLSN(1, 2, 0)"}'}, Position(1, 1, WHOLE_ENTRY)),
    ],
)
def test_a_start_is_an_id_a_time_or_a_position(given: dict[str, str], place: object) -> None:
    starting = parse_options({**GIVEN, **given}, streaming=True).starting
    assert starting.of("orders") == place
    assert starting.moves == isinstance(place, Txid)


@pytest.mark.parametrize(
    "given",
    [
        {"stream": "orders", "startingOffsets": '{"other": [1, 2, 3]}'},
        {"streams": "a,b", "startingOffsets": '{"a": [1, 2, 3]}'},
        {"streams": "a,b", "startingOffsets": "[1, 2, 3]"},
        {"streamPattern": "*", "startingOffsets": "[1, 2, 3]"},
        {"stream": "orders", "startingOffsets": "erliest"},
        {"stream": "orders", "startingOffsets": "[1, 2]"},
        {"stream": "orders", "startingOffsets": '{"v": 2, "streams": {"orders": [1, 2, 3]}}'},
        {"stream": "orders", "startingOffsets": '{"v": 1, "streams": {"other": [1, 2, 3]}}'},
        {"stream": "orders", "startingDlsn": "latest"},
        {"stream": "orders", "startingDlsn": "[1, 2, -1]"},
        {"streams": "a,b", "startingDlsn": "1:2:3"},
    ],
)
def test_a_start_that_is_no_place_of_the_streams_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(OffsetFormatError, match=r"starting|is no position|has format 2"):
        parse_options({"uri": "file:///x", **given}, streaming=True)


def test_limits_hold_together() -> None:
    given = {"maxRecordsPerTrigger": "10", "maxBytesPerTrigger": "2M", "maxEntriesPerTrigger": "3"}
    assert parse_options({**GIVEN, **given}, streaming=True).limits == Limits(10, 2 << 20, 3)
    assert not parse_options(GIVEN, streaming=True).limits.any
    assert parse_options({**GIVEN, "maxTriggerDelay": "2h"}, streaming=True).trigger_delay_ms_max == 7_200_000


@pytest.mark.parametrize("missing", ["uri", "stream"])
def test_a_missing_required_option_is_named(missing: str) -> None:
    given = {name: value for name, value in GIVEN.items() if name != missing}
    with pytest.raises(OptionError, match=f"{missing} is required"):
        parse_options(given, streaming=False)


def test_a_misspelt_option_is_rejected_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match="did you mean startingOffsets"):
        parse_options({**GIVEN, "startingOffset": "earliest"}, streaming=True)


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", ""])
def test_a_count_is_a_positive_whole_number(value: str) -> None:
    with pytest.raises(OptionError, match="maxEntriesPerTrigger"):
        parse_options({**GIVEN, "maxEntriesPerTrigger": value}, streaming=True)


def test_files_of_secrets_are_absolute_paths_and_a_wrong_value_is_not_quoted() -> None:
    """A task runs in another directory. A user may write the key itself in place of the file's name."""
    files = parse_options({**GIVEN, "keyFile": "/keys", "bookieSecurity": "/b.toml"}, streaming=True).client
    assert files == ClientOptions("/keys", "/b.toml")
    assert parse_options(GIVEN, streaming=True).client == ClientOptions()
    assert parse_options({**GIVEN, "readOnly": "True"}, streaming=True).client == ClientOptions(
        read_only=True
    )
    with pytest.raises(OptionError, match="readOnly must be true or false"):
        parse_options({**GIVEN, "readOnly": "yes"}, streaming=True)
    for name in ("keyFile", "bookieSecurity"):
        with pytest.raises(OptionError, match=f"option {name} must be the absolute path") as caught:
            parse_options({**GIVEN, name: "open-sesame"}, streaming=False)
        assert "open-sesame" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_the_client_is_an_option_of_source_and_sink(name: str) -> None:
    """A text with a line break is no value of a setting, so it is refused for the value and not the name."""
    kind = SETTINGS[name].kind
    expected = "file only" if kind is kinds.TABLE else "must be|is refused|name it in|does not encrypt"
    for parse in (parse_options, parse_sink_options):
        given = {**GIVEN, f"client.{name}": "open\nsesame"}
        if kind is kinds.NAMES:
            assert parse(given, streaming=True).client.all_settings == {name: "open\nsesame"}
            continue
        with pytest.raises(OptionError, match=expected) as caught:
            parse(given, streaming=True)
        assert "unknown" not in str(caught.value)
        assert "sesame" not in str(caught.value)


def test_settings_of_the_client_are_options() -> None:
    given = {
        **GIVEN,
        "configFile": "/dlog.toml",
        "client.connect_timeout_s": "2",
        "client.key_file": "/keys",
    }
    client = parse_options(given, streaming=True).client
    assert client.config_file == "/dlog.toml"
    assert client.all_settings == {"connect_timeout_s": "2", "key_file": "/keys"}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("client.connect_timeout", "2", "did you mean connect_timeout_s"),
        ("client.connect_timeout_s", "open-sesame", "must be a number of seconds"),
        ("client.password", "open-sesame", "name it in password_file"),
        ("client.key_file", "open-sesame", "must be absolute"),
        ("configFile", "open-sesame", "option configFile must be the absolute path"),
    ],
)
def test_a_wrong_setting_of_the_client_is_refused_and_not_quoted(
    option: str, value: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        parse_options({**GIVEN, option: value}, streaming=True)
    assert "open-sesame" not in str(caught.value)


def test_one_setting_by_two_options_is_refused() -> None:
    with pytest.raises(OptionError, match=r"keyFile and client\.key_file"):
        parse_options({**GIVEN, "keyFile": "/a", "client.key_file": "/b"}, streaming=True)


def test_an_end_is_for_batches_only() -> None:
    assert parse_options({**GIVEN, "endingOffsets": "[1, 2, 3]"}, streaming=False).ending == Places(
        Position(1, 2, 3)
    )
    with pytest.raises(OptionError, match="endingOffsets"):
        parse_options({**GIVEN, "endingOffsets": "[1, 2, 3]"}, streaming=True)


def test_a_batch_that_starts_at_latest_is_rejected() -> None:
    with pytest.raises(OptionError, match="reads nothing"):
        parse_options({**GIVEN, "startingOffsets": "latest"}, streaming=False)
