"""A client of a language server, as an editor is one: requests and replies over the pipes of its process.

Inside: the frames, numbered requests, what a server asks of an editor. Not inside: any meaning of a reply.

Source: Language Server Protocol 3.17, "Base Protocol".
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import attrs


@attrs.define
class LanguageServer:
    """A server that runs. Made by ``language_server``."""

    _input: IO[bytes]
    _output: IO[bytes]
    _requests: int = 0

    def ask(self, method: str, params: object) -> Any:
        """Send a request; return its result. What the server says in between is answered with nothing."""
        self._requests += 1
        self._send({"id": self._requests, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" in message:
                if "id" in message:
                    items = message.get("params", {}).get("items", ())  # of workspace/configuration
                    self._send({"id": message["id"], "result": [None for _ in items] or None})
            elif message["id"] == self._requests:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def tell(self, method: str, params: object) -> None:
        """Send what has no reply."""
        self._send({"method": method, "params": params})

    def _send(self, message: dict[str, object]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._input.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._input.flush()

    def _receive(self) -> dict[str, Any]:
        size = 0
        while (line := self._output.readline()) != b"\r\n":
            if not line:
                raise EOFError("the language server has ended")
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        message: dict[str, Any] = json.loads(self._output.read(size))
        return message


@contextmanager
def language_server(command: Sequence[str], folder: Path) -> Iterator[LanguageServer]:
    """Start a server for the programs in a folder; end it with the block."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        server = LanguageServer(process.stdin, process.stdout)
        root = folder.as_uri()
        server.ask(
            "initialize",
            {
                "processId": os.getpid(),  # without this process, the server ends
                "rootUri": root,
                "workspaceFolders": [{"uri": root, "name": folder.name}],
                "capabilities": {"workspace": {"configuration": True, "workspaceFolders": True}},
            },
        )
        server.tell("initialized", {})
        yield server
    finally:
        process.kill()
        process.communicate()
