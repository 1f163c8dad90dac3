"""Worlds with logs: writers, readers and operators of ``dlog`` over the simulated cluster.

Inside: their clients, their rules, bugs put back. Not inside: bookies, network, disks, the metadata store and
faults, which are those of every world. Begin with ``world``.
"""
