"""Errors and values cross to other processes; handles refuse to."""

# covers: bookie/errors.py
# covers: dlog/bulk/errors.py
# covers: dlog/errors.py
# covers: dlog/groups/errors.py
# covers: dlog/shards/errors.py
# covers: dlog/wal/errors.py
# covers: ledger/errors.py
# covers: ledger/metadata_store/errors.py
# covers: namespace/errors.py
# covers: spark_integration/errors.py

from __future__ import annotations

import ast
import concurrent.futures
import copy
import enum
import functools
import importlib
import inspect
import multiprocessing
import pickle
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import dlog
import dlog.aio
import dlog.blobs
import dlog.blocking
import dlog.bulk
import dlog.explain
import dlog.groups
import dlog.shards
import dlog.testing
import dlog.wal
import ledger
import ledger.blocking
from dlog.testing import Problem, Rule
from ledger.errors import BookieTimeoutError
from tests.source_tree import modules

POSITION = dlog.DLSN(7, 42, 0)

# What a constructor of an error gets, by the annotation of its argument.
SAMPLES: dict[str, object] = {
    "str": "a text",
    "str | None": "a text",
    "int": 7,
    "int | None": 7,
    "float": 1.5,
    "float | None": 1.5,
    "bool": True,
    "DLSN": POSITION,
    "object": POSITION,
    "DLSN | None": POSITION,
    "tuple[str, ...]": ("one", "two"),
    "Sequence[str]": ["one", "two"],
    "Collection[str]": ["one", "two"],
    "Iterable[int]": [1, 2],
    "dict[str, str]": {"one": "two"},
    "dict[str, Exception]": {"one": BookieTimeoutError("one", "no reply")},
    "Sequence[Exception]": [BookieTimeoutError("one", "no reply")],
    "Exception": ValueError("why"),
    "DLogError": dlog.DLogError("why"),
    "BaseException": ValueError("why"),
    "OSError": OSError(5, "Input/output error", "/some/file"),
    "Path": Path("some", "directory"),
    "RecordOutcome": dlog.RecordOutcome.UNKNOWN,
    "Iterable[Problem]": [Problem(Rule.NO_GAP, "orders", "why")],
}


NEVER_RAISED = (ledger.BookieRefusal,)  # each of its subclasses has a code, and is


def public_errors() -> list[type[Exception]]:
    """Every error class of the packages, but for those of commands, which end in the command."""
    found: dict[str, type[Exception]] = {}
    for module in modules():
        named = {node.name for node in module.tree.body if isinstance(node, ast.ClassDef)}
        if module.path.startswith("dlog/cli/") or not any(
            name.endswith(("Error", "Refusal")) for name in named
        ):
            continue
        loaded = importlib.import_module(module.dotted)
        for name in named:
            value = getattr(loaded, name)
            if not name.startswith("_") and issubclass(value, Exception) and value not in NEVER_RAISED:
                found[f"{module.dotted}.{name}"] = value
    return [found[name] for name in sorted(found)]


def made(cls: type[Exception]) -> Exception:
    """An error of this class, with all arguments that its constructor names."""
    arguments: list[object] = []
    named: dict[str, object] = {}
    if cls.__init__ in (Exception.__init__, ValueError.__init__, OSError.__init__, AssertionError.__init__):
        return cls("what happened")
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        assert parameter.annotation in SAMPLES, (
            f"{cls.__qualname__} takes {parameter}: give SAMPLES a value of this kind"
        )
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = SAMPLES[parameter.annotation]
        else:
            arguments.append(SAMPLES[parameter.annotation])
    return cls(*arguments, **named)


def seen(error: BaseException) -> object:
    """All that a program can see of an error, nested errors included."""

    def plain(value: object) -> object:
        match value:
            case BaseException():
                return seen(value)
            case dict():
                return {key: plain(of_key) for key, of_key in value.items()}
            case list() | tuple():
                return type(value), [plain(part) for part in value]
            case _:
                return value

    of_system = [getattr(error, name, None) for name in ("errno", "strerror", "filename", "filename2")]
    return type(error), str(error), plain(error.args), plain(error.__dict__), of_system


def test_the_walk_finds_errors_of_every_package() -> None:
    packages = {cls.__module__.partition(".")[0] for cls in public_errors()}
    assert packages == {"ledger", "bookie", "namespace", "dlog", "spark_integration"}
    assert set(errors_exported_by(dlog)) <= set(public_errors())
    assert set(errors_exported_by(ledger)) - set(NEVER_RAISED) <= set(public_errors())


def errors_exported_by(package: Any) -> list[type[Exception]]:
    values = [getattr(package, name) for name in package.__all__]
    return [value for value in values if isinstance(value, type) and issubclass(value, Exception)]


def _name(again: object) -> str:
    return getattr(again, "__name__", f"pickle {again}")


@pytest.mark.slow
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, *range(pickle.HIGHEST_PROTOCOL + 1)], ids=_name)
def test_every_error_keeps_its_type_text_and_attributes_when_pickled_or_copied(
    again: int | Callable[[Any], Any],
) -> None:
    for cls in public_errors():
        error = made(cls)
        twin = pickle.loads(pickle.dumps(error, again)) if isinstance(again, int) else again(error)
        assert twin is not error
        assert seen(twin) == seen(error)


def test_notes_and_what_was_set_later_travel_with_an_error() -> None:
    error = dlog.LogWriteError("orders", "why")
    error.durable = (POSITION,)
    error.add_note("while closing")
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.durable, twin.__notes__) == (str(error), (POSITION,), ["while closing"])


def fail() -> None:
    raise dlog.LogLockedError("orders", "another/1", 0.5)


def in_pool() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply_async(fail).get(120)


def in_executor() -> None:
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        executor.submit(fail).result(120)


@pytest.mark.slow
@pytest.mark.parametrize("run", [in_pool, in_executor])
def test_an_error_of_a_worker_process_reaches_the_program_that_waits(run: Callable[[], None]) -> None:
    with pytest.raises(dlog.LogLockedError, match="another/1 holds its lock") as caught:
        run()
    assert (caught.value.log, caught.value.owner) == ("orders", "another/1")


def test_every_public_value_and_configuration_can_be_pickled_and_copied() -> None:
    values: list[object] = [
        POSITION,
        dlog.Record(POSITION, 5, b"payload", 9),
        dlog.NamespaceConfig(writer=dlog.WriterConfig(linger_ms=2), reader=dlog.ReaderConfig()),
        dlog.HealConfig(keep_s=5),
        dlog.Retention(size_bytes=3600),
        dlog.groups.GroupConfig(),
        ledger.ClientConfig(),
        ledger.TransportConfig(),
        ledger.PlacementConfig(),
        dlog.EARLIEST,
        dlog.LATEST,
        dlog.Compression.LZ4,
        dlog.DigestType.CRC32C,
        dlog.RecordOutcome.UNKNOWN,
        dlog.shards.ShardedPosition(1, POSITION),
    ]
    for value in values:
        assert pickle.loads(pickle.dumps(value)) == copy.copy(value) == copy.deepcopy(value) == value


FACES: list[Any] = [dlog, dlog.aio, dlog.blocking, ledger, ledger.blocking]
PACKAGES: list[Any] = [
    *FACES,
    dlog.blobs,
    dlog.bulk,
    dlog.explain,
    dlog.groups,
    dlog.shards,
    dlog.testing,
    dlog.wal,
]

# Public classes that are not made by attrs and are values all the same.
PLAIN_VALUES = {"RecordBatch", "History", "LogHistory"}


def public_names(package: Any) -> list[str]:
    names = getattr(package, "__all__", None)
    return [name for name in vars(package) if not name.startswith("_")] if names is None else names


def public_classes() -> list[type]:
    """The classes that the packages export, and those of the objects that a namespace holds."""
    found = {getattr(package, name) for package in PACKAGES for name in public_names(package)}
    held = [value for value in vars(dlog.Namespace).values() if isinstance(value, functools.cached_property)]
    found |= {typing.get_type_hints(each.func)["return"] for each in held}
    own = re.compile(r"(dlog|ledger)\b(?!\.runtime)")  # others are imported by a module without __all__
    return [each for each in found if isinstance(each, type) and own.match(each.__module__)]


def is_value(cls: type) -> bool:
    if getattr(cls, "_is_protocol", False):
        return True
    if any(inspect.iscoroutinefunction(each) for each in vars(cls).values()):
        return False
    plain = attrs.has(cls) or issubclass(cls, BaseException | enum.Enum | tuple)
    return plain or cls.__name__ in PLAIN_VALUES


def handles() -> list[type]:
    found = [cls for cls in public_classes() if not is_value(cls)]
    return sorted(found, key=lambda cls: f"{cls.__name__} of {cls.__module__}")


def test_the_walk_finds_the_handles_of_every_face() -> None:
    found = {(cls.__module__.partition(".")[0], cls.__name__) for cls in handles()}
    assert found >= {("dlog", "Namespace"), ("dlog", "RetentionCalls"), ("ledger", "WriteHandle")}
    modules = {
        cls.__module__ for cls in handles() if cls.__name__ in ("LogWriter", "Pending", "LedgerClient")
    }
    assert modules == {
        "dlog.write.log_writer", "dlog.write.pending", "dlog.aio.writer", "dlog.blocking.writer",
        "ledger.client", "ledger.blocking",
    }  # fmt: skip


@pytest.mark.parametrize("again", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda each: each.__name__)
def test_a_handle_says_that_it_belongs_to_its_process(again: Callable[[Any], Any]) -> None:
    """A class that is neither a handle of this kind nor a value is found here, too."""
    for cls in handles():
        with pytest.raises(TypeError) as caught:
            again(object.__new__(cls))
        assert f"a {cls.__name__} cannot be pickled or copied: it belongs to the process" in str(caught.value)


@pytest.mark.slow
def test_open_handles_refuse_to_be_pickled(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/log"
    with dlog.blocking.open_namespace(uri) as namespace, namespace.open_writer("a", create=True) as writer:
        writer.append(b"payload")
        statistics = namespace.statistics()
        assert pickle.loads(pickle.dumps(statistics)) == copy.deepcopy(statistics) == statistics
        with namespace.open_reader("a") as reader:
            future = writer.submit(b"another")
            handles = [namespace, namespace.retention, namespace.cursors("a"), writer, reader, future]
            for each in handles:
                with pytest.raises(TypeError, match="it belongs to the process that opened it"):
                    pickle.dumps(each)
            batch = reader.read_batch(10)
    assert batch is not None
    assert list(pickle.loads(pickle.dumps(batch))) == list(copy.deepcopy(batch)) == list(batch)
