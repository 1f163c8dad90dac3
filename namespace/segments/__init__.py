"""The segments of a log as values: what one is, and the rules for a list of them.

Inside: a segment and its text, the order of a list, which segments truncation and retention give up.
Not inside: their nodes (``namespace``), their records (``dlog.read``, ``dlog.write``).
"""

from namespace.segments.segment import LogSegment

__all__ = ["LogSegment"]
