"""The commands of one bookie: run it, inspect its files, steer it while it runs, take it out of its cluster.

Inside: `dlog bookie` and `dlog inspect`. Not inside: lists of bookies, ledgers, auto-recovery (the folder
above).
"""
