"""Options are parsed strictly."""

from __future__ import annotations

import pytest

from spark_integration.errors import OptionError
from spark_integration.offsets import BEFORE_EVERYTHING, Position
from spark_integration.options import LATEST, SecurityFiles, parse_options

GIVEN = {"uri": "file:///somewhere", "stream": "orders"}


def test_a_batch_query_reads_everything_by_default() -> None:
    options = parse_options(GIVEN, streaming=False)
    assert (options.starting, options.ending) == (BEFORE_EVERYTHING, LATEST)


def test_a_streaming_query_starts_at_the_end_by_default() -> None:
    assert parse_options(GIVEN, streaming=True).starting == LATEST


def test_names_are_read_in_any_case() -> None:
    options = parse_options({**GIVEN, "STARTINGOFFSETS": "[1, 2, 3]", "minpartitions": "4"}, streaming=True)
    assert (options.starting, options.partitions_min) == (Position(1, 2, 3), 4)


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
    files = parse_options({**GIVEN, "keyFile": "/keys", "bookieSecurity": "/b.toml"}, streaming=True).files
    assert files == SecurityFiles("/keys", "/b.toml")
    assert parse_options(GIVEN, streaming=True).files == SecurityFiles()
    for name in ("keyFile", "bookieSecurity"):
        with pytest.raises(OptionError, match=f"option {name} must be the absolute path") as caught:
            parse_options({**GIVEN, name: "open-sesame"}, streaming=False)
        assert "open-sesame" not in str(caught.value)


def test_an_end_is_for_batches_only() -> None:
    assert parse_options({**GIVEN, "endingOffsets": "[1, 2, 3]"}, streaming=False).ending == Position(1, 2, 3)
    with pytest.raises(OptionError, match="endingOffsets"):
        parse_options({**GIVEN, "endingOffsets": "[1, 2, 3]"}, streaming=True)


def test_a_batch_that_starts_at_latest_is_rejected() -> None:
    with pytest.raises(OptionError, match="reads nothing"):
        parse_options({**GIVEN, "startingOffsets": "latest"}, streaming=False)
