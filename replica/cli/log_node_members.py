"""`notary log members | add | retire | removable`: who belongs to a log of the project's own nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, JsonOption, make_table, out, print_json, run
from replica.cli.log_node import SettingsOption, node_settings

if TYPE_CHECKING:
    from ha.raft.messages import NodeId
    from replica.log.raft.members import Standing
    from replica.log.raft.operating import Membership
    from replica.log.raft.settings import LogNodeSettings

NodeArgument = Annotated[str, typer.Argument(help="The node's id, or its name where only one such node is meant.")]


def members(settings: SettingsOption = None, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Show the log's members, and how many more of them may fail: in the configuration in force and in pending ones."""
    _show(run(_look(node_settings(settings, config))), as_json)


def add(
    node: NodeArgument, settings: SettingsOption = None, config: ConfigChoice = None, as_json: JsonOption = False
) -> None:
    """Make a node a member, once it has the log. Returns when that is committed."""
    _show(run(_change(node_settings(settings, config), lambda found: found.with_node(node))), as_json)


def retire(
    node: NodeArgument, settings: SettingsOption = None, config: ConfigChoice = None, as_json: JsonOption = False
) -> None:
    """Let a member leave; refused where too few of the old or of the new members answer. Returns when committed.

    Leave the node running until `notary log removable` names it.
    """
    _show(run(_change(node_settings(settings, config), lambda found: found.without(node))), as_json)


def removable(settings: SettingsOption = None, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Name the nodes that have left for good: they may be switched off, and their ids never come back."""
    found = run(_look(node_settings(settings, config)))
    if as_json:
        print_json(sorted(found.removable))
        return
    for node in sorted(found.removable):
        typer.echo(node)


async def _look(settings: LogNodeSettings) -> Membership:
    from replica.log.raft.operating import leader_of

    async with leader_of(settings) as (_, found):
        return found


async def _change(settings: LogNodeSettings, wanted: Callable[[Membership], frozenset[NodeId]]) -> Membership:
    from replica.log.raft.operating import change_members, leader_of, membership_of

    async with leader_of(settings) as (client, found):
        await change_members(client, found, wanted(found))
        return membership_of(await client.status())


def _show(found: Membership, as_json: bool) -> None:
    if as_json:
        print_json(
            asdict(found)
            | {
                "configurations": [
                    {"nodes": sorted(each.nodes), "live": sorted(each.live), "spare": each.spare}
                    for each in found.configurations
                ]
            }
        )
        return
    table = make_table("node", "in force", "pending", "answers")
    first, *pending = found.configurations
    for node in sorted(frozenset().union(*(each.nodes for each in found.configurations))):
        belongs = any(node in each.nodes for each in pending)
        answers = (
            "leads" if node == found.leader else "yes" if any(node in e.live for e in found.configurations) else "no"
        )
        table.add_row(node, "member" if node in first.nodes else "", "member" if belongs else "", answers)
    out.print(table)
    for what, each in [("in force", first), *(("pending", each) for each in pending)]:
        out.print(f"{what}: {len(each.live)} of {len(each.nodes)} answer; {_tolerance(each)}", markup=False)


def _tolerance(found: Standing) -> str:
    if found.spare < 0:
        return f"nothing can be committed until {-found.spare} more answer"
    return f"{found.spare} more may fail"
