"""Backups in a bucket of S3, or of a store that speaks its protocol.

An object appears when its upload is complete, so it is whole or not there. There are no locks: a process that
writes leaves an object ``writer`` with its name and the time, renews it, and takes it away at the end.
Another one waits until it is a minute old, or was left by a process of this host that is no more.

Inside: objects by pyarrow's file systems. Not inside: what they mean (``format``, ``store``).
Always: as ``destination`` says; a manifest is written only while the object ``writer`` is this process's.

Source: our own; Amazon S3 API; pyarrow.fs.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from typing import Any
from urllib.parse import urlsplit

from dlog.backup.errors import BackupDamagedError, BackupError, BackupInUseError, BackupUnreachableError
from ledger.runtime.clock import wall_ms

WRITER = "writer"
LEASE_MS = 60_000  # a process that has not renewed for as long is taken for dead
RENEW_MS = 15_000


class S3Destination:
    """Objects below a prefix of a bucket."""

    def __init__(self, uri: str) -> None:
        """
        Raises:
            BackupError: The URI has a key, or cannot be parsed; or pyarrow is not installed.
        """
        parts = urlsplit(uri)
        if "@" in parts.netloc or ":" in parts.netloc:  # a secret may have a slash, and then it ends there
            raise BackupError(
                "destination s3://***: it has a key, and lists of processes and the history of a shell show"
                " it. Remove it, and put it into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or below ~/.aws"
                " (docs/backup.md)"
            )
        self.where = f"{parts.scheme}://{parts.netloc}{parts.path}"
        try:
            from pyarrow import fs
        except ImportError:
            raise BackupError(
                f"destination {self.where}: it needs the package pyarrow; pip install '.[arrow]'"
            ) from None
        try:
            self._files, top = fs.FileSystem.from_uri(uri)
        except (ValueError, OSError) as exc:
            raise BackupError(f"destination {self.where}: {exc}") from None
        self._top, self._select = top.rstrip("/"), fs.FileSelector
        if "/" not in self._top:
            raise BackupError(f"destination {self.where}: name a prefix in the bucket: s3://BUCKET/PREFIX")
        self._id = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4()}"
        self._renewed_ms: int | None = None  # None: this process does not write there

    def begin(self, *, create: bool) -> None:
        found = self._writer()
        if found is not None and found[0] != self._id and not _is_dead(found[0]):
            age_ms = wall_ms() - found[1]
            if age_ms < LEASE_MS:
                host, pid, _ = found[0].split(" ")
                raise BackupInUseError(
                    f"destination {self.where}: process {pid} on {host} writes there. If it was killed, try"
                    f" again in {(LEASE_MS - age_ms) / 1000:.0f} s"
                )
        self._renew()

    def end(self) -> None:
        if self._renewed_ms is not None:
            self._renewed_ms = None
            self.delete(WRITER)

    def put(self, name: str, data: bytes) -> None:
        if self._renewed_ms is not None and wall_ms() - self._renewed_ms > RENEW_MS:
            self.settle()
            self._renew()
        self._write(name, data)

    def settle(self) -> None:
        """Check that no other process writes here; objects are durable when they are written."""
        found = self._writer()
        if self._renewed_ms is not None and (found is None or found[0] != self._id):
            self._renewed_ms = None
            raise BackupInUseError(f"destination {self.where}: another process has begun to write there")

    def get(self, name: str) -> bytes:
        try:
            with self._files.open_input_file(f"{self._top}/{name}") as file:  # a stream reads small parts
                return bytes(file.read())
        except FileNotFoundError:
            raise BackupDamagedError(name, f"it is missing in {self.where}") from None
        except OSError as exc:
            raise self._failed(exc) from None

    def names(self, prefix: str) -> list[str]:
        top = f"{self._top}/{prefix.rstrip('/')}"
        try:
            infos = self._files.get_file_info(self._select(top, recursive=True, allow_not_found=True))
        except OSError as exc:
            raise self._failed(exc) from None
        return [each.path[len(self._top) + 1 :] for each in infos if each.is_file]

    def delete(self, name: str) -> None:
        try:
            self._files.delete_file(f"{self._top}/{name}")
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise self._failed(exc) from None

    def _write(self, name: str, data: bytes) -> None:
        try:
            with self._files.open_output_stream(f"{self._top}/{name}") as stream:
                stream.write(data)
        except OSError as exc:
            raise self._failed(exc) from None

    def _renew(self) -> None:
        now_ms = wall_ms()
        self._write(WRITER, json.dumps({"writer": self._id, "renewed_ms": now_ms}).encode())
        self._renewed_ms = now_ms

    def _writer(self) -> tuple[str, int] | None:
        try:
            document: Any = json.loads(self.get(WRITER))
            name, renewed_ms = document["writer"], document["renewed_ms"]
            if len(name.split(" ")) == 3 and isinstance(renewed_ms, int):
                return name, renewed_ms
        except (BackupDamagedError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass  # there is none, or it is not ours
        return None

    def _failed(self, exc: OSError) -> BackupUnreachableError:
        return BackupUnreachableError(f"destination {self.where}: {exc}")


def _is_dead(writer: str) -> bool:
    """True if a process of this host left the name and is no more."""
    host, pid, _ = writer.split(" ")
    if host != socket.gethostname() or not (len(pid) < 10 and pid.isdecimal()):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is another user's
    return False
