"""Groups of commands: the list has the whole first sentence of each, a misspelt name gets the nearest one."""

from __future__ import annotations

import click

SENTENCE_MAX = 500  # characters


class CommandGroup(click.Group):
    """A group of commands. click alone cuts summaries off at the end of the line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their first sentences, on as many lines as these need."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(SENTENCE_MAX)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command.

        Raises:
            click.UsageError: There is none of this name; the message has the nearest one.
        """
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches

            for near in get_close_matches(args[0], self.list_commands(ctx), n=1):
                ctx.fail(f"No such command '{args[0]}'. Did you mean '{near}'?")
        return super().resolve_command(ctx, args)
