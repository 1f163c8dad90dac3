"""A service that keeps files: what was put whole is there, also after kill -9 and a power cut.

    python examples/file_service.py DIRECTORY 8080
    curl -T photo.jpg localhost:8080/photos/1.jpg           # 201 when the file is on disk, 409 if it is there
    curl localhost:8080/photos/1.jpg -o copy.jpg
    curl -H "Range: bytes=0-99" localhost:8080/photos/1.jpg  # 206 with these bytes
    curl localhost:8080/?prefix=photos/                      # the names, as JSON
    curl -X DELETE localhost:8080/photos/1.jpg

Each file is a blob of a namespace. Neither an upload nor a download holds a whole file in memory. In place of
DIRECTORY, a URI such as distributedlog://zk1:2181/files keeps them on a cluster of bookies. It needs
hypercorn and starlette.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import hypercorn.trio
import trio
from hypercorn import Config
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import dlog
from dlog.blobs import BlobExistsError, BlobNotFoundError, BlobReader, InvalidBlobNameError

RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def wanted(request: Request) -> tuple[int, int | None] | None:
    """The range that a client asks for, as in a slice; None for the whole file."""
    found = RANGE.fullmatch(request.headers.get("range", ""))
    if found is None or (found[2] and int(found[2]) < int(found[1])):
        return None
    return int(found[1]), int(found[2]) + 1 if found[2] else None


async def parts(stack: AsyncExitStack, reader: BlobReader) -> AsyncIterator[bytes]:
    """The content for a response, which closes the reader at its end."""
    async with stack:
        async for part in reader:
            yield part


def application(namespace: dlog.Namespace) -> Starlette:
    """The HTTP interface."""
    blobs = namespace.blobs

    async def put(request: Request) -> Response:
        kind = request.headers.get("content-type", "application/octet-stream")
        try:
            async with blobs.open_writer(request.path_params["name"], content_type=kind) as writer:
                async for part in request.stream():
                    await writer.write(part)
        except BlobExistsError:
            return Response("this file is there already\n", status_code=409)
        except InvalidBlobNameError as exc:
            return Response(f"{exc}\n", status_code=400)
        except ClientDisconnect:  # the block above has dropped what came
            return Response(status_code=499)
        assert writer.result is not None  # the block ended without an error
        return Response(status_code=201, headers={"etag": f'"{writer.result.sha256}"'})

    async def get(request: Request) -> Response:
        bounds = wanted(request)
        start, end = bounds or (0, None)
        stack = AsyncExitStack()
        try:
            opening = blobs.open_reader(request.path_params["name"], start=start, end=end)
            reader = await stack.enter_async_context(opening)
        except (BlobNotFoundError, InvalidBlobNameError):
            return Response(status_code=404)
        size = reader.blob.size_bytes
        if start and start >= size:
            await stack.aclose()
            return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
        stop = size if end is None else min(end, size)
        headers = {"content-length": str(stop - start), "etag": f'"{reader.blob.sha256}"'}
        if bounds is not None:
            headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
        return StreamingResponse(
            parts(stack, reader),
            status_code=200 if bounds is None else 206,
            headers=headers,
            media_type=reader.blob.content_type,
        )

    async def delete(request: Request) -> Response:
        try:
            await blobs.delete(request.path_params["name"])
        except (BlobNotFoundError, InvalidBlobNameError):
            return Response(status_code=404)
        return Response(status_code=204)

    async def names(request: Request) -> Response:
        found = await blobs.list(request.query_params.get("prefix", ""))
        return JSONResponse([{"name": blob.name, "bytes": blob.size_bytes} for blob in found])

    return Starlette(
        routes=[
            Route("/", names, methods=["GET"]),
            Route("/{name:path}", get, methods=["GET"]),
            Route("/{name:path}", put, methods=["PUT"]),
            Route("/{name:path}", delete, methods=["DELETE"]),
        ]
    )


async def main(uri: str, port: int) -> None:
    config = Config()
    config.bind, config.accesslog, config.errorlog = [f"127.0.0.1:{port}"], None, None
    async with dlog.open_namespace(uri) as namespace:
        swept = await namespace.blobs.sweep()  # what a killed process left
        print(f"{len(await namespace.blobs.list())} files, {swept.uploads} interrupted", flush=True)
        await hypercorn.trio.serve(application(namespace), config)  # type: ignore[arg-type]


if __name__ == "__main__":
    place = sys.argv[1]
    trio.run(main, place if "://" in place else Path(place).absolute().as_uri(), int(sys.argv[2]))
