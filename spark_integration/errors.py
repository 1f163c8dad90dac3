"""What the connector refuses, and why. Spark shows the message of these to its user."""

from __future__ import annotations


class SparkDlogError(Exception):
    """Root of everything this package raises."""


class OptionError(SparkDlogError, ValueError):
    """An option is missing, unknown or has a value that cannot be understood; the message names it."""


class OffsetFormatError(SparkDlogError, ValueError):
    """An offset, from an option or a checkpoint, that this connector did not write or cannot read."""


class RangeUnreadableError(SparkDlogError):
    """A planned range could not be read to its end in time. Nothing of it was delivered as complete."""
