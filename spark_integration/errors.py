"""The errors of the connector. Spark shows their messages to its user."""

from __future__ import annotations

from ledger.pickling import PicklableError


class SparkDlogError(PicklableError):
    """The base class of the errors of this package."""


class OptionError(SparkDlogError, ValueError):
    """An option is missing, unknown or has an invalid value; the message names the option."""


class OffsetFormatError(SparkDlogError, ValueError):
    """An offset in an option or in a checkpoint is not in the connector's format, or of other streams."""


class RangeUnreadableError(SparkDlogError):
    """A planned range could not be read to its end in time. The task fails, so no part counts as read."""


class DataLossError(SparkDlogError):
    """Records that the query has not read are gone; with ``failOnDataLoss=false`` it would continue."""


class PayloadFormatError(SparkDlogError, ValueError):
    """A payload is not in the format that the option ``payloadFormat`` names; the message has its place."""


class RowFormatError(SparkDlogError, ValueError):
    """A row or a column of what is written cannot become a record; the message names the column."""


class RepeatedBatchError(SparkDlogError):
    """The log has later batches of this query than the checkpoint: the checkpoint is an older one."""


class ChangedBatchError(SparkDlogError):
    """Spark ran a batch again that is in the log, with other rows; nothing was written. The message says what
    to do; with ``failOnChangedBatch=false`` the query keeps the rows that are there.
    """


class BatchTooLargeError(SparkDlogError):
    """A batch has more segments than one transaction takes; the message names the settings. Nothing of it is
    in a log.
    """


class WorkerInterpreterError(SparkDlogError):
    """Spark would start its Python workers with an interpreter that has no DLog."""


class SparkStartError(SparkDlogError):
    """The session of a command did not start."""


class PipelineError(SparkDlogError):
    """A pipeline cannot do what was asked; the message says why, and what is unchanged."""


class ArchiveGapError(PipelineError):
    """Records between an archive and its log are gone; nothing was changed."""


class ArchiveDamagedError(PipelineError):
    """A file of an archive is missing, cut or changed; nothing was changed."""
