"""The `dlog` command.

Inside: the commands on logs (``logs``), the commands for operators of bookies (``operators``), ``demo``,
``bench``, and options, output, signals and exit codes for all of them (``terminal``).
Not inside: anything a program may import. The initialisers of these packages import nothing, so that
`dlog --help` is quick. Entry point: ``dlog.cli.main``.
"""
