"""Benchmarks for who works on DLog: other systems, Spark, one bookie's storage, what an operator waits for.

``python -m tests.bench --help``; README.md beside this file has the options and what the figures mean. The
speed of one's own cluster is measured by ``dlog bench``, whose workloads and floor these use.
"""
