"""Where the programs that share the writer of a log meet: the owner's address, and connections to it.

Inside: the node with the address, sockets in the directory of a ``file:`` namespace. Not inside: a cluster's
connections (``network_meeting``), the log's lock, which makes a program the owner, the frames.
Always: nothing depends on the node for safety. An address that leads nowhere, or to an owner of yesterday,
costs time only: the log's lock and the fence of its ledgers decide who writes.

Source: our own; docs/shared.md, "Where they meet".
"""

from __future__ import annotations

import abc
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from hashlib import sha256
from itertools import count

import trio

from ledger.deploy.directory import Directory, not_for_children
from ledger.metadata_store.errors import BadVersionError, MetadataError, NodeExistsError, NoNodeError
from ledger.runtime.tasks.service_tasks import ServiceTasks, open_service_tasks
from ledger.transport.pipe import stream_pair
from namespace.log_nodes import LogNodes
from namespace.owner_node import LogOwner, decode_owner, encode_owner, read_owner
from namespace.policy import Right

COUNT_S = 0.2  # the number of forwarders is written this long after it has changed


Serve = Callable[[trio.abc.Stream, str | None], Awaitable[None]]
"""Serves a connection to its end; with the name that the other program has proven, None if it proves none."""
Door = Callable[[trio.abc.Stream], None]
"""What takes a connection of this process."""


class NodeMeeting(abc.ABC):
    """The node with the owner's address, and the tasks of an owner."""

    def __init__(self, nodes: LogNodes) -> None:
        self._nodes = nodes

    async def check_door(self) -> None:
        """See ``shared_shell.Meeting``."""
        await trio.lowlevel.checkpoint()

    async def address(self, changed: trio.Event) -> str | None:
        """The owner's address; None if there is no owner. ``changed`` is set when another one may be there.

        Raises:
            ledger.metadata_store.errors.MetadataError: The store failed.
        """
        owner = await read_owner(self._nodes, changed)
        # Only an address that an owner of this log can have made: a node decides about nothing else.
        return owner.address if owner is not None and self._is_ours(owner.address) else None

    @abc.abstractmethod
    def _is_ours(self, address: str) -> bool:
        """True if an owner of this log can have this address."""

    @abc.abstractmethod
    def _door(self, serve: Serve, tasks: ServiceTasks) -> AbstractAsyncContextManager[str]:
        """Take connections during the block, whose value is the address."""

    @abc.abstractmethod
    async def check(self, name: str, right: Right) -> None:
        """See ``shared_shell.Meeting``."""

    @asynccontextmanager
    async def opened(self, serve: Serve) -> AsyncIterator[None]:
        """Take connections, each in a task, and let others know; for the owner, which has the lock.

        Raises:
            ledger.errors.DirectoryUnusableError: No socket can be made.
            NoMeetingError: This machine has no such address, or a file of the security cannot be used.
            LogUnavailableError: No port is free.
            ledger.metadata_store.errors.MetadataError: The store failed.
        """
        connected, changed = set[trio.abc.Stream](), trio.Event()

        async def counted(stream: trio.abc.Stream, name: str | None) -> None:
            connected.add(stream)
            changed.set()
            await serve(stream, name)
            connected.discard(stream)
            changed.set()

        async def keep_count(address: str) -> None:
            nonlocal changed
            while True:
                await changed.wait()
                await trio.sleep(COUNT_S)
                changed = trio.Event()
                with suppress(MetadataError):  # the next change writes it again
                    await self._count(LogOwner(address, len(connected)))

        async with open_service_tasks() as tasks, self._door(counted, tasks) as address:
            try:
                await self._publish(LogOwner(address, 0))
                tasks.start_soon(keep_count, address)
                yield
            finally:
                tasks.cancel()
                with trio.CancelScope(shield=True), trio.move_on_after(1), suppress(MetadataError):
                    await self._withdraw(address)

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

    async def _withdraw(self, address: str) -> None:
        store, path = self._nodes.store, self._nodes.owner_path
        with suppress(NoNodeError):
            found = decode_owner((await store.get(path)).value)
            if found is not None and found.address == address:
                await store.delete(path)


class DirectoryMeeting(NodeMeeting):
    """For a log in a directory: a unix socket, which only this user and root can reach."""

    def __init__(self, directory: Directory, nodes: LogNodes) -> None:
        super().__init__(nodes)
        self._directory = directory
        # Of its own for each log. No character of the log's name gets into the name of a file.
        self._prefix = f"log-{sha256(nodes.name.encode()).hexdigest()[:16]}-"

    def _is_ours(self, address: str) -> bool:
        return address.startswith(self._prefix) and address.endswith(".sock") and "/" not in address

    async def check(self, name: str, right: Right) -> None:
        """See ``shared_shell.Meeting``: no program proves a name, for all are of one user."""

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
        with kept_from_children(stream):
            yield stream

    @asynccontextmanager
    async def _door(self, serve: Serve, tasks: ServiceTasks) -> AsyncIterator[str]:
        for old in self._directory.sockets(self._prefix):
            self._directory.remove_socket(old)  # of owners that were killed
        name = f"{self._prefix}{secrets.token_hex(4)}.sock"
        listener = self._directory.listen(name)

        async def serve_one(stream: trio.SocketStream) -> None:
            with kept_from_children(stream):
                await serve(stream, None)

        async def accept() -> None:
            while True:
                tasks.start_soon(serve_one, await listener.accept())

        tasks.start_soon(accept)
        try:
            yield name
        finally:
            not_for_children.pop(listener, None)
            listener.socket.close()
            self._directory.remove_socket(name)


class MemoryMeeting(NodeMeeting):
    """For programs in one process, as in ``dlog.testing``, which share the doors of owners by address."""

    def __init__(self, doors: dict[str, Door], nodes: LogNodes) -> None:
        super().__init__(nodes)
        self._doors = doors

    def _is_ours(self, address: str) -> bool:
        return address in self._doors and address.rpartition("#")[0] == self._nodes.name

    async def check(self, name: str, right: Right) -> None:
        """See ``shared_shell.Meeting``: no program proves a name, for all are one process."""

    @asynccontextmanager
    async def connected(self, address: str) -> AsyncIterator[trio.abc.Stream | None]:
        """See ``DirectoryMeeting.connected``."""
        serve = self._doors.get(address)
        if serve is None:
            yield None
            return
        ours, theirs = stream_pair()
        serve(theirs)
        try:
            yield ours
        finally:
            await trio.aclose_forcefully(ours)

    @asynccontextmanager
    async def _door(self, serve: Serve, tasks: ServiceTasks) -> AsyncIterator[str]:
        numbers = (f"{self._nodes.name}#{number}" for number in count())
        address = next(each for each in numbers if each not in self._doors)
        self._doors[address] = lambda stream: tasks.start_soon(serve, stream, None)
        try:
            yield address
        finally:
            del self._doors[address]


@contextmanager
def kept_from_children(stream: trio.SocketStream | trio.SocketListener) -> Iterator[None]:
    """A forked child closes its copy, or the other end would not see that this process is gone."""
    # By its number: closing the stream itself would change what the parent's loop watches.
    not_for_children[stream] = partial(os.close, stream.socket.fileno())
    try:
        yield
    finally:
        not_for_children.pop(stream, None)
        stream.socket.close()
