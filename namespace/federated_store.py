"""A metadata store that shows the sub-namespaces of a federated namespace as one namespace.

Inside: where each log is, where a new one goes, and paths below the namespace changed to the real ones in
every call. Not inside: the nodes of a log (``namespace``).
Always: all nodes of a log are looked for in the one sub-namespace that has it; a log in two of them is an
error; a log is created only if no sub-namespace has it, decided at one version of ``.subnamespaces`` and
stored with the next.

``<ns>/.subnamespaces/NS_<10 digits>`` and ``<ns>`` itself are sub-namespaces. Nodes whose names begin with
``.`` or ``<`` belong to the namespace and are not moved.

Each creation of a log, Apache's too, writes ``.subnamespaces`` at the version that it read. So a log that is
missing when it is looked for after reading the version is missing when the transaction succeeds. Reads never
go back in time, also over a new session (``sessions.renewing_store``).

Source: DistributedLog, FederatedZKLogMetadataStore.java; docs/metadata.md 16.16.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import attrs
import trio

from ledger.metadata_store.errors import BadVersionError, NoNodeError, StoreError
from ledger.metadata_store.forwarding import ForwardingStore
from ledger.metadata_store.store import (
    ANY_VERSION,
    Children,
    Create,
    MetadataStore,
    Node,
    Operation,
    Put,
    Stat,
    ancestors_of,
)
from namespace.bindings import SUB_NAMESPACES_NODE
from namespace.errors import ConfigError, LogMetadataError
from namespace.log_name import RESERVED_PREFIXES
from namespace.log_nodes import UNPARTITIONED
from namespace.node_reads import read_nodes

SUB_NAMESPACES, SUB_NAMESPACE_PREFIX = SUB_NAMESPACES_NODE, "NS_"
LOCATIONS_MAX = 100_000  # in memory; then all are looked for again
LOGS_MAX = 15_000  # of a sub-namespace that gets a new log; Apache's default
ATTEMPTS_MAX = 1_000  # of a creation; each that fails is the creation of another log

T = TypeVar("T")


class FederatedStore(ForwardingStore):
    """The nodes of a federated namespace, as if all its logs lay directly below it.

    Closing it closes the store behind it.

    Args:
        logs_max: A new log goes to a sub-namespace that lists fewer logs.
    """

    def __init__(
        self,
        store: MetadataStore,
        namespace_path: str,
        locations: dict[str, str] | None = None,
        *,
        logs_max: int = LOGS_MAX,
    ) -> None:
        super().__init__(store)
        self._path, self._logs_max = namespace_path, logs_max
        self._list_path = f"{namespace_path}/{SUB_NAMESPACES}"
        self._locations: dict[str, str] = {} if locations is None else locations

    def __repr__(self) -> str:
        return f"<FederatedStore of {self._path}, {self._store!r}>"

    async def locate(self, log: str) -> str | None:
        """The path of the sub-namespace that holds a log; None if there is no such log.

        Raises:
            LogMetadataError: Two sub-namespaces hold it.
            ledger.metadata_store.errors.MetadataError: The store failed.
        """
        places = await self._sub_namespaces()
        for suffix in (f"/{UNPARTITIONED}", ""):  # the second: a log that was created in part
            nodes = await read_nodes(self._store, [f"{place}/{log}{suffix}" for place in places])
            found = [place for place in places if nodes[f"{place}/{log}{suffix}"] is not None]
            if len(found) > 1 and suffix:
                raise LogMetadataError(
                    f"log {log!r} is in two sub-namespaces, {found[0]} and {found[1]}: which of them is the"
                    " log is not known. Open the sub-namespaces by their own paths to compare them"
                )
            if found:
                if suffix:
                    if len(self._locations) >= LOCATIONS_MAX:
                        self._locations.clear()
                    self._locations[log] = found[0]
                return found[0]
        return None

    def current_session(self) -> MetadataStore:
        session = self._store.current_session()
        return FederatedStore(session, self._path, self._locations, logs_max=self._logs_max)

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        return await self._at(path, lambda real: self._store.get(real, watch=watch))

    async def read_tree(self, path: str) -> dict[str, Node] | None:
        return None  # the namespaces below it may be in several stores

    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        real = await self._real(path)
        with _named({real: path}):
            stat = await self._store.exists(real, watch=watch)
        if stat is None and (now := await self._again(path, real)) is not None:
            return await self._store.exists(now, watch=watch)
        return stat

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        inner = self._inner(path)
        if path != self._path and (inner is None or inner[1]):
            return await self._at(path, lambda real: self._store.children(real, watch=watch))
        # Above the logs: the children of all sub-namespaces.
        names: set[str] = set()
        version, is_found = 0, False
        for place in await self._sub_namespaces():
            try:
                found = await self._store.children(place + path.removeprefix(self._path), watch=watch)
            except NoNodeError:
                continue
            is_found = True
            version += found.child_version
            is_reserved_shown = place == self._path or path != self._path
            names |= {
                name for name in found.names if is_reserved_shown or not name.startswith(RESERVED_PREFIXES)
            }
        if not is_found:
            raise NoNodeError(path)
        return Children(tuple(sorted(names)), version)

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        await self._check_log_exists(path, parents)

        async def create(real: str) -> str:
            made = await self._store.create(
                real, value, ephemeral=ephemeral, sequential=sequential, parents=parents
            )
            return path + made.removeprefix(real)

        return await self._change(path, create)

    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> Stat:
        return await self._change(path, lambda real: self._store.put(real, value, expected=expected))

    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        await self._change(path, lambda real: self._store.delete(real, expected=expected))

    async def commit(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            inner = self._inner(operation.path) if isinstance(operation, Create) else None
            if inner is not None and inner[1] == f"/{UNPARTITIONED}" and await self.locate(inner[0]) is None:
                await self._create_log(inner[0], operations)
                return
        await self._commit({each.path: await self._real(each.path) for each in operations}, operations)

    async def _commit(
        self, real: Mapping[str, str], operations: Sequence[Operation], before: Sequence[Operation] = ()
    ) -> None:
        """Commit the operations at their real paths, after some that have theirs."""
        try:
            with _named({at: path for path, at in real.items()}):
                await self._store.commit(
                    [*before, *(attrs.evolve(each, path=real[each.path]) for each in operations)]
                )
        except NoNodeError:
            self._forget(real)
            raise

    async def _create_log(self, log: str, operations: Sequence[Operation]) -> None:
        """Commit the transaction that creates a log which no sub-namespace has."""
        ancestors = ancestors_of(f"{self._path}/{log}")
        kept = [each for each in operations if not (isinstance(each, Create) and each.path in ancestors)]
        for _ in range(ATTEMPTS_MAX):
            place, version = await self._place_for(log)
            before: list[Operation] = [Put(self._list_path, place.encode(), version)]
            for ancestor in ancestors_of(f"{place}/{log}"):
                if len(ancestor) > len(place) and await self._store.exists(ancestor) is None:
                    before.append(Create(ancestor))
            real = {each.path: await self._real(each.path) for each in kept}
            real |= {path: place + path.removeprefix(self._path) for path in real if self._is_of(path, log)}
            try:
                await self._commit(real, kept, before)
            except BadVersionError as exc:
                if exc.path != self._list_path:
                    raise
            else:
                return
        raise LogMetadataError(
            f"log {log!r} was not created: other clients created logs in {self._path} during each of"
            f" {ATTEMPTS_MAX} attempts; try again"
        )

    async def _place_for(self, log: str) -> tuple[str, int]:
        """The sub-namespace for a new log, and the version of ``.subnamespaces`` at which this was decided.

        All logs whose names have the same first part are in one sub-namespace: the node of that part counts
        as a log for Apache's programs, and they refuse to continue if two sub-namespaces have it.
        """
        try:
            version = (await self._store.get(self._list_path)).stat.version
        except NoNodeError:
            raise ConfigError(
                f"log {log!r} was not created: the namespace {self._path} is federated, and has no node"
                f" {SUB_NAMESPACES}. If it is a sub-namespace, create the log in the namespace above it"
            ) from None
        # Looked for only now: see the head of the module.
        places = await self._sub_namespaces()
        top = log.partition("/")[0]
        nodes = await read_nodes(self._store, [f"{place}/{top}" for place in places])
        holders = [place for place in places if nodes[f"{place}/{top}"] is not None]
        if len(holders) > 1:
            raise LogMetadataError(
                f"log {log!r} was not created: {top!r} is in two sub-namespaces, {holders[0]} and"
                f" {holders[1]}. Delete one of the two nodes"
            )
        if holders:
            return holders[0], version  # if the log itself is there, the transaction finds its node
        for place in reversed(places):  # the newest first, as Apache's programs choose
            names = (await self._store.children(place)).names
            if sum(not name.startswith(RESERVED_PREFIXES) for name in names) < self._logs_max:
                return place, version
        # If the transaction fails, the next creation finds it empty.
        prefix = f"{self._list_path}/{SUB_NAMESPACE_PREFIX}"
        return await self._store.create(prefix, sequential=True), version

    def _is_of(self, path: str, log: str) -> bool:
        inner = self._inner(path)
        return inner is not None and inner[0] == log

    async def _sub_namespaces(self) -> list[str]:
        try:
            names = (await self._store.children(self._list_path)).names
        except NoNodeError:
            names = ()
        subs = [f"{self._list_path}/{name}" for name in names if name.startswith(SUB_NAMESPACE_PREFIX)]
        return [self._path, *subs]

    def _inner(self, path: str) -> tuple[str, str] | None:
        """A log and the rest of a path in it; the rest is empty at and above the log's own node.

        None for a path that is not moved.
        """
        below = path.removeprefix(f"{self._path}/")
        if below == path or below.startswith(RESERVED_PREFIXES):
            return None
        log, slash, rest = below.partition(f"/{UNPARTITIONED}")
        if slash and (not rest or rest.startswith("/")):
            return log, slash + rest
        return below, ""

    async def _real(self, path: str) -> str:
        inner = self._inner(path)
        if inner is None:
            return path
        log, rest = inner
        place = self._locations.get(log) or await self.locate(log) or self._path
        return f"{place}/{log}{rest}"

    async def _at(self, path: str, call: Callable[[str], Awaitable[T]]) -> T:
        """Call with the real path; if the log is not there any more, with the place where it is now."""
        real = await self._real(path)
        try:
            with _named({real: path}):
                return await call(real)
        except NoNodeError:
            now = await self._again(path, real)
            if now is None:
                raise
        with _named({now: path}):
            return await call(now)

    async def _change(self, path: str, call: Callable[[str], Awaitable[T]]) -> T:
        """As ``_at``, for a change: it is not tried in another place than that of the reads before it."""
        real = await self._real(path)
        try:
            with _named({real: path}):
                return await call(real)
        except NoNodeError:
            self._forget([path])
            raise

    async def _again(self, path: str, real: str) -> str | None:
        """Look for the log of a path again; None if it is where it was."""
        self._forget([path])
        now = await self._real(path)
        return None if now == real else now

    def _forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            inner = self._inner(path)
            if inner is not None:
                self._locations.pop(inner[0], None)

    async def _check_log_exists(self, path: str, parents: bool) -> None:
        """Refuse to create a node of a log that is missing, other than in the log's transaction."""
        inner = self._inner(path)
        if inner is None or (inner[1] not in ("", f"/{UNPARTITIONED}") and not parents):
            return
        if await self.locate(inner[0]) is None:
            raise ConfigError(
                f"log {inner[0]!r} was not created: the namespace {self._path} is federated, and a log is"
                " created there in one transaction (Namespace.create_log)"
            )


@contextmanager
def _named(paths: Mapping[str, str]) -> Iterator[None]:
    """An error names the caller's path; its text names the real one, too.

    Args:
        paths: Real paths to those of the caller.
    """
    try:
        yield
    except StoreError as exc:
        exc.path = paths.get(exc.path, exc.path)
        raise
