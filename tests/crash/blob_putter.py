"""A program that puts, replaces and deletes blobs until it is killed. It prints each act before and after.

python -m tests.crash.blob_putter URI SEED
"""

from __future__ import annotations

import random
import sys

import trio

import dlog

NAMES = ("a", "b", "c", "d")
SIZES = (0, 1, 1_000, 262_144, 700_000, 3_000_000)


def content_of(number: int, size: int) -> bytes:
    """Another content for each number."""
    return (b"%015d\n" % number * (size // 16 + 1))[:size]


async def main(uri: str, seed: int) -> None:
    rng = random.Random(seed)
    async with dlog.open_namespace(uri) as namespace:
        print("open", flush=True)
        while True:
            name, number, size = rng.choice(NAMES), rng.randrange(10**12), rng.choice(SIZES)
            if rng.random() < 0.2:
                print("delete", name, flush=True)
                try:
                    await namespace.blobs.delete(name)
                except dlog.blobs.BlobNotFoundError:
                    pass
            else:
                print("put", name, number, size, flush=True)
                async with namespace.blobs.open_writer(name, replace=True) as writer:
                    content = content_of(number, size)
                    for first in range(0, size, 500_000):
                        await writer.write(content[first : first + 500_000])
            print("done", flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
