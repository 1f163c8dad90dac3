"""The floor: records in a plain file, synced by fdatasync, and a reader that the kernel wakes.

The writer appends to each file in turn and syncs it; there is one file per replica. It then overwrites the
length in a small file that is not synced: a reader sees only bytes that are synced. The reader sleeps in
inotify until that file changes.

Source: inotify(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from tests.bench.peers.seam import Address, Peer, Service, no_servers

_LENGTH = struct.Struct(">q")
_IN_MODIFY = 2
_EVENTS_BYTES = 4096
READ_BYTES = 8 << 20


class FileWriter:
    """Appends to the files, syncs them, publishes the length."""

    def __init__(self, descriptors: Sequence[int], length_file: int) -> None:
        self._descriptors, self._length_file = descriptors, length_file
        self._length = 0

    def append(self, payloads: Sequence[bytes]) -> None:
        """As ``PeerWriter.append``."""
        data = memoryview(b"".join(payloads))
        for descriptor in self._descriptors:
            left = data
            while left:
                left = left[os.write(descriptor, left) :]
            os.fdatasync(descriptor)
        self._length += len(data)
        os.pwrite(self._length_file, _LENGTH.pack(self._length), 0)

    append_each = append


class FileReader:
    """Reads the first file up to the published length."""

    def __init__(self, data_file: int, length_file: int, events: int, size: int) -> None:
        self._data_file, self._length_file, self._events = data_file, length_file, events
        self._size = size
        self._position = 0

    def read(self) -> Sequence[memoryview]:
        """As ``PeerReader.read``."""
        while (length := self._published()) == self._position:
            os.read(self._events, _EVENTS_BYTES)
        whole = max(self._size, READ_BYTES // self._size * self._size)
        data = memoryview(
            os.pread(self._data_file, min(whole, length - self._position), self._position)
        ).toreadonly()
        data = data[: len(data) // self._size * self._size]
        self._position += len(data)
        return [data[first : first + self._size] for first in range(0, len(data), self._size)]

    def _published(self) -> int:
        data = os.pread(self._length_file, _LENGTH.size, 0)
        return int(_LENGTH.unpack(data)[0]) if len(data) == _LENGTH.size else 0


@contextlib.asynccontextmanager
async def _serve(directory: Path, replicas: int) -> AsyncIterator[Service]:
    yield Service({"directory": str(directory), "files": replicas}, replicas, no_servers)


@contextlib.contextmanager
def _open_writer(address: Address, _size: int) -> Iterator[FileWriter]:
    directory = Path(address["directory"])
    with contextlib.ExitStack() as files:
        descriptors = [
            _opened(files, directory / f"data-{number}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            for number in range(address["files"])
        ]
        yield FileWriter(descriptors, _opened(files, directory / "length", os.O_CREAT | os.O_WRONLY))


@contextlib.contextmanager
def _open_reader(address: Address, size: int) -> Iterator[FileReader]:
    directory = Path(address["directory"])
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.ExitStack() as files:
        data_file = _opened(files, directory / "data-0", os.O_RDONLY)
        length_file = _opened(files, directory / "length", os.O_RDONLY)
        events = libc.inotify_init1(os.O_CLOEXEC)
        if events < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        files.callback(os.close, events)
        # Watched before the first look, so that no change falls between the two.
        if libc.inotify_add_watch(events, os.fsencode(directory / "length"), _IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch failed")
        yield FileReader(data_file, length_file, events, size)


def _opened(files: contextlib.ExitStack, path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    files.callback(os.close, descriptor)
    return descriptor


def _find_missing() -> str | None:
    return None


PEER = Peer("file", _find_missing, _serve, _open_writer, _open_reader)
