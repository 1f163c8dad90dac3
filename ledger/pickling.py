"""What crosses to another process, and what does not: the base of errors, and the base of handles.

Inside: how an error whose constructor takes other arguments than its text is pickled and copied; the refusal
of an object that belongs to its process. Not inside: values, which ``attrs`` makes picklable.

Always: a pickled error comes back with its type, text and attributes. Python's own way calls the constructor
with the text alone: that fails where the error is read, so that a ``multiprocessing.Pool`` waits for ever.

Source: our own.
"""

from __future__ import annotations

from typing import Any, NoReturn, SupportsIndex

_OF_SYSTEM = ("errno", "strerror", "filename", "filename2")  # an OSError keeps these outside of its __dict__


class PicklableError(Exception):
    """The base of errors that can be pickled and copied, whatever their constructor takes.

    As with Python's own errors, the cause and the traceback stay where the error was raised.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        known = (name for name in _OF_SYSTEM if isinstance(self, OSError))
        of_system = {name: value for name in known if (value := getattr(self, name)) is not None}
        return error_again, (type(self), self.args, of_system), self.__dict__ or None


def error_again(cls: type[BaseException], args: tuple[object, ...], of_system: dict[str, object]) -> object:
    """The error that ``PicklableError`` has pickled, without its attributes. Pickles name this function."""
    error = cls.__new__(cls, *args)
    error.args = args
    for name, value in of_system.items():
        setattr(error, name, value)
    return error


class ProcessBound:
    """The base of handles. A handle holds connections, locks or tasks; its copy would be a second owner."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {type(self).__qualname__} cannot be pickled or copied: it belongs to the process that opened"
            " it. Pass what it was opened with (the URI, the name of the log), and open it there"
        )
