"""docs/shell.md: each command of Apache's has a row; each command that a row or a message names exists."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dlog.cli.main import program
from tests.places import ROOT
from tests.source_tree import PACKAGES

PAGE = (ROOT / "docs/shell.md").read_text("utf-8")
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]*)\|$", re.MULTILINE)
NAMED = re.compile(r"`(dlog [^`]+)`")
NO_COMMANDS = {"dlog hash chain 1"}  # in front of what is hashed

# `bookkeeper shell help` and `bkctl help` of 4.17.3 and 4.18.0
SHELL = {
    "activeledgers",
    "autorecovery",
    "bookieformat",
    "bookieinfo",
    "bookiesanity",
    "check-db-ledgers-index",
    "clusterinfo",
    "convert-to-db-storage",
    "convert-to-interleaved-storage",
    "cookie_create",
    "cookie_delete",
    "cookie_generate",
    "cookie_get",
    "cookie_update",
    "decommissionbookie",
    "deleteledger",
    "endpointinfo",
    "forceauditchecks",
    "help",
    "initbookie",
    "initnewcluster",
    "lastmark",
    "ledger",
    "ledgermetadata",
    "listbookies",
    "listfilesondisc",
    "listledgers",
    "listunderreplicated",
    "localconsistencycheck",
    "lostbookierecoverydelay",
    "metaformat",
    "nukeexistingcluster",
    "queryautorecoverystatus",
    "readjournal",
    "readledger",
    "readlog",
    "readlogmetadata",
    "rebuild-db-ledger-locations-index",
    "rebuild-db-ledgers-index",
    "recover",
    "regenerate-interleaved-storage-index-file",
    "simpletest",
    "triggeraudit",
    "updateBookieInLedger",
    "updatecookie",
    "updateledgers",
    "whatisinstanceid",
    "whoisauditor",
}
BKCTL = {
    "bookie": """
        lastmark init format endpointinfo sanitytest ledger listfilesondisc converttodbstorage
        converttointerleavedstorage listledgers readjournal readledger readlog readlogmetadata
        localconsistencycheck rebuild-db-ledger-locations-index rebuild-db-ledgers-index
        check-db-ledgers-index flip-bookie-id regenerate-interleaved-storage-index-file
    """,
    "bookies": "list info metaformat nukeexistingcluster init recover decommission instanceid",
    "autorecovery": "whoisauditor triggeraudit toggle listunderreplicated lostbookierecoverydelay",
    "cookie": "create get update delete generate admin",
    "ledger": "simpletest show delete",
    "healthCheck": "switch",
    "bookieid": "searchreplace",
}
GROUPS = ("cluster", "namespace", "table", "tables")


def part(title: str) -> dict[str, tuple[str, str]]:
    """The rows of a part of the page: our commands, and remarks."""
    text = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return {found[1]: (found[2].strip(), found[3].strip()) for found in ROW.finditer(text)}


def exists(text: str) -> bool:
    """True if the words of a command line, up to the first that is no name, are a command or a group."""
    found: click.Command | None = program
    for word in shlex.split(text)[1:]:
        if not isinstance(found, click.Group) or not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        found = found.get_command(click.Context(found), word)
        if found is None:
            return False
    return True


def test_every_command_of_apache_has_a_row() -> None:
    shell, bkctl = part("`bookkeeper shell`"), part("`bkctl`")
    assert sorted(shell) == sorted(SHELL)
    names = [f"{group} {name}" for group, found in BKCTL.items() for name in found.split()]
    assert sorted(bkctl) == sorted([*names, *GROUPS])
    for name, (ours, remark) in (shell | bkctl).items():
        if ours == "none":
            assert remark, f"{name}: there is no command, and no reason"
        else:
            assert NAMED.findall(ours), name
        for command in NAMED.findall(f"{ours} {remark}"):
            assert exists(command), f"{name}: {command}"


def texts() -> Iterator[tuple[Path, str]]:
    """The strings of the program, with the parts of one message together."""
    for package in (*sorted(PACKAGES), "spark_integration"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield file, node.value
                elif isinstance(node, ast.JoinedStr):
                    parts = [one.value if isinstance(one, ast.Constant) else "X" for one in node.values]
                    yield file, "".join(map(str, parts))


def test_commands_that_messages_name_exist() -> None:
    """What an error tells the operator to do, a command does."""
    named = {(file, found) for file, text in texts() for found in NAMED.findall(" ".join(text.split()))}
    assert len(named) > 40
    wrong = [
        f"{file.relative_to(ROOT)}: {text}"
        for file, text in sorted(named)
        if not exists(text) and text not in NO_COMMANDS
    ]
    assert wrong == []


@pytest.mark.parametrize("text", ["dlog bookie no-such-command", "dlog nothing", "dlog ledger"])
def test_the_check_of_a_name_notices_one_that_does_not_exist(text: str) -> None:
    assert exists(text) == (text == "dlog ledger")
