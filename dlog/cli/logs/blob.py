"""`dlog blob put|get|list|show|delete|sweep`: contents of any size under names, beside the logs."""

from __future__ import annotations

import contextlib
import mimetypes
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import attrs
import click
import trio

import dlog
from dlog.blobs import Blob, BlobReader, BlobSweep, BlobWriter
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import gather, json_option, read_only_option, uri_option
from dlog.cli.terminal.output import (
    counted,
    moment_text,
    print_facts,
    print_json,
    print_note,
    print_table,
    progress_bar,
    write_out,
)
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run
from ledger.runtime.new_file import new_file

READ_BYTES = 4 * 1024 * 1024
STREAM = "-"  # in place of a file: stdin or stdout
_RANGE = re.compile(r"(\d*):(\d*)")


@click.group("blob", cls=CommandGroup)
def command() -> None:
    """Put, get, list, show and delete blobs.

    A blob is a content of any size under a name, beside the logs of a namespace. It appears whole, or not at
    all.
    """


def _labels(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for (key, is_pair, _), text in zip(pairs, given, strict=True):
        if not key or not is_pair:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", context, parameter)
    return {key: value for key, _, value in pairs}


def _range(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, int | None] | None:
    if text is None:
        return None
    found = _RANGE.fullmatch(text)
    start, end = (found[1], found[2]) if found else ("", "")
    if found is None or (end and int(end) < int(start or 0)):
        raise click.BadParameter(
            f"{text!r} is not START:END, such as 0:100, 100: or :100", context, parameter
        )
    return int(start or 0), int(end) if end else None


@attrs.frozen
class _Choices:
    """The options of `put`."""

    content_type: str | None
    labels: dict[str, str]
    replace: bool
    expect: str | None

    def open_writer(
        self, namespace: dlog.Namespace, name: str
    ) -> contextlib.AbstractAsyncContextManager[BlobWriter]:
        return namespace.blobs.open_writer(
            name,
            content_type=self.content_type or "",
            labels=self.labels,
            replace=self.replace,
            expect=self.expect,
        )


@command.command("put")
@click.argument("name")
@click.argument("file")
@uri_option
@click.option(
    "--type", "content_type", metavar="TYPE", help="The content type; else the name of FILE decides."
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", callback=_labels, help="Kept with it.")
@click.option("--replace", is_flag=True, help="Replace a blob of this name.")
@click.option("--expect", metavar="ID", help="Replace the blob with this id, and no other.")
@json_option("the facts about the blob")
@gather(choices=_Choices)
def put(name: str, file: str, uri: str, choices: _Choices, as_json: bool) -> None:
    """Put FILE, or stdin for -, as the blob NAME."""
    if choices.content_type is None and file != STREAM:
        choices = attrs.evolve(choices, content_type=mimetypes.guess_type(file)[0])
    with contextlib.ExitStack() as stack:
        source = sys.stdin.buffer if file == STREAM else stack.enter_context(open(file, "rb"))
        blob = run(partial(_put, uri, name, source, choices, as_json))
    if as_json:
        print_json(_document(blob))
    else:
        print_note(f"blob {name}: {counted(blob.size_bytes, 'byte')}, id {blob.blob_id}")


async def _put(uri: str, name: str, source: BinaryIO, choices: _Choices, quiet: bool) -> Blob:
    descriptor = source.fileno()
    total = os.fstat(descriptor).st_size or None  # of a pipe it is not known
    read = partial(os.read, descriptor, READ_BYTES)
    async with dlog.open_namespace(uri) as namespace, choices.open_writer(namespace, name) as writer:
        with progress_bar(f"putting {name}", total, unit="B", quiet=quiet) as show:
            while block := await trio.to_thread.run_sync(read, abandon_on_cancel=True):
                await writer.write(block)
                show(writer.size_bytes)
    assert writer.result is not None  # the block ended without an error
    return writer.result


@command.command("get")
@click.argument("name")
@click.argument("file")
@uri_option
@click.option(
    "--range", "wanted", metavar="START:END", callback=_range, help="These bytes only, as in a slice."
)
@click.option("--force", is_flag=True, help="Replace FILE.")
@json_option("the result")
@read_only_option
def get(
    name: str,
    file: str,
    uri: str,
    wanted: tuple[int, int | None] | None,
    force: bool,
    as_json: bool,
    read_only: bool,
) -> None:
    """Write the content of the blob NAME to FILE, or to stdout for -.

    FILE appears when it is complete. The content is checked by its digest.
    """
    if file == STREAM:
        if as_json:
            raise click.UsageError("--json needs a FILE: with - the content goes to stdout")
        if sys.stdout.isatty():
            raise click.UsageError("stdout is a terminal; name a FILE, or pass the content to a program")
    elif not force and Path(file).exists():
        raise click.UsageError(f"{file} exists; give --force to replace it")
    start, end = wanted or (0, None)
    with contextlib.ExitStack() as stack:
        write: Callable[[bytes], Awaitable[object]] = write_out
        if file != STREAM:
            write = _writing(stack.enter_context(_new(Path(file), force)))
        got = run(partial(_get, uri, name, start, end, write, as_json, read_only))
    if as_json:
        print_json(got | {"file": file})
    elif file != STREAM:
        print_note(f"{file}: {counted(int(str(got['size_bytes'])), 'byte')}")


@contextlib.contextmanager
def _new(path: Path, force: bool) -> Iterator[BinaryIO]:
    with new_file(path, replaces=force) as under_way, under_way.open("xb") as file:
        yield file


def _writing(file: BinaryIO) -> Callable[[bytes], Awaitable[object]]:
    async def write(part: bytes) -> None:
        await trio.to_thread.run_sync(file.write, part)

    return write


async def _get(
    uri: str,
    name: str,
    start: int,
    end: int | None,
    write: Callable[[bytes], Awaitable[object]],
    quiet: bool,
    read_only: bool,
) -> dict[str, object]:
    async with (
        dlog.open_namespace(uri, read_only=read_only) as namespace,
        namespace.blobs.open_reader(name, start=start, end=end) as reader,
    ):
        size_bytes = await _copied(reader, name, write, quiet)
        return {"name": name, "id": reader.blob.blob_id, "start": start, "size_bytes": size_bytes}


async def _copied(
    reader: BlobReader, name: str, write: Callable[[bytes], Awaitable[object]], quiet: bool
) -> int:
    size_bytes = 0
    with progress_bar(f"getting {name}", reader.blob.size_bytes, unit="B", quiet=quiet) as show:
        async for part in reader:
            await write(part)
            size_bytes += len(part)
            show(reader.position)
    return size_bytes


@command.command("list")
@click.argument("prefix", default="")
@uri_option
@json_option("the facts about the blobs")
@read_only_option
def list_(prefix: str, uri: str, as_json: bool, read_only: bool) -> None:
    """List the blobs whose names begin with PREFIX."""

    async def go() -> list[Blob]:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            return list(await namespace.blobs.list(prefix))

    found = run(go)
    if as_json:
        print_json([_document(blob) for blob in found])
    elif found:
        rows = [
            [blob.name, str(blob.size_bytes), blob.content_type or "-", moment_text(blob.created_ms)]
            for blob in found
        ]
        print_table(["blob", "bytes", "type", "put at"], rows)
    else:
        print_note("no blobs")


@command.command("show")
@click.argument("name")
@uri_option
@json_option("the facts about the blob")
@read_only_option
def show(name: str, uri: str, as_json: bool, read_only: bool) -> None:
    """Show the facts about the blob NAME."""

    async def go() -> Blob:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            return await namespace.blobs.describe(name)

    blob = run(go)
    if as_json:
        print_json(_document(blob))
        return
    facts = [
        ("blob", blob.name),
        ("id", blob.blob_id),
        ("bytes", str(blob.size_bytes)),
        ("sha256", blob.sha256),
        ("type", blob.content_type or "-"),
        ("put at", moment_text(blob.created_ms)),
        ("ledgers", " ".join(str(piece.ledger_id) for piece in blob.pieces) or "-"),
    ]
    print_facts(facts + [(f"label {key}", value) for key, value in blob.labels.items()])


@command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@uri_option
@click.option("--yes", is_flag=True, help="Delete without asking.")
def delete(names: tuple[str, ...], uri: str, yes: bool) -> None:
    """Delete blobs."""
    if not yes:
        confirm(f"Delete {counted(len(names), 'blob')} permanently?")

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            for name in names:
                await namespace.blobs.delete(name)
                print_note(f"deleted blob {name}")

    run(go)


@command.command("sweep")
@uri_option
@json_option("the numbers")
def sweep(uri: str, as_json: bool) -> None:
    """Delete what interrupted programs left of blobs that they put or deleted."""

    async def go() -> BlobSweep:
        async with dlog.open_namespace(uri) as namespace:
            return await namespace.blobs.sweep()

    swept = run(go)
    if as_json:
        print_json(attrs.asdict(swept))
    else:
        live = f"; {counted(swept.live, 'program')} still put" if swept.live else ""
        print_note(f"deleted {counted(swept.ledgers, 'ledger')} of {counted(swept.uploads, 'upload')}{live}")


def _document(blob: Blob) -> dict[str, object]:
    return {
        "name": blob.name,
        "id": blob.blob_id,
        "size_bytes": blob.size_bytes,
        "sha256": blob.sha256,
        "content_type": blob.content_type,
        "labels": dict(blob.labels),
        "created_ms": blob.created_ms,
        "pieces": [attrs.asdict(piece) for piece in blob.pieces],
    }
