"""What a program prints of an error: each message once, few frames, and no more of them at the next call."""

# covers: ledger/causes.py

from __future__ import annotations

import asyncio
import inspect
import os
import re
import resource
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

import dlog
import dlog.aio
import dlog.blocking
import ledger
import ledger.blocking
from dlog.explain import collect_bookie, collect_ledger, collect_log
from dlog.explain.collecting import collect_cluster
from dlog.explain.facts import ClusterFacts
from dlog.groups import join_group
from ledger.causes import cause_of
from namespace.policy import Policy, Right, Rule
from tests.fakes.small_disk import small_directory

NO_CLUSTER = ClusterFacts(writable=frozenset(), readonly=frozenset())
FRAMES_MAX = 15
WORDS_MIN = 4  # of a sentence; fewer are a name, or "No space left"
FACES = (dlog, dlog.aio, dlog.blocking)
REFUSED = "distributedlog://127.0.0.1:1/shop?connect_timeout_s=0.2"


@attrs.define
class Place:
    """Where a case makes its call: the names of a face, an open namespace, a writer of log ``held``."""

    face: ModuleType
    path: Path
    ns: Any = None
    held: Any = None
    closed: Any = None  # a writer
    shards: Any = dlog.shards
    wal: Any = dlog.wal

    @property
    def uri(self) -> str:
        return f"file://{self.path}"


Case = Callable[[Place], Any]


def apply(_: bytes) -> None:
    raise KeyError("no such account")


@contextmanager
def no_descriptors() -> Iterator[None]:
    """No more descriptors than are open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


OPENING: dict[str, Case] = {
    "no scheme of ours": lambda p: p.face.open_namespace("kafka://x"),
    "no absolute path": lambda p: p.face.open_namespace("file:orders"),
    "no setting": lambda p: p.face.open_namespace(f"{p.uri}?nothing=1"),
    "a wrong setting": lambda p: p.face.open_namespace(p.uri, settings={"write_quorum": "many"}),
    "no settings file": lambda p: p.face.open_namespace(p.uri, config_file="/nowhere/dlog.toml"),
    "a file for a directory": lambda p: p.face.open_namespace("file:///etc/passwd"),
    "a directory that cannot be made": lambda p: p.face.open_namespace("file:///proc/1/dlog"),
    "no right to make a directory": lambda p: p.face.open_namespace("file:///sys/dlog"),
    "nothing to read": lambda p: p.face.open_namespace(f"{p.uri}/empty", read_only=True),
    "no ZooKeeper": lambda p: p.face.open_namespace(REFUSED),
}

CALLS: dict[str, Case] = {
    "no log to write": lambda p: p.ns.open_writer("none"),
    "no log to read": lambda p: p.ns.open_reader("none", follow=False),
    "no log to describe": lambda p: p.ns.describe_log("none"),
    "no log to delete": lambda p: p.ns.delete_log("none"),
    "no log to truncate": lambda p: p.ns.truncate_log("none", dlog.DLSN(1, 0, 0)),
    "no log with properties": lambda p: p.ns.properties.get("none"),
    "no name": lambda p: p.ns.open_writer("a//b"),
    "a log that exists": lambda p: p.ns.create_log("held"),
    "a held lock": lambda p: p.ns.open_writer("held", lock_timeout_s=0),
    "a sealed log": lambda p: p.ns.open_writer("sealed"),
    "text to append": lambda p: p.held.append("text"),
    "text among many": lambda p: p.held.append_many([b"bytes", "text"]),
    "a long record": lambda p: p.held.append(bytes(1 << 22)),
    "an old id": lambda p: p.held.append(b"x", txid=0),
    "a wrong id": lambda p: p.held.append(b"x", txid=1.5),
    "another last record": lambda p: p.held.append_after(b"x", None),
    "a closed writer": lambda p: p.closed.append(b"x"),
    "a closed writer reopened": lambda p: p.closed.reopen(),
    "an unknown argument": lambda p: p.ns.open_writer("held", forever=True),
    "a wrong start": lambda p: p.ns.open_reader("held", start="now"),
    "no cursor": lambda p: p.ns.open_reader("held", cursor="a/b"),
    "no batch": lambda p: p.ns.batches.attach("held", 7),
    "a wrong retention": lambda p: p.ns.retention.set("held", 7),
    "no shards": lambda p: p.shards.open_sharded_writer(p.ns, "held"),
    "too many shards": lambda p: p.shards.create_sharded_log(p.ns, "new", 100_000),
    "half a snapshot": lambda p: p.wal.open_wal(p.ns, apply=apply, snapshot=bytes),
    "an operation that fails again": lambda p: p.wal.open_wal(p.ns, apply=apply),
}

# A namespace of another face, for a function that takes a namespace.
FOREIGN: dict[str, Callable[[ModuleType, Any], Any]] = {
    "open a writer of shards": lambda face, ns: face.open_sharded_writer(ns, "log"),
    "open a reader of shards": lambda face, ns: face.open_sharded_reader(ns, "log"),
    "create shards": lambda face, ns: face.create_sharded_log(ns, "log"),
    "name shards": lambda face, ns: face.shard_names(ns, "log"),
    "delete shards": lambda face, ns: face.delete_sharded_log(ns, "log"),
    "join a group": lambda face, ns: face.join_group(ns, "group", ["log"]),
    "open a write-ahead log": lambda face, ns: face.open_wal(ns, apply=len),
}

# An object of another face, for a function of a package that is for trio alone.
FOR_TRIO: dict[str, Callable[[Any], Any]] = {
    "collect the facts of a log": lambda other: collect_log(other, "log"),
    "collect those of a ledger": lambda other: collect_ledger(other, 0, NO_CLUSTER),
    "collect those of a bookie": lambda other: collect_bookie(other, "bookie", NO_CLUSTER),
    "collect those of a cluster": lambda other: collect_cluster(other),
}

REFUSED_CALLS: dict[str, Case] = {
    "create": lambda p: p.ns.create_log("new"),
    "open a writer": lambda p: p.ns.open_writer("held"),
    "seal": lambda p: p.ns.seal_log("held"),
}

# Calls of a principal whom the policy allows nothing.
NO_RIGHTS: dict[str, Case] = {
    "create": lambda p: p.ns.create_log("new"),
    "open a writer": lambda p: p.ns.open_writer("held"),
    "open a shared writer": lambda p: p.ns.open_writer("held", shared=True),
    "open a reader": lambda p: p.ns.open_reader("held", follow=False),
    "describe": lambda p: p.ns.describe_log("held"),
    "count": lambda p: p.ns.count_records("held"),
    "truncate": lambda p: p.ns.truncate_log("held", dlog.DLSN(1, 0, 0)),
    "seal": lambda p: p.ns.seal_log("held"),
    "rename": lambda p: p.ns.rename_log("held", "new"),
    "delete": lambda p: p.ns.delete_log("held"),
    "read a property": lambda p: p.ns.properties.get("held"),
    "change a property": lambda p: p.ns.properties.change("held", {"owner": "me"}),
    "set a retention": lambda p: p.ns.retention.set("held", dlog.Retention(age_s=9)),
    "change the policy": lambda p: p.ns.policy.set(None),
    "open a writer of shards": lambda p: p.shards.open_sharded_writer(p.ns, "sharded"),
    "open a write-ahead log": lambda p: p.wal.open_wal(p.ns, apply=apply),
}

LOST: dict[str, Case] = {
    "append": lambda p: p.held.append(b"x"),
    "create": lambda p: p.ns.create_log("new"),
    "open a writer": lambda p: p.ns.open_writer("other"),
}


async def provoke_async(case: Case, place: Place, call: Any) -> BaseException:
    try:
        result = case(place)
        if isinstance(result, AbstractAsyncContextManager):
            async with result:
                pass
        elif inspect.isawaitable(result):
            await result
    except BaseException as exc:
        return exc
    raise AssertionError(f"{call}: no error")


def provoke(case: Case, place: Place, call: Any) -> BaseException:
    try:
        opened = case(place)
    except BaseException as exc:
        return exc
    opened.close()
    raise AssertionError(f"{call}: no error")


def prepare(place: Place) -> None:
    with dlog.blocking.open_namespace(place.uri) as ns:
        ns.create_log("other")
        with ns.open_writer("held", create=True) as held:
            held.append(b"first", txid=5)
        with ns.open_writer("sealed", create=True) as sealed:
            sealed.seal()
        with ns.open_writer("wal/operations", create=True) as operations:
            operations.append(b"x", txid=1)


def allow_nothing(place: Place) -> None:
    """Allow the logs to another principal alone."""
    with dlog.blocking.open_namespace(place.uri) as ns:
        dlog.blocking.create_sharded_log(ns, "sharded", 2)
        ns.policy.set(Policy((Rule("operator", "*", frozenset({Right.ADMIN})),)))


def run(
    face: ModuleType,
    path: Path,
    cases: dict[str, Case],
    *,
    before: Callable[[Place], object] = lambda place: None,
    between: Callable[[], object] = lambda: None,
    **options: Any,
) -> Iterator[tuple[str, BaseException, BaseException]]:
    """Each case, and the errors of two calls in a row."""
    place = Place(face, path)
    prepare(place)
    before(place)
    found: list[tuple[str, BaseException, BaseException]] = []

    async def main() -> None:
        async with AsyncExitStack() as stack:
            place.ns = await stack.enter_async_context(face.open_namespace(place.uri, **options))
            if not options:
                async with place.ns.open_writer("other") as place.closed:
                    pass
                place.held = await stack.enter_async_context(place.ns.open_writer("held"))
            between()
            for name, case in cases.items():
                first = await provoke_async(case, place, name)
                found.append((name, first, await provoke_async(case, place, name)))

    async def whole() -> None:
        try:
            await main()
        except dlog.DLogError:  # of closing, where the namespace is lost
            assert len(found) == len(cases)

    if face is dlog:
        trio.run(whole)
    elif face is dlog.aio:
        place.shards = place.wal = face
        asyncio.run(whole())
    else:
        place.shards = place.wal = face
        with ExitStack() as stack:
            place.ns = stack.enter_context(face.open_namespace(place.uri, **options))
            if not options:
                with place.ns.open_writer("other") as place.closed:
                    pass
                place.held = place.ns.open_writer("held")
            between()
            for name, case in cases.items():
                found.append((name, provoke(case, place, name), provoke(case, place, name)))
            stack.pop_all()
            try:
                place.ns.close()
            except dlog.DLogError:
                pass  # the namespace is lost
    return iter(found)


def check(name: str, error: BaseException) -> None:
    """Check what would be printed."""
    printed = traceback.TracebackException.from_exception(error)
    text = "".join(printed.format())
    assert text.count('  File "') <= FRAMES_MAX, f"{name}: {text.count('  File ')} frames\n{text}"
    messages, shown = [], error
    chain: BaseException | None = error
    while chain is not None:
        shown = chain
        assert not isinstance(shown, BaseExceptionGroup) or len(shown.exceptions) > 1, f"{name}: {text}"
        messages.append(str(shown))
        chain = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    for at, message in enumerate(messages):
        for other in messages[:at] + messages[at + 1 :]:
            assert len(message.split()) < WORDS_MIN or message not in other, f"{name}: twice\n{text}"
    sentences = [part.strip() for message in messages for part in re.split(r"[:;()]|\. |, ", message)]
    long = [part for part in sentences if len(part.split()) >= WORDS_MIN]
    assert len(long) == len(set(long)), f"{name}: twice\n{text}"


def frames_of(error: BaseException) -> int:
    return "".join(traceback.format_exception(error)).count('  File "')


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_an_error_prints_each_message_once_in_few_frames(face: ModuleType, tmp_path: Path) -> None:
    for name, first, second in run(face, tmp_path, {**OPENING, **CALLS}):
        check(name, first)
        check(name, second)
        assert frames_of(first) == frames_of(second), name
    for name, first, _ in run(face, tmp_path / "read", REFUSED_CALLS, read_only=True):
        check(name, first)


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_so_does_that_of_a_lost_directory(face: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "ns"
    for name, first, second in run(face, path, LOST, between=lambda: shutil.rmtree(path)):
        check(name, first)
        check(name, second)


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_so_does_that_of_a_call_without_the_right_to_it(face: ModuleType, tmp_path: Path) -> None:
    stranger = dlog.NamespaceConfig(principal="stranger")
    for name, first, second in run(face, tmp_path, NO_RIGHTS, before=allow_nothing, config=stranger):
        assert isinstance(first, dlog.AccessDeniedError), (name, first)
        check(name, first)
        check(name, second)
        assert frames_of(first) == frames_of(second), name


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_so_does_that_of_a_directory_of_another_user(
    face: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(face, tmp_path)
    prepare(place)

    def opened(p: Place) -> Any:
        return face.open_namespace(p.uri)

    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if face is dlog.blocking:
        error = provoke(opened, place, "open")
    elif face is dlog.aio:
        error = asyncio.run(provoke_async(opened, place, "open"))
    else:
        error = trio.run(provoke_async, opened, place, "open")
    assert isinstance(error, dlog.EmbeddedStoreError)
    check("open", error)


@pytest.mark.mounts
@pytest.mark.slow
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_so_does_that_of_a_full_disk(face: ModuleType, tmp_path: Path) -> None:
    with small_directory(tmp_path / "disk", 64 << 20) as small:
        fill = {"append": lambda p: p.held.append_many([bytes(1 << 19) for _ in range(160)])}
        for name, first, second in run(face, Path(small.path) / "ns", fill):
            assert isinstance(first, dlog.DiskFullError)
            check(name, first)
            check(name, second)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_so_does_that_of_no_descriptor(face: ModuleType, tmp_path: Path) -> None:
    def opened(place: Place) -> Any:
        return place.face.open_namespace(place.uri)

    async def provoked() -> BaseException:
        with no_descriptors():
            return await provoke_async(opened, Place(face, tmp_path), "open")

    if face is dlog:
        error = trio.run(provoked)
    elif face is dlog.aio:
        error = asyncio.run(provoked())
    else:
        with no_descriptors():
            error = provoke(opened, Place(face, tmp_path), "open")
    check("open", error)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_so_does_that_of_a_namespace_of_another_face(face: ModuleType, name: str, tmp_path: Path) -> None:
    functions: Any = face
    if face is dlog:
        functions = SimpleNamespace(**vars(dlog.shards), join_group=join_group, open_wal=dlog.wal.open_wal)
    other = dlog.blocking if face is dlog.aio else dlog.aio
    with dlog.blocking.open_namespace(tmp_path.as_uri()) as blocking:
        # Never entered: only its class counts.
        foreign = blocking if other is dlog.blocking else dlog.aio.Namespace(None, None)  # type: ignore[arg-type]
        place = Place(face, tmp_path, ns=foreign)

        def case(_: Place) -> Any:
            return FOREIGN[name](functions, place.ns)

        if face is dlog.blocking:
            error = provoke(case, place, name)
        elif face is dlog.aio:
            error = asyncio.run(provoke_async(case, place, name))
        else:
            error = trio.run(provoke_async, case, place, name)
    assert isinstance(error, TypeError)
    assert "dlog.aio" in str(error)
    assert "dlog.blocking" in str(error)
    check(name, error)


@pytest.mark.parametrize("name", FOR_TRIO)
def test_so_does_that_of_an_object_of_another_face_for_a_function_of_trio_alone(
    name: str, tmp_path: Path
) -> None:
    with dlog.blocking.open_namespace(tmp_path.as_uri()) as blocking:
        for other in (blocking, dlog.aio.Namespace(None, None)):  # type: ignore[arg-type]
            place = Place(dlog, tmp_path, ns=other)

            def case(p: Place) -> Any:
                return FOR_TRIO[name](p.ns)

            error = trio.run(provoke_async, case, place, name)
            assert isinstance(error, TypeError)
            assert "dlog.explain is for programs on trio" in str(error)
            check(name, error)


LEDGERS: dict[str, Callable[[Any], Any]] = {
    "no ledger": lambda client: client.open(99_999),
    "no ledger to recover": lambda client: client.recover(99_999),
    "too few bookies": lambda client: client.create(ensemble_size=3, write_quorum=3, ack_quorum=2),
}


def open_ledgers(uri: str, _: Place) -> object:
    return ledger.blocking.open_client(uri)


@pytest.mark.parametrize("name", LEDGERS)
def test_so_do_those_of_ledgers(name: str, tmp_path: Path) -> None:
    uri, case = f"file://{tmp_path}", LEDGERS[name]
    with dlog.blocking.open_namespace(uri):
        pass
    with ledger.blocking.open_client(uri) as client, pytest.raises(ledger.LedgerError) as caught:
        case(client)
    check(name, caught.value)

    async def main() -> None:
        async with ledger.open_client(uri) as client:
            with pytest.raises(ledger.LedgerError) as caught:
                await case(client)
        check(name, caught.value)

    trio.run(main)


@pytest.mark.parametrize(
    "wrong", ["kafka://x", pytest.param("zk://127.0.0.1:1/ledgers", marks=pytest.mark.slow)]
)
def test_so_do_those_of_a_wrong_address_of_ledgers(wrong: str, tmp_path: Path) -> None:
    error = provoke(partial(open_ledgers, wrong), Place(ledger, tmp_path), wrong)
    check(wrong, error)
    assert isinstance(error, ledger.LedgerError)


def test_a_hidden_cause_is_found_all_the_same(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    with dlog.blocking.open_namespace(uri) as ns, pytest.raises(dlog.LogNotFoundError) as caught:
        ns.open_writer("none")
    assert caught.value.__cause__ is None
    assert type(cause_of(caught.value)).__name__ == "NoNodeError"


ELSEWHERE: dict[str, Case] = {
    "append": lambda p: p.held.append(b"x"),
    "append many": lambda p: p.held.append_many([b"x"]),
    "submit": lambda p: p.held.submit(b"x"),
    "flush": lambda p: p.held.flush(),
    "reopen": lambda p: p.held.reopen(),
    "create": lambda p: p.ns.create_log("new"),
    "open a writer": lambda p: p.ns.open_writer("other"),
    "open a reader": lambda p: p.ns.open_reader("held"),
}


def test_so_does_that_of_a_call_of_asyncio_in_the_loop_of_another_thread(tmp_path: Path) -> None:
    place = Place(dlog.aio, tmp_path)
    prepare(place)

    def in_a_loop_of_its_own(name: str) -> BaseException:
        return asyncio.run(provoke_async(ELSEWHERE[name], place, name))

    async def main() -> None:
        async with dlog.aio.open_namespace(place.uri) as place.ns, place.ns.open_writer("held") as place.held:
            for name in ELSEWHERE:
                error = await asyncio.to_thread(in_a_loop_of_its_own, name)
                assert isinstance(error, RuntimeError), (name, error)
                check(name, error)
            assert place.held.last_txid == 5  # nothing was taken
            assert sorted(await place.ns.list_logs()) == ["held", "other", "sealed", "wal/operations"]

    asyncio.run(main())


HOLDER = """
import sys, dlog.blocking
with dlog.blocking.open_namespace(sys.argv[1]) as namespace, namespace.open_writer("held"):
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_so_does_that_of_a_lock_that_another_process_holds(face: ModuleType, tmp_path: Path) -> None:
    place = Place(face, tmp_path)
    prepare(place)

    def locked(p: Place) -> Any:
        return p.ns.open_writer("held", lock_timeout_s=0)

    async def main() -> tuple[BaseException, BaseException]:
        async with face.open_namespace(place.uri) as place.ns:
            return await provoke_async(locked, place, "1"), await provoke_async(locked, place, "2")

    arguments = [sys.executable, "-c", HOLDER, place.uri]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holds\n"
            if face is dlog:
                errors = trio.run(main)
            elif face is dlog.aio:
                errors = asyncio.run(main())
            else:
                with face.open_namespace(place.uri) as place.ns:
                    errors = provoke(locked, place, "1"), provoke(locked, place, "2")
        finally:
            holder.communicate()
    assert holder.returncode == 0
    for error in errors:
        assert isinstance(error, dlog.LogLockedError)
        check("a lock of another process", error)
    assert frames_of(errors[0]) == frames_of(errors[1])
