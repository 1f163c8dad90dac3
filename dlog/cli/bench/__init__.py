"""`dlog bench`: measure appends, tailing, catching up and one bookie's storage, each beside a floor.

The floor is the rate of a plain loop of writes or reads on the same disk.
"""
