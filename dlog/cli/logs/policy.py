"""`dlog policy show|set|delete`: the rights of principals on the logs of a namespace."""

from __future__ import annotations

from pathlib import Path

import click

import dlog
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option, read_only_option, uri_option
from dlog.cli.terminal.output import print_json, print_note, print_table
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run
from namespace.policy import Policy, Right, parse_policy, policy_document


@click.group("policy", cls=CommandGroup)
def command() -> None:
    """Show and change the rights of principals on the logs of a namespace.

    A policy is a file of JSON: {"version": 1, "rules": [{"principal": "alice", "logs": "shop/*", "rights":
    ["write"]}]}. The rights are read, commit (move cursors), write and admin. commit and write include read,
    admin includes all. A rule with commit may name the cursors: "cursors": "billing*". In a pattern * stands
    for any text. A right that no rule grants is denied. Without a policy everything is allowed.
    """


@command.command("show")
@uri_option
@json_option("the policy")
@read_only_option
def show(uri: str, as_json: bool, read_only: bool) -> None:
    """Print the policy and the principal of this program.

    A program that may not change the policy sees the rules about itself only.
    """

    async def go() -> tuple[Policy | None, str]:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            return await namespace.policy.get(), namespace.principal

    policy, principal = run(go)
    if policy is not None and not policy.is_whole:
        print_note("only the rules about this program are shown; an administrator sees all of them")
    if as_json:
        document = None if policy is None else policy_document(policy)
        print_json({"principal": principal, "policy": document})
        return
    print_note(f"this program is {principal}")
    if policy is None:
        print_note("there is no policy: everything is allowed")
    else:
        rows = [
            [
                rule.principal,
                rule.logs,
                " ".join(right.value for right in Right if right in rule.rights),
                rule.cursors if rule.includes(Right.COMMIT) else "-",
            ]
            for rule in policy.rules
        ]
        print_table(["principal", "logs", "rights", "cursors"], rows)


@command.command("set")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@uri_option
def set_(file: Path, uri: str) -> None:
    """Replace the policy by that in FILE."""
    policy = parse_policy(file.read_bytes())

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            await namespace.policy.set(policy)

    run(go)
    print_note(f"stored a policy with {len(policy.rules)} rules")


@command.command("delete")
@uri_option
@click.option("--yes", is_flag=True, help="Delete without asking.")
def delete(uri: str, yes: bool) -> None:
    """Delete the policy: everything is allowed to every program then."""
    if not yes:
        confirm("Delete the policy, so that everything is allowed?")

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            await namespace.policy.set(None)

    run(go)
    print_note("deleted the policy")
