"""`dlog completion`: the script that makes a shell complete commands, options and the names of logs.

Inside: the scripts. Not inside: the answers to a shell (``dlog.cli.terminal.completion``).
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from dlog.cli.terminal.completion import VARIABLE

# Unlike click's, it passes the line as written, quotes what it gets, and shows no error.
_BASH = f"""\
_dlog_completion() {{
    local kind value
    COMPREPLY=()
    while IFS=',' read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_LINE="${{COMP_LINE:0:COMP_POINT}}" {VARIABLE}=bash_complete "$1" 2>/dev/null)
}}
complete -o nosort -F _dlog_completion dlog
"""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that completes dlog's commands, options and names of logs in SHELL.

    For bash 4.4 or later, add to ~/.bashrc: source <(dlog completion bash). For zsh, add to ~/.zshrc after
    compinit: source <(dlog completion zsh). Names come from the namespace that the command would use; it is
    opened read-only, for two seconds at most.
    """
    if shell == "bash":
        click.echo(_BASH, nl=False)
        return
    script = get_completion_class(shell)
    assert script is not None  # click has a class for each shell of the choice above
    click.echo(script(context.find_root().command, {}, "dlog", VARIABLE).source())
