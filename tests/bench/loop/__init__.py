"""The floor of the loop: the work of `tail --rate` by small programs on trio's loop.

They sync each record on a majority of the replicas before the consumer gets it, as DLog does, and do nothing
else: no checksums, names, recovery, or reading back. So they say how much of DLog's figures the loop, the
sockets and the syncs take in Python, whatever is built on them.
"""
