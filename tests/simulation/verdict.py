"""The judgement of a run: the history checker over what clients were told, and what only a simulator sees."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from replica.checker.check import Scope, check
from replica.checker.completions import CompletionRow
from replica.checker.findings import FindingCode, Summary
from replica.checker.judge import JudgedBarrier, JudgedRequest, ReferenceJudge
from replica.notary.receipts import verify_receipt
from replica.notary.rules import STATE_KEY, TX_KEY
from tests.simulation.replica import CheapSigner

if TYPE_CHECKING:
    from tests.simulation.world import World

_OF_A_SPLIT = (FindingCode.COMMAND_SETTLED_WRONGLY,)
"""What two databases that both take writes cannot but do: the deposed one does not know that a command that is pending
in it was sent again and accepted under the other (its own submission is settled)."""


def judge_run(world: World) -> Summary:
    """Blame whatever is wrong; returns the checker's summary."""
    tables = world.primary.tables
    rows = [
        CompletionRow(at, *[getattr(c, field) for field in CompletionRow.__struct_fields__[1:]])
        for at, c in tables.completions
    ]
    report = check(
        world.history,
        enumerate(world.topic.values),
        completions=rows,
        verify=lambda receipt: verify_receipt(receipt, CheapSigner.public_key, CheapSigner.holds),
        scope=Scope(published_offset=-1 if tables.position is None else tables.position.offset),
    )
    for finding in report.findings:
        if world.splits and finding.code in _OF_A_SPLIT:
            continue
        world.blame(f"{finding.code.name}: {finding.message}: {finding.evidence}")
    for problem in (*tables.contradictions, *[early for server in world.servers for early in server.too_early]):
        world.blame(problem)
    for follower in world.followers:
        follower.judge()
    _check_accepted(world)
    _check_indexes(world)
    return report.summary


def _check_accepted(world: World) -> None:
    """Every submission that was accepted has a completion, whatever died in between.

    Not those of commits that the database lost: an acceptance rests on a synchronous standby until it is in the log.
    """
    tables = world.primary.tables
    known = [*tables.in_flight.values(), *(completion for _, completion in tables.completions)]
    complete = {(c.command_id, c.submission_id) for c in known}
    for command, submission in sorted(world.accepted - complete - world.forgotten):
        if not world.splits:
            world.blame(f"submission {submission} of {command} was accepted and has no completion")


def _check_indexes(world: World) -> None:
    """Each index holds what the reference judge has at its position, and its position what was in force there."""
    wanted = {r.disk.position.offset: r for r in world.replicas if r.disk.position is not None}
    judge = ReferenceJudge()
    epochs: list[int] = []
    timelines: list[int] = []
    entries: dict[bytes, bytes] = {}
    states: dict[int, tuple[object, ...]] = {}
    for offset, value in enumerate(world.topic.values):
        judged = judge.read(offset, value)
        if isinstance(judged, JudgedBarrier) and not judged.repeated:
            epochs.append(judged.record.epoch)
            timelines.append(int(judged.record.database.rpartition(":")[2]))
        if isinstance(judged, JudgedRequest) and judged.notarised_offset == offset:
            at = offset.to_bytes(8, "big")
            entries[TX_KEY + judged.request.tx_id] = judged.content_digest + at
            entries.update((STATE_KEY + state, judged.request.tx_id + at) for state in judged.request.inputs)
        if offset in wanted:
            states[offset] = (dict(entries), judge.barrier, judge.stamp_us, set(judge.sequences))
    if epochs != sorted(set(epochs)):
        world.blame(f"epochs in force: {epochs}")
    falls = sum(later < earlier for earlier, later in pairwise(timelines))
    if falls > world.splits:  # once in a split: the old primary's replica may have looked just before the new barrier
        world.blame(f"replicas on an old primary took over again and again: timelines in force {timelines}")
    names = ("entries", "barrier in force", "highest stamp", "sequence numbers")
    for replica in world.replicas:
        position = replica.disk.position
        if position is None:
            continue
        seen = {number for start, end in position.seen for number in range(start, end)}
        found = (replica.disk.entries, position.barrier, position.stamp_us, seen)
        for name, has, should in zip(names, found, states[position.offset], strict=True):
            if has != should:
                world.blame(f"{replica.name}: {name} in the index differ from the judge's at {position.offset}")
