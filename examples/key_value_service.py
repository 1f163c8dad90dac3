"""A key-value store with HTTP whose acknowledged changes survive kill -9 and a power cut.

    python examples/key_value_service.py DIRECTORY 8080
    curl -X PUT --data hello localhost:8080/greeting     # 200 when the change is on disk
    curl localhost:8080/greeting
    curl -X DELETE localhost:8080/greeting

Each change is an operation of a write-ahead log: logged, then applied to the dictionary. A start restores the
newest snapshot and replays the operations behind it. It needs hypercorn and starlette.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hypercorn.trio
import trio
from hypercorn import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import dlog
from dlog import wal


class Values:
    """The state: text by key. It changes only by operations, so that a replay gives the same state."""

    def __init__(self) -> None:
        self.by_key: dict[str, str] = {}

    def apply(self, operation: bytes) -> str | None:
        """Change one key; return its value before."""
        key, value = json.loads(operation)
        before = self.by_key.pop(key, None)
        if value is not None:
            self.by_key[key] = value
        return before

    def dump(self) -> bytes:
        return json.dumps(self.by_key).encode()

    def restore(self, dump: bytes) -> None:
        self.by_key = json.loads(dump)


def application(values: Values, log: wal.WriteAheadLog[str | None]) -> Starlette:
    """The HTTP interface. A change is answered when it is durable and applied."""

    async def get(request: Request) -> Response:
        value = values.by_key.get(request.path_params["key"])
        return Response(status_code=404) if value is None else Response(value, media_type="text/plain")

    async def put(request: Request) -> Response:
        try:
            value = (await request.body()).decode()
        except UnicodeDecodeError:
            return Response("a value is text in UTF-8\n", status_code=400)
        await log.append(json.dumps([request.path_params["key"], value]).encode())
        return Response()

    async def delete(request: Request) -> Response:
        before = await log.append(json.dumps([request.path_params["key"], None]).encode())
        return Response(status_code=404 if before is None else 200)

    return Starlette(
        routes=[
            Route("/{key}", get, methods=["GET"]),
            Route("/{key}", put, methods=["PUT"]),
            Route("/{key}", delete, methods=["DELETE"]),
        ]
    )


async def main(uri: str, port: int) -> None:
    values, config = Values(), Config()
    config.bind, config.accesslog, config.errorlog = [f"127.0.0.1:{port}"], None, None
    async with (
        dlog.open_namespace(uri) as namespace,
        wal.open_wal(
            namespace,
            apply=values.apply,
            snapshot=values.dump,
            restore=values.restore,
            operations_between_snapshots=1_000,
        ) as log,
    ):
        print(f"{len(values.by_key)} keys, {log.index} operations", flush=True)
        await hypercorn.trio.serve(application(values, log), config)  # type: ignore[arg-type]


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]).absolute().as_uri(), int(sys.argv[2]))
