"""Completion of command lines, by click's protocol and in a real bash."""

# covers: dlog/cli/setup/completion.py
# covers: dlog/cli/terminal/completion.py

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

import dlog.blocking
from dlog.cli.main import COMMANDS, main, program
from dlog.cli.terminal import completion
from tests.places import ROOT

LOGS = ["orders", "outbox", "shop/one", "shop/two"]
HOSTILE = ["$(touch_x)", "`id`", "a;b", "-rf", "a'b", "a*", "a:b", "a=b", "ä"]


@pytest.fixture(scope="module")
def namespace_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made(tmp_path_factory.mktemp("namespace") / "log", LOGS)


def made(directory: Path, logs: list[str]) -> str:
    """The URI of a new namespace with these logs."""
    with dlog.blocking.open_namespace(directory.as_uri()) as namespace:
        for log in logs:
            namespace.create_log(log)
        assert set(namespace.list_logs()) == set(logs)
    return directory.as_uri()


@pytest.fixture
def uri(namespace_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in [one for one in os.environ if one.startswith("DLOG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DLOG_URI", namespace_uri)
    monkeypatch.setattr(completion, "LIMIT_S", 60)
    return namespace_uri


def completed(line: str) -> list[str]:
    """The words offered for the last word of a line, which may be empty."""
    *words, incomplete = line.split(" ")
    shell = ShellComplete(program, {"obj": {}}, "dlog", completion.VARIABLE)
    return [item.value for item in shell.get_completions(words, incomplete)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("log show ", LOGS),
        ("read o", ["orders", "outbox"]),
        ("write shop/", ["shop/one", "shop/two"]),
        ("cursor list shop/t", ["shop/two"]),
        ("log delete orders shop/one ", ["outbox", "shop/two"]),
        ("verify nothing", []),
    ],
)
def test_names_of_logs_are_completed(uri: str, line: str, offered: list[str]) -> None:
    assert completed(line) == offered


@pytest.mark.slow
def test_every_command_with_logs_completes_them(uri: str) -> None:
    lines = [
        "read",
        "write",
        "tail",
        "verify",
        *(f"cursor {one}" for one in ("list", "show", "set", "delete")),
    ]
    lines += [f"log {one}" for one in ("show", "truncate", "purge", "delete", "retention", "retain")]
    assert [line for line in lines if completed(f"{line} ord") != ["orders"]] == []


@pytest.mark.slow
def test_the_namespace_is_the_one_that_the_command_would_use(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLOG_URI", "")
    monkeypatch.setenv("DLOG_CONFIG", "")
    assert completed(f"read --uri {uri} ord") == ["orders"]
    assert completed(f"--uri {uri} read ord") == ["orders"]
    monkeypatch.setenv("DLOG_URI", "")
    file = tmp_path / "dlog.toml"
    file.write_text(f'uri = "{uri}"\n')
    assert completed(f"--config {file} read ord") == ["orders"]


def test_commands_and_options_are_completed_without_an_import_of_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.import_module", None)
    assert completed("l") == ["log", "ledger"]
    assert set(completed("")) == set(COMMANDS)
    assert "--config" in completed("--")


def test_options_of_a_command_are_completed(uri: str) -> None:
    assert completed("read --fr") == ["--from"]
    assert completed("completion ") == ["bash", "zsh"]


@pytest.mark.slow
def test_a_name_that_a_shell_would_not_take_as_text_is_not_offered(uri: str, tmp_path: Path) -> None:
    """Other clients choose names. Sent with the line, some would run as commands."""
    hostile = made(tmp_path / "hostile", [*HOSTILE, "orders"])
    assert completed(f"read --uri {hostile} ") == ["orders"]


def tree(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything that a write below a directory changes."""
    return {
        str(each): (each.stat().st_ino, each.stat().st_mtime_ns, each.read_bytes() if each.is_file() else b"")
        for each in sorted(directory.rglob("*"))
    }


def test_completion_writes_nothing(uri: str) -> None:
    directory = Path(uri.removeprefix("file://")).parent
    before = tree(directory)
    assert len(before) > 3
    assert completed("write ord") == ["orders"]
    assert tree(directory) == before


def test_completion_creates_no_directory(uri: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert completed(f"read --uri {missing.as_uri()} ") == []
    assert not missing.exists()


@pytest.mark.parametrize(
    "options",
    [
        "--uri nonsense",
        "--uri distributedlog://admin:open-sesame@zk1/shop",
        "--uri file:///dev/null/x",
        "--uri file:///var?nonsense=1",
    ],
)
def test_an_error_completes_nothing(uri: str, options: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert completed(f"read {options} ") == []
    assert capfd.readouterr() == ("", "")


def test_a_wrong_configuration_completes_nothing(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_URI", "")
    monkeypatch.setenv("DLOG_CONFIG", "/missing.toml")
    assert completed("read ") == []
    assert completed("read --fr") == ["--from"]


def test_completion_ends_although_the_namespace_does_not_reply(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = threading.Event()
    monkeypatch.setattr(completion, "LIMIT_S", 0.01)

    def late(uri: str, parent: str) -> list[str]:
        reply.wait(10)
        return LOGS

    monkeypatch.setattr(completion, "_listed", late)
    try:
        assert completed("read ") == []
        assert not reply.is_set()
    finally:
        reply.set()


def test_bash_passes_its_line_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """bash's own words are divided at the colons of a URI."""
    shell = completion.BashLine(program, {}, "dlog", completion.VARIABLE)
    for line, words in [
        ("dlog read --uri file:///a ord", (["read", "--uri", "file:///a"], "ord")),
        ("dlog read ", (["read"], "")),
        ("dlog 'read", ([], "read")),
        ("dlog", ([], "dlog")),
        ("", ([], "")),
    ]:
        monkeypatch.setenv("COMP_LINE", line)
        assert shell.get_completion_args() == words


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_of_a_shell_is_printed(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    printed = capfd.readouterr().out
    assert f"{completion.VARIABLE}={shell}_complete" in printed
    assert "_dlog_completion" in printed


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A program ``dlog`` of this checkout, with time for a slow machine."""
    file = tmp_path / "bin" / "dlog"
    file.parent.mkdir()
    file.write_text(
        f"#!{sys.executable}\nimport os, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from dlog.cli.main import main\nfrom dlog.cli.terminal import completion\n"
        "completion.LIMIT_S = 60\n"
        "def noisy(uri, parent):\n"
        "    print('noise', file=sys.stderr, flush=True)\n"
        "    return ['orders']\n"
        "if 'NOISE' in os.environ:\n"
        "    completion._listed = noisy\n"
        "sys.exit(main())\n"
    )
    file.chmod(0o755)
    return file


def answer(command: Path, shell: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, completion.VARIABLE: f"{shell}_complete", **more}
    return subprocess.run([str(command)], env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_both_shells_get_names_and_never_an_error(uri: str, command: Path) -> None:
    bash = answer(command, "bash", COMP_LINE="dlog log show shop/")
    assert bash.stdout.split() == ["plain,shop/one", "plain,shop/two"]
    assert (bash.stderr, bash.returncode) == ("", 0)
    noisy = answer(command, "bash", COMP_LINE="dlog read ", NOISE="1")
    assert (noisy.stdout.split(), noisy.stderr) == (["plain,orders"], "")
    zsh = answer(command, "zsh", COMP_WORDS="dlog read ou", COMP_CWORD="2")
    assert (zsh.stdout.split("\n")[:3], zsh.stderr) == (["plain", "outbox", "_"], "")
    for wrong in (
        answer(command, "fish", COMP_LINE="dlog "),
        answer(command, "bash", COMP_LINE="dlog read ", DLOG_WRITE_QUORUM="x"),
        answer(command, "bash", COMP_LINE="dlog read ", DLOG_CONFIG="/missing.toml", DLOG_URI=""),
    ):
        assert (wrong.stdout.strip(), wrong.stderr, wrong.returncode) == ("", "", 0)


def screen_of(bash: int) -> Iterator[str]:
    """All that bash has shown so far, each time that it shows more."""
    shown = b""
    while select.select([bash], [], [], 240)[0]:
        shown += os.read(bash, 4096)
        yield shown.decode("utf-8", "replace")
    raise AssertionError(f"bash shows nothing more than {shown!r}")


@pytest.mark.slow
def test_a_real_bash_completes_the_name_of_a_log(uri: str, command: Path) -> None:
    """The line is typed into a terminal, with a URI in it, whose colon divides bash's own words."""
    found = shutil.which("bash")
    assert found, "the tests need bash"
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover
        os.environ["PATH"] = f"{command.parent}:{os.environ['PATH']}"
        os.environ["PS1"], os.environ["TERM"] = "ready> ", "dumb"
        os.execv(found, [found, "--norc", "--noprofile", "-i"])
    try:
        termios.tcsetwinsize(terminal, (24, 1000))  # so that no word is divided by the end of a line
        os.write(terminal, b"source <(dlog completion bash); echo load''ed\n")
        next(screen for screen in screen_of(terminal) if "loaded" in screen)
        os.write(terminal, f"dlog read --uri {uri} out\t".encode())
        next(screen for screen in screen_of(terminal) if "outbox " in screen)
    finally:
        os.close(terminal)  # bash ends with its terminal
        os.waitpid(child, 0)
