"""Each command on logs, tried by principals without its right: refused, nothing changed, nothing told."""

# covers: dlog/cli/logs/policy.py

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import attrs
import click
import pytest
import trio

import dlog
from dlog.cli.main import main, program
from dlog.cli.terminal.exit_codes import ExitCode
from ledger.deploy.directory import METADATA
from ledger.metadata_store.sqlite_store.reader import open_sqlite_reader
from ledger.metadata_store.store import MetadataStore
from namespace.policy import Policy, Right, Rule

pytestmark = pytest.mark.slow

LOG, SHARDED, SECRET = "shop/orders", "shop/shards", "the payload of an order"
RULES = {
    "stranger": Rule("stranger", "elsewhere", frozenset({Right.READ})),
    "neighbour": Rule("neighbour", "other/*", frozenset({Right.ADMIN})),
    "reader": Rule("reader", "shop/*", frozenset({Right.READ})),
    "committer": Rule("committer", "shop/*", frozenset({Right.COMMIT})),
    "writer": Rule("writer", "shop/*", frozenset({Right.WRITE})),
    "administrator": Rule("administrator", "shop/*", frozenset({Right.ADMIN})),
}
OPERATOR = Rule("operator", "*", frozenset({Right.ADMIN}))
MAY = {  # as docs/security.md says
    "stranger": set[Right](),
    "neighbour": set[Right](),
    "reader": {Right.READ},
    "committer": {Right.READ, Right.COMMIT},
    "writer": {Right.READ, Right.WRITE},
    "administrator": set(Right),
}


@attrs.frozen
class Command:
    """A command line, without the program."""

    words: str
    right: Right | None  # None: it lists what the principal may see
    on_all: bool = False  # the right on the logs "*"
    is_of_clusters: bool = False  # a directory does not have it, and says so

    def is_allowed(self, principal: str) -> bool:
        return self.right is None or (not self.on_all and self.right in MAY[principal])

    def codes(self, expected: ExitCode) -> set[ExitCode]:
        return {expected, ExitCode.USAGE} if self.is_of_clusters else {expected}


READ, COMMIT, WRITE, ADMIN = Right
COMMANDS = [
    Command("log list", None),
    Command("access show", None, is_of_clusters=True),
    Command("policy show", None),
    Command("top --once", None),
    Command("log check {log}", READ),
    Command("log count {log}", READ),
    Command("log locate {log}", READ),
    Command("log position {log} 0", READ),
    Command("log properties {log}", READ),
    Command("log purge {log} --dry-run", READ),
    Command("log retention {log}", READ),
    Command("log show {log}", READ),
    Command("cursor list {log}", READ),
    Command("blob list", None),
    Command("blob show {log}", READ),
    Command("blob get {log} -", READ),
    Command("blob put {log}-new {file}", WRITE),
    Command("blob put {log} {file} --replace", ADMIN),
    Command("blob delete {log} --yes", ADMIN),
    Command("blob sweep", ADMIN, on_all=True),
    Command("cursor show {log} c", READ),
    Command("log heal {log}", ADMIN),
    Command("log repair {log} --yes", READ),  # the log is as it should be, so nothing is repaired
    Command("read {log}", READ),
    Command("scan {log} --columns txid --sql FROM/**/log", READ),
    Command("verify {log}", READ),
    Command("tail {log} --from earliest --count 1", READ),
    Command("explain log {log}", READ),
    Command("promote {uri} --log {log} --status", READ),
    Command("cursor set {log} c --at earliest", COMMIT),
    Command("cursor delete {log} c", COMMIT),
    Command("log create {log}-new", WRITE),
    Command("log recover {log}", WRITE),
    Command("write {log} {file}", WRITE),
    Command("write {log}-new {file} --create", WRITE),
    Command("log create {log}-sharded --shards 2", ADMIN),
    Command("log properties {log} owner=me", ADMIN),
    Command("log retention {log} --age 9d", ADMIN),
    Command("log purge {log}", ADMIN),
    Command("log retain {log}", ADMIN),
    Command("log truncate {log} --before latest", ADMIN),
    Command("log rename {log} {log}-new", ADMIN),
    Command("log seal {log} --yes", ADMIN),
    Command("promote {uri} --log {log} --to {target} --create --not-shared-with-java --yes", ADMIN),
    Command("promote {uri} --log {log} --undo --yes", ADMIN),
    Command("promote {uri} --log {log} --purge --yes", ADMIN),
    Command("log delete {sharded} --sharded --yes", ADMIN),
    Command("log delete {log} --yes", ADMIN),
    Command("log orphans", ADMIN, on_all=True),
    Command("log orphans 1 --delete --yes", ADMIN, on_all=True),
    Command("access set {log} --deny truncate", ADMIN, on_all=True, is_of_clusters=True),
    Command("access delete {log}", ADMIN, on_all=True, is_of_clusters=True),
    Command("access enable", ADMIN, on_all=True, is_of_clusters=True),
    Command("policy set {policy}", ADMIN, on_all=True),
    Command("policy delete --yes", ADMIN, on_all=True),
]
# Their rights are those of the calls of the table that they make; they need Spark, load a namespace, or run
# until a signal.
ELSEWHERE = ("pipeline", "bench", "config", "proxy", "log watch", "exporter")


async def _stored(store: MetadataStore, path: str = "/dlog") -> dict[str, tuple[bytes, int]]:
    node, children = await store.get(path), await store.children(path)
    found = {path: (node.value, node.stat.version)}
    for name in children.names:
        found |= await _stored(store, f"{path}/{name}")
    return found


def stored(uri: str) -> dict[str, tuple[bytes, int]]:
    """The nodes below the root of the namespace, without opening it."""

    async def go() -> dict[str, tuple[bytes, int]]:
        directory = Path(uri.removeprefix("file://"))
        async with open_sqlite_reader(directory / METADATA, is_fixed=True) as store:
            return await _stored(store)

    return trio.run(go)


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A namespace with a policy, a log with a record and a cursor, and a sharded log."""
    monkeypatch.delenv("DLOG_DEBUG", raising=False)
    monkeypatch.delenv("DLOG_CONFIG", raising=False)
    uri = (tmp_path / "namespace").as_uri()

    async def prepare() -> None:
        async with dlog.open_namespace(uri, config=dlog.NamespaceConfig(principal="operator")) as operator:
            of_blobs = [attrs.evolve(rule, logs=f".blobs/{rule.logs}") for rule in RULES.values()]
            await operator.policy.set(Policy((OPERATOR, *RULES.values(), *of_blobs)))
            async with operator.open_writer(LOG, create=True) as writer:
                await writer.append(SECRET.encode())
            await operator.blobs.put(LOG, SECRET.encode())
            await operator.cursors(LOG).set("c", dlog.DLSN(1, 0, 0))
            await dlog.shards.create_sharded_log(operator, SHARDED, 2)

    trio.run(prepare)
    return uri


def line(command: Command, tmp_path: Path, uri: str) -> list[str]:
    file, policy = tmp_path / "lines", tmp_path / "policy.json"
    file.write_bytes(b"one\n")
    policy.write_text(
        json.dumps({"version": 1, "rules": [{"principal": "*", "logs": "*", "rights": ["admin"]}]})
    )
    target = f"{(tmp_path / 'target').as_uri()}?{uri.partition('?')[2]}"
    words = command.words.format(uri=uri, log=LOG, sharded=SHARDED, file=file, policy=policy, target=target)
    return words.split()


@pytest.mark.parametrize("principal", RULES)
def test_a_command_without_its_right_is_refused_changes_nothing_and_tells_nothing(
    principal: str,
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    own = f"{uri}?principal={principal}"
    monkeypatch.setenv("DLOG_URI", own)
    before, wrong = stored(uri), []
    for command in COMMANDS:
        if command.is_allowed(principal) and command.right is not None:
            continue
        code = main(line(command, tmp_path, own))
        told = capfd.readouterr()
        if command.right is None:
            if code not in command.codes(ExitCode.OK):
                wrong.append(f"{command.words}: {code}, {told.err}")
            if Right.READ not in MAY[principal] and (LOG in told.out or SHARDED in told.out):
                wrong.append(f"{command.words} names a log: {told.out}")
        elif code not in command.codes(ExitCode.DENIED):
            wrong.append(f"{command.words}: {code}, {told.out}{told.err}")
        if SECRET in told.out + told.err and Right.READ not in MAY[principal]:
            wrong.append(f"{command.words} shows a record")
        if stored(uri) != before:
            wrong.append(f"{command.words} changes the namespace")
            before = stored(uri)
    assert not wrong, "\n".join(wrong)


def test_the_operator_is_refused_none_of_them(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """So the lines above are valid, and it is the right that is missing."""
    own, wrong = f"{uri}?principal=operator", []
    monkeypatch.setenv("DLOG_URI", own)
    for command in COMMANDS:
        code = main(line(command, tmp_path, own))
        refused = {ExitCode.DENIED} if command.is_of_clusters else {ExitCode.DENIED, ExitCode.USAGE}
        if code in refused:
            wrong.append(f"{command.words}: {code}, {capfd.readouterr().err}")
    assert not wrong, "\n".join(wrong)


def _commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None, name
            yield from _commands(found, (*path, name))
    else:
        yield " ".join(path), group


def test_each_command_on_a_namespace_is_tried() -> None:
    tried = [command.words for command in COMMANDS]
    for name, command in _commands(program):
        options = {option for each in command.params for option in each.opts}
        if "--uri" in options and not name.startswith(ELSEWHERE):
            assert any(f"{words} ".startswith(f"{name} ") for words in tried), (
                f"dlog {name}: add it to the commands of this test"
            )
