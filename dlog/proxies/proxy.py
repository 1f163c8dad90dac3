"""One proxy: its node among those of the others, and the logs that it has open to be their owner.

Inside: presence, opening and leaving logs as they change hands. Not inside: the choice (``choice``), what an
owner does (``dlog.forwarding``).
Always: nothing depends on the choice for safety: two proxies that have one log open share its writer as any
two programs do; an error of one log leaves the others alone; a proxy that is cancelled first tells the other
proxies, then answers what it took.

Source: DistributedLog, DistributedLogServiceImpl.java and its placement policy, for the purpose;
docs/shared.md, "Proxies".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress

import trio

from dlog.errors import DLogError, EndOfStreamError, NamespaceClosedError, NamespaceLostError
from dlog.namespace_handle import Namespace
from dlog.proxies.choice import divided
from dlog.write.log_writer import LogWriter
from ledger.metadata_store.errors import MetadataError, NodeExistsError
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import failure_domain
from namespace.log_nodes import proxies_path
from namespace.proxy_node import decode_patterns, encode_patterns

LOOK_S = 2.0  # between two looks at the logs and the proxies
OPENING_MAX = 16  # logs that are opened at the same time

logger = get_logger(__name__)


class Proxy:
    """One program that owns logs of a namespace."""

    def __init__(self, namespace: Namespace, patterns: Sequence[str], name: str) -> None:
        self._namespace, self.name = namespace, name
        self._data = encode_patterns(patterns)
        self._node = f"{proxies_path(namespace.context.path)}/{name}"
        self._opening = trio.CapacityLimiter(OPENING_MAX)
        self._leaving: dict[str, trio.Event] = {}  # of the logs that it has
        self._refused: dict[str, str] = {}  # the errors of logs that could not be opened; reported once
        self._sealed: set[str] = set()
        self._divided: tuple[list[str], dict[str, list[str]], dict[str, str]] = [], {}, {}
        self.writers: dict[str, LogWriter] = {}

    def __repr__(self) -> str:
        return f"<Proxy {self.name!r} with {len(self.writers)} logs>"

    @property
    def owned(self) -> list[str]:
        """The logs that it owns now, sorted."""
        return sorted(log for log, writer in self.writers.items() if writer.is_owner)

    async def run(self, on_change: Callable[[Proxy], None]) -> None:
        """Have logs open until it is cancelled; call ``on_change`` when it may own others than before."""
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    changed = trio.Event()
                    try:
                        await self._look(nursery, changed)
                    except (NamespaceLostError, NamespaceClosedError):
                        raise
                    except (MetadataError, DLogError) as exc:
                        self._report("", "this proxy cannot look for its logs", exc)
                    on_change(self)
                    with trio.move_on_after(LOOK_S):
                        await changed.wait()
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(1), suppress(MetadataError):
                    await self._namespace.context.store.delete(self._node)

    async def _look(self, nursery: trio.Nursery, changed: trio.Event) -> None:
        context = self._namespace.context
        parent = proxies_path(context.path)
        with suppress(NodeExistsError):  # also of a session of before, which ends soon
            await context.store.create(self._node, self._data, ephemeral=True, parents=True)
        names = (await context.store.children(parent, watch=changed)).names
        nodes = await context.store.get_many([f"{parent}/{name}" for name in names])
        proxies = {
            name: decode_patterns(node.value)
            for name in names
            if (node := nodes[f"{parent}/{name}"]) is not None
        }
        logs = await self._namespace.list_logs()
        self._sealed &= set(logs)
        if (logs, proxies) != self._divided[:2]:
            self._divided = logs, proxies, divided(logs, proxies)
        ours = {log for log, name in self._divided[2].items() if name == self.name} - self._sealed
        for log in self._leaving.keys() - ours:
            self._leaving[log].set()
        for log in sorted(ours - self._leaving.keys()):
            self._leaving[log] = trio.Event()
            nursery.start_soon(self._have, log, self._leaving[log])

    async def _have(self, log: str, leaving: trio.Event) -> None:
        """Share the writer of a log until another proxy has it."""
        try:
            with failure_domain("a log of a proxy"):
                await self._open(log, leaving)
        finally:
            self.writers.pop(log, None)
            del self._leaving[log]

    async def _open(self, log: str, leaving: trio.Event) -> None:
        async with AsyncExitStack() as stack:
            try:
                async with self._opening:
                    opening = self._namespace.open_writer(log, lock_timeout_s=LOOK_S, shared=True)
                    writer = await stack.enter_async_context(opening)
            except EndOfStreamError:
                self._sealed.add(log)
                return
            except DLogError as exc:
                await self._refused_by(log, exc)
                return
            self.writers[log] = writer
            self._refused.pop(log, None)
            while not leaving.is_set() and writer.failure is None:
                with trio.move_on_after(LOOK_S):
                    await leaving.wait()

    async def _refused_by(self, log: str, exc: DLogError) -> None:
        """A later look tries again."""
        self._report(log, f"log {log}: this proxy cannot have it", exc)
        await trio.sleep(LOOK_S)

    def _report(self, log: str, what: str, exc: Exception) -> None:
        """Log a problem that may last, once."""
        if self._refused.get(log) != type(exc).__name__:
            self._refused[log] = type(exc).__name__
            logger.warning("%s: %s", what, exc, extra=event("proxy.log_refused", log=log))


async def run_proxy(
    namespace: Namespace, patterns: Sequence[str], name: str, on_change: Callable[[Proxy], None]
) -> None:
    """Own logs on behalf of other programs until it is cancelled; see ``Proxy``."""
    await Proxy(namespace, patterns, name).run(on_change)
