"""Where the programs that share the writer of a log meet: the owner's address, and connections to it.

Inside: the node with the address, sockets in the directory of a ``file:`` namespace. Not inside: who is the
owner (the log's lock), what goes over the connections.
Always: nothing depends on the node for safety. An address that leads nowhere, or to an owner of yesterday,
costs time only: the log's lock and the fence of its ledgers decide who writes.

Source: our own; docs/shared.md, "Where they meet".
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from hashlib import sha256

import trio

from ledger.deploy.directory import Directory, not_for_children
from ledger.metadata_store.errors import BadVersionError, MetadataError, NodeExistsError, NoNodeError
from namespace.log_nodes import LogNodes
from namespace.owner_node import LogOwner, decode_owner, encode_owner, read_owner

COUNT_S = 0.2  # the number of forwarders is written this long after it has changed


class DirectoryMeeting:
    """For a log in a directory: a unix socket, which only this user and root can reach."""

    def __init__(self, directory: Directory, nodes: LogNodes) -> None:
        self._directory, self._nodes = directory, nodes
        # Of its own for each log. No character of the log's name gets into the name of a file.
        self._prefix = f"log-{sha256(nodes.name.encode()).hexdigest()[:16]}-"

    async def address(self, changed: trio.Event) -> str | None:
        """The owner's address; None if there is no owner. ``changed`` is set when another one may be there.

        Raises:
            ledger.metadata_store.errors.MetadataError: The store failed.
        """
        owner = await read_owner(self._nodes, changed)
        if owner is None:
            return None
        name = owner.address
        # Only a name that an owner of this log can have made: a node decides about no other file.
        is_ours = name.startswith(self._prefix) and name.endswith(".sock") and "/" not in name
        return name if is_ours else None

    @asynccontextmanager
    async def connected(self, address: str) -> AsyncIterator[trio.abc.Stream | None]:
        """Connect to an owner for the duration of the block; None if nobody is there.

        Raises:
            ledger.errors.DirectoryUnusableError: A process of another user listens there.
        """
        try:
            stream = await self._directory.connect(address)
        except OSError:
            stream = None
        if stream is None:
            yield None
            return
        with _not_for_children(stream):
            yield stream

    @asynccontextmanager
    async def opened(self, serve: Callable[[trio.abc.Stream], Awaitable[None]]) -> AsyncIterator[None]:
        """Take connections, each in a task, and let others know; for the owner, which has the lock.

        Raises:
            ledger.errors.DirectoryUnusableError: No socket can be made.
            ledger.metadata_store.errors.MetadataError: The store failed.
        """
        for name in self._directory.sockets(self._prefix):
            self._directory.remove_socket(name)  # of owners that were killed
        name = f"{self._prefix}{secrets.token_hex(4)}.sock"
        listener = self._directory.listen(name)
        connected, changed = set[trio.SocketStream](), trio.Event()
        try:
            async with trio.open_nursery() as nursery:

                async def serve_one(stream: trio.SocketStream) -> None:
                    connected.add(stream)
                    changed.set()
                    with _not_for_children(stream):
                        await serve(stream)
                    connected.discard(stream)
                    changed.set()

                async def accept() -> None:
                    while True:
                        nursery.start_soon(serve_one, await listener.accept())

                async def count() -> None:
                    nonlocal changed
                    while True:
                        await changed.wait()
                        await trio.sleep(COUNT_S)
                        changed = trio.Event()
                        with suppress(MetadataError):  # the next change writes it again
                            await self._count(LogOwner(name, len(connected)))

                nursery.start_soon(accept)
                await self._publish(LogOwner(name, 0))
                nursery.start_soon(count)
                yield
                nursery.cancel_scope.cancel()
        finally:
            not_for_children.pop(listener, None)
            listener.socket.close()
            self._directory.remove_socket(name)
            with trio.CancelScope(shield=True), trio.move_on_after(1), suppress(MetadataError):
                await self._withdraw(name)

    async def _publish(self, owner: LogOwner) -> None:
        store, path = self._nodes.store, self._nodes.owner_path
        while True:
            try:
                await store.create(path, encode_owner(owner), ephemeral=True)
                return
            except NodeExistsError:  # of an earlier owner; this one has the lock
                with suppress(NoNodeError):
                    await store.delete(path)

    async def _count(self, owner: LogOwner) -> None:
        """Write the number of forwarders, unless the node is another owner's."""
        store, path = self._nodes.store, self._nodes.owner_path
        with suppress(NoNodeError, BadVersionError):
            node = await store.get(path)
            if (found := decode_owner(node.value)) is not None and found.address == owner.address:
                await store.put(path, encode_owner(owner), expected=node.stat.version)

    async def _withdraw(self, name: str) -> None:
        store, path = self._nodes.store, self._nodes.owner_path
        with suppress(NoNodeError):
            if (found := decode_owner((await store.get(path)).value)) is not None and found.address == name:
                await store.delete(path)


@contextmanager
def _not_for_children(stream: trio.SocketStream) -> Iterator[None]:
    """A forked child closes its copy, or the other end would not see that this process is gone."""
    # By its number: closing the stream itself would change what the parent's loop watches.
    not_for_children[stream] = partial(os.close, stream.socket.fileno())
    try:
        yield
    finally:
        not_for_children.pop(stream, None)
        stream.socket.close()
