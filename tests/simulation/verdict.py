"""The judgement of a run: the history checker over everything that clients were told, and what only a simulator sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replica.checker.check import Scope, check
from replica.checker.completions import CompletionRow
from replica.checker.findings import FindingCode, Summary
from replica.checker.judge import JudgedBarrier, ReferenceJudge
from replica.notary.receipts import verify_receipt
from replica.notary.rules import STATE_KEY, TX_KEY
from tests.simulation.replica import CheapSigner

if TYPE_CHECKING:
    from tests.simulation.world import World

_OF_A_SPLIT = (FindingCode.DENIED, FindingCode.COMMAND_SETTLED_WRONGLY)
"""What two databases that both take writes cannot but do: the deposed one does not know what was notarised under the
other, nor that a command that is pending in it was sent again and accepted there (its own submission is settled)."""


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
    _check_indexes(world)
    return report.summary


def _check_indexes(world: World) -> None:
    """Each index holds exactly what the reference judge has at its position, and the barrier that was in force there."""
    judge = ReferenceJudge()
    epochs: list[int] = []
    barriers: dict[int, object] = {}
    spent: list[tuple[int, bytes, bytes]] = []
    known_states: set[bytes] = set()
    known_txs: set[bytes] = set()
    stamps: list[int] = []
    for offset, value in enumerate(world.topic.values):
        judged = judge.read(offset, value)
        if isinstance(judged, JudgedBarrier) and not judged.repeated:
            epochs.append(judged.record.epoch)
        barriers[offset] = judge.barrier
        stamps.append(judge.stamp_us)
        outcome = getattr(judged, "outcome", None)
        if outcome == "NOTARISED":
            request = judged.request  # type: ignore[union-attr]
            at = offset.to_bytes(8, "big")
            if request.tx_id not in known_txs:
                known_txs.add(request.tx_id)
                spent.append((offset, TX_KEY + request.tx_id, judge.notarised[request.tx_id][0] + at))
                spent.extend((offset, STATE_KEY + s, request.tx_id + at) for s in request.inputs)
                known_states.update(request.inputs)
    if len(set(epochs)) != len(epochs) or epochs != sorted(epochs):
        world.blame(f"epochs in force: {epochs}")
    for replica in world.replicas:
        position = replica.disk.position
        if position is None:
            if replica.disk.entries:
                world.blame(f"{replica.name} has entries without a position")
            continue
        expected = {key: value for offset, key, value in spent if offset <= position.offset}
        if replica.disk.entries != expected:
            world.blame(f"{replica.name}: index differs from the reference judge's at offset {position.offset}")
        if position.offset >= 0 and position.barrier != barriers[position.offset]:
            world.blame(f"{replica.name}: barrier in force differs at offset {position.offset}")
        if position.offset >= 0 and position.stamp_us != stamps[position.offset]:
            world.blame(f"{replica.name}: highest stamp differs at offset {position.offset}")
