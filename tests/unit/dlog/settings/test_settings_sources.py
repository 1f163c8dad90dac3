"""The places of settings: reading a file, variables and a query; refusing what is wrong, by its place."""

# covers: dlog/settings/sources.py

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, InvalidUriError
from dlog.settings.sources import OTHER_VARIABLES, read_environment, read_file, read_texts, split_query
from ledger.causes import cause_of

SECRET = "open-sesame"
URI = "distributedlog://zk1/shop"


def written(directory: Path, text: str) -> Path:
    file = directory / "dlog.toml"
    file.write_text(text, "utf-8")
    return file


def test_a_file_gives_settings_with_their_lines(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        '# shop\nwrite_quorum = 2\n\n[writer]\nsegment_bytes_max = "64M"  # small\n[placement]\n'
        'regions = ["east", "west"]\n[bookies]\nauth_settings = { url = "u" }\n',
    )
    found = read_file(file)
    assert {name: (one.value, one.place) for name, one in found.items()} == {
        "write_quorum": (2, f"{file}, line 2"),
        "writer.segment_bytes_max": (64 << 20, f"{file}, line 5"),
        "placement.regions": (("east", "west"), f"{file}, line 7"),
        "bookies.auth_settings": ({"url": "u"}, f"{file}, line 9"),
    }


def test_a_dotted_key_is_the_same_as_a_key_of_a_table(tmp_path: Path) -> None:
    found = read_file(written(tmp_path, "writer.purge = false\n"))["writer.purge"]
    assert (found.value, found.place) == (False, f"{tmp_path / 'dlog.toml'}, line 1")


def test_a_file_that_a_setting_names_is_relative_to_the_configuration(tmp_path: Path) -> None:
    assert read_file(written(tmp_path, 'key_file = "keys"'))["key_file"].value == tmp_path / "keys"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("write_quorom = 2", "line 1: there is no setting write_quorom; did you mean write_quorum?"),
        ("segment_bytes_max = 2", r"did you mean writer\.segment_bytes_max\?"),
        ("[write]\nx = 1", "line 1: there is no section write; there are writer, reader"),
        ("[writer]\nsegment_size = 2", r"line 2: there is no setting writer\.segment_size"),
        ("[writer]\n\npurge = 3", r"line 3: writer\.purge must be true or false"),
        ("write_quorum = 0", "line 1: write_quorum must be > 0"),
        ('write_quorum = "open-sesame"', "line 1: write_quorum must be a whole number"),
        ("wire_version = 4", "line 1: wire_version "),
        ('password = "open-sesame"', "line 1: put the secret of password .* name it in password_file"),
        ('[zookeeper]\npassword = "open-sesame"', r"line 2: .*zookeeper\.password_file"),
        ("[bookies]\nauth_settings = { a = 1 }", "must be a table of texts"),
        ("write_quorum = ", "is not TOML"),
        ("a = [" * 5000, "nested too deeply|not TOML"),
        ("#" * (1 << 20) + "##", "at most"),
    ],
)
def test_a_wrong_line_of_a_file_is_named_and_its_value_is_not_quoted(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_file(written(tmp_path, text))
    assert str(tmp_path / "dlog.toml") in str(caught.value)
    assert SECRET not in f"{caught.value} {cause_of(caught.value)}"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: the configuration cannot be read"):
        read_file(tmp_path / "missing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_file(tmp_path / "bytes.toml")


@pytest.mark.slow
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(data)
    with suppress(ConfigError):  # any other error is a failure
        read_file(file)


def test_variables_give_settings() -> None:
    found = read_environment(
        {"DLOG_WRITE_QUORUM": "2", "DLOG_READER_READ_BYTES_MAX": "1M", "DLOG_KEY_FILE": "keys", "PATH": "x"}
    )
    assert {name: one.value for name, one in found.items()} == {
        "write_quorum": 2,
        "reader.read_bytes_max": 1 << 20,
        "key_file": Path("keys"),
    }
    assert found["write_quorum"].place == "the variable DLOG_WRITE_QUORUM"


def test_an_empty_variable_counts_as_missing() -> None:
    assert read_environment({"DLOG_WRITE_QUORUM": "", "DLOG_BOOKIE_SECURITY": ""}) == {}


def test_variables_of_other_programs_are_left_alone() -> None:
    others = {"DLOG_OPTS": "-Xmx1g", "DLOG_ROOT_LOGGER": "INFO", "DLOG_TEST_EFFORT": "full"}
    assert read_environment(others | dict.fromkeys(OTHER_VARIABLES, "1")) == {}


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("DLOG_WRITE_QUORM", "DLOG_WRITE_QUORUM"),
        ("DLOG_WRITER_SEGMENT_BYTES", "DLOG_WRITER_SEGMENT_BYTES_MAX"),
        ("DLOG_BOOKIES_X", "DLOG_BOOKIES_TLS"),
        ("DLOG_PASSWORD", "DLOG_PASSWORD_FILE"),
        ("DLOG_ZOOKEEPER_PASSWORD", "DLOG_ZOOKEEPER_PASSWORD_FILE"),
        ("DLOG_CONFIGS", "DLOG_CONFIG"),
    ],
)
def test_a_variable_that_is_almost_a_setting_is_refused(variable: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable}: .* did you mean {near}") as caught:
        read_environment({variable: SECRET})
    assert SECRET not in str(caught.value)


def test_a_wrong_variable_is_named_and_not_quoted() -> None:
    with pytest.raises(ConfigError, match=r"^the variable DLOG_ACK_QUORUM must be a whole number$"):
        read_environment({"DLOG_ACK_QUORUM": SECRET})


def test_a_query_gives_settings_and_the_rest_is_the_namespace() -> None:
    uri, found = split_query(f"{URI}?write_quorum=2&key_file=%2Fa%20b%40c&writer.purge=no")
    assert uri == URI
    assert {name: one.value for name, one in found.items()} == {
        "write_quorum": 2,
        "key_file": Path("/a b@c"),
        "writer.purge": False,
    }
    assert split_query(URI) == (URI, {})
    assert split_query(f"{URI}?") == (URI, {})


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (f"password={SECRET}", "name it in password_file"),
        (f"zookeeper.password={SECRET}", "name it in zookeeper.password_file"),
        (f"write_quorum={SECRET}", "write_quorum must be a whole number"),
        (f"quorum={SECRET}", "there is no setting quorum"),
        (SECRET, "NAME=VALUE"),
        (f"key_file={SECRET}", "must be absolute"),
        (f"@{SECRET}", "a user name, a password"),
        (f"write_quorum=2#{SECRET}", "a fragment"),
        ("write_quorum=2&write_quorum=2", "twice"),
        (f"uri={SECRET}", "no uri"),
        (f"bookies.auth_settings={SECRET}", "in a file only"),
    ],
)
def test_a_wrong_query_is_refused_and_not_quoted(query: str, message: str) -> None:
    with pytest.raises(InvalidUriError, match=message) as caught:
        split_query(f"{URI}?{query}")
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r}"
        error = cause_of(error)


def test_a_password_with_a_question_mark_is_not_quoted() -> None:
    with pytest.raises(InvalidUriError) as caught:
        split_query(f"distributedlog://admin:{SECRET}?x@zk1/shop")
    assert SECRET not in str(caught.value)


def test_settings_of_a_program_are_texts_or_values() -> None:
    found = read_texts({"write_quorum": 2, "writer.segment_bytes_max": "1M", "create": True})
    assert [one.value for one in found.values()] == [2, 1 << 20, True]
    with pytest.raises(ConfigError, match=r"^the argument settings: there is no setting quorum"):
        read_texts({"quorum": 2})


def test_the_repr_of_a_given_value_does_not_show_it() -> None:
    assert SECRET not in repr(read_texts({"bookies.auth_settings": {"a": SECRET}}))
