"""Commands for operators of bookies, Apache's or ours.

Inside: start a bookie or a local cluster, inspect a bookie's files, list bookies and ledgers.
Not inside: the bookie itself (``bookie``), local processes (``dlog.cluster``).
"""
