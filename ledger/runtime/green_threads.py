"""gevent and eventlet put greenlets in place of Python's threads; DLog's event loops need threads.

Inside: the check that each loop of ours makes first, and the one that an import makes.
Not inside: any import of trio, which fails where eventlet has replaced sockets. A program's own ``trio.run``
needs no check: it ends at once with an error of trio.

Source: gevent 26.9, ``gevent.monkey``; eventlet 0.41, ``eventlet.patcher``.
"""

from __future__ import annotations

import sys


def refuse_green_threads() -> None:
    """Check that Python's threads are threads: an event loop in a greenlet would stop the whole program.

    Raises:
        RuntimeError: gevent or eventlet has put its own in their place.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent and any(map(gevent.is_module_patched, ("threading", "select", "socket"))):
        raise _refusal("gevent")
    if eventlet and any(map(eventlet.is_monkey_patched, ("thread", "select", "socket"))):
        raise _refusal("eventlet")


def check_import() -> None:
    """Check that trio can be imported: where eventlet has replaced sockets, it cannot.

    gevent is refused only when something is opened: a worker of it may use positions and other values.

    Raises:
        RuntimeError: It cannot.
    """
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet and "trio" not in sys.modules and eventlet.is_monkey_patched("socket"):
        raise _refusal("eventlet")


def _refusal(library: str) -> RuntimeError:
    return RuntimeError(
        f"{library} has replaced Python's threads in this process, and DLog's event loop cannot run"
        f" in greenlets. Start this program without {library}'s monkey patching (gunicorn:"
        " --worker-class gthread), or use DLog in a process of its own"
    )
