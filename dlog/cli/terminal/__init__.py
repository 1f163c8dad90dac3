"""The side of a command that faces the terminal: options, output, signals, exit codes, scratch directories.

Not inside: any command. This package imports no other package of ``dlog.cli``.
"""
