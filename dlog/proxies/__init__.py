"""Programs that own logs on behalf of others: DistributedLog's write proxy, as the command ``dlog proxy``.

Inside: which proxy has which log, having logs. Not inside: owning a log and forwarding to its owner
(``dlog.forwarding``). Entry point: ``run_proxy``.
"""

from dlog.proxies.proxy import Proxy, run_proxy

__all__ = ["Proxy", "run_proxy"]
