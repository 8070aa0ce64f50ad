"""Judges a run: the history checker over the clients' answers, and the checks that only a simulator can make."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from replica.checker.check import Scope, check
from replica.checker.completions import CompletionRow
from replica.checker.findings import Summary
from replica.checker.judge import JudgedBarrier, JudgedLost, JudgedRequest, ReferenceJudge
from replica.notary.granters import database_of
from replica.notary.position import offset_of
from replica.notary.receipts import verify_receipt
from replica.notary.rules import STATE_KEY, TX_KEY
from replica.notary.salvage import OF_COMMANDS, OF_STATES, of_kinds
from replica.store.interface import NOTARISED
from tests.simulation.commands import check_commands
from tests.simulation.plan import ReplicaPlan
from tests.simulation.replica import CheapSigner
from tests.simulation.workers import check_workers

if TYPE_CHECKING:
    from tests.simulation.world import World

_EVER_S = ReplicaPlan("").deduplication_max_s  # longer than any run takes
_JUDGED = OF_STATES + OF_COMMANDS  # kinds of entry that the reference judge makes


def judge_run(world: World) -> Summary:
    """Report everything that is wrong; returns the checker's summary."""
    tables, values = world.primary.tables, world.power.values()
    world.power.judge()
    published_offset = world.power.published_offset(-1 if tables.position is None else tables.position.offset)
    rows = [
        CompletionRow(at, *[getattr(c, field) for field in CompletionRow.__struct_fields__[1:]])
        for at, c in tables.completions
        if c.log_offset <= published_offset
    ]
    report = check(
        world.power.history(),
        enumerate(values),
        completions=rows,
        verify=lambda receipt: verify_receipt(receipt, CheapSigner.public_key, CheapSigner.holds),
        scope=Scope(published_offset=published_offset),
        salvages=world.salvages,
    )
    for finding in report.findings:
        world.blame(f"{finding.code.name}: {finding.message}: {finding.evidence}")
    for problem in (*tables.contradictions, *[early for server in world.servers for early in server.too_early]):
        world.blame(problem)
    for follower in world.followers:
        follower.judge()
    walked = list(ReferenceJudge(world.salvages).judge(enumerate(values)))
    if world.plan.worded:
        world.people.judge({one.record.epoch: one.record.replica for one in walked if isinstance(one, JudgedBarrier)})
    if not world.power.may_stop:
        _check_accepted(world)
    check_commands(world, walked)
    if world.plan.all_serve:
        check_workers(world, walked)
    _check_bounds(world)
    _check_indexes(world)
    return report.summary


def _check_accepted(world: World) -> None:
    """Every submission that was accepted has a completion, whatever failed in between.

    Except those of records that the log lost.
    """
    complete = {(c.command_id, c.submission_id) for _, c in world.primary.tables.completions}
    for command, submission in sorted(world.accepted - complete - world.forgotten):
        if not world.splits:
            world.blame(f"submission {submission} of {command} was accepted and has no completion")


def _check_bounds(world: World) -> None:
    """A client that was refused a period asked for more than the bound in its answer. Either completions were pruned,
    or the period was longer than any setting allows."""
    pruned_to = max(world.primary.tables.bounds_ever)
    least_s = min(replica.deduplication_max_s for replica in world.plan.replicas)
    for options, bound in world.bounds_told:
        after, period_s = options.deduplication_after, options.deduplication_s
        if after is not None:
            wrong = after >= bound.earliest_offset or bound.earliest_offset > pruned_to
        else:
            wrong = period_s is None or period_s <= bound.longest_s or (period_s <= least_s and not pruned_to)
        if wrong:
            world.blame(
                f"{options} was refused with {bound}, although completions were pruned up to {pruned_to} at most"
            )


def _check_indexes(world: World) -> None:
    """Each index holds what the reference judge has at its position, and its position what was in force there."""
    whole = [replica for replica in world.replicas if world.power.bears_out(replica)]
    wanted = {offset_of(r.disk.position()) for r in whole}
    judge = ReferenceJudge(world.salvages)
    epochs: list[int] = []
    rules: list[int] = []
    under_fallen: list[int] = []
    timelines: list[tuple[str, int]] = []
    entries: dict[bytes, bytes] = {}
    states: dict[int, tuple[object, ...]] = {}
    for offset, value in enumerate(world.power.values()):
        judged = judge.read(offset, value)
        if isinstance(judged, JudgedBarrier) and not judged.repeated:
            epochs.append(judged.record.epoch)
            rules.append(judged.record.rules_version)
            database = database_of(judged.record.granter)
            if database is not None:
                timelines.append((database.system, database.timeline))
        if isinstance(judged, JudgedLost):
            entries |= of_kinds(world.salvages.entries_of([(offset, value)]), _JUDGED)
        if isinstance(judged, JudgedRequest) and rules[-1] < max(rules):
            under_fallen.append(offset)
        if isinstance(judged, JudgedRequest) and judged.notarised_offset == offset:
            at = offset.to_bytes(8, "big")
            entries[TX_KEY + judged.request.tx_id] = judged.content_digest + at
            entries.update((STATE_KEY + state, judged.request.tx_id + at) for state in judged.request.inputs)
        if isinstance(judged, JudgedRequest) and judged.outcome == NOTARISED:
            at, key = offset.to_bytes(8, "big"), b"c" + judged.change_id
            accepted_with = judged.request.tx_id + judged.content_digest
            when = judged.judged_us.to_bytes(8, "big") + judged.ledger_offset.to_bytes(8, "big")
            entries[key + at if key in entries else key] = accepted_with + when + at
        if offset in wanted:
            states[offset] = (dict(entries), judge.barrier, judge.stamp_us, set(judge.sequences), judge.ledger_offset)
    if epochs != sorted(set(epochs)):
        world.blame(f"epochs in force: {epochs}")
    fallen = sum(later < earlier for earlier, later in pairwise(rules))
    if fallen > world.splits or under_fallen:  # in a split the old primary may not know of the newest: see opening.py
        world.blame(f"rules in force: {rules}; requests that count under fallen ones: {under_fallen}")
    falls = sum(later < earlier for (one, earlier), (other, later) in pairwise(timelines) if one == other)
    if falls > world.splits:  # once in a split: the old primary's replica may have looked just before the new barrier
        world.blame(f"replicas on an old primary took over again and again: timelines in force {timelines}")
    names = ("entries", "barrier in force", "highest stamp", "sequence numbers", "ledger offset")
    for replica in whole:
        position = replica.disk.position()
        if position is None:
            continue
        seen = {number for start, end in position.seen for number in range(start, end)}
        entries_found = of_kinds(dict(replica.disk.entries()), _JUDGED)
        found = (entries_found, position.barrier, position.stamp_us, seen, position.ledger_offset)
        for name, has, should in zip(names, found, states[position.offset], strict=True):
            if has != should:
                world.blame(f"{replica.name}: {name} in the index differ from the judge's at {position.offset}")
