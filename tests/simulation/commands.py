"""Judges what a run did with commands: an own reading of docs/formats.md, over the requests that count.

Each record has the period that its sender asked for. Each refusal, and each repeated success, rests on an acceptance
within that period. No command is accepted twice in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replica.checker.judge import Judged, JudgedLost, JudgedRequest
from replica.link.interface import DEFAULT_OPTIONS
from replica.notary.acceptances import COMMAND_KEY, decode_acceptance
from replica.notary.answers import Notarised
from replica.notary.canonical import change_id, summarise
from replica.notary.codes import Code
from replica.notary.records import RequestRecord
from replica.notary.requests import TIME_MAX_US, Submission
from tests.simulation.parties import OF_KEYS, check_refused_keys

if TYPE_CHECKING:
    from replica.link.interface import SubmitOptions
    from tests.simulation.replica import Asked
    from tests.simulation.world import World

_REFUSED_OR_REPEATED = ("COMMAND_ID_REUSED", "DEDUPLICATED")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """That a command was accepted: with what, at which time judged, at which ledger offset."""

    content: tuple[bytes, bytes]
    judged_us: int
    ledger_offset: int


def _change_of(submission: Submission) -> bytes:
    return change_id(submission.user_id, submission.command_id, submission.act_as)


def check_commands(world: World, walked: list[Judged]) -> None:
    """Blame the world for each record that was judged otherwise, or has other terms than its sender asked for."""
    check_refused_keys(world, walked)
    accepted: dict[bytes, list[Acceptance]] = {}
    for judged in walked:
        if isinstance(judged, JudgedLost):
            for command, acceptance in _lost_at(world, judged.offset):
                accepted.setdefault(command, []).append(acceptance)
        if not isinstance(judged, JudgedRequest):
            continue
        of_command = accepted.setdefault(judged.change_id, [])
        content = (judged.request.tx_id, judged.content_digest)
        _check_terms(world, judged, judged.record)
        _check_outcome(world, judged, judged.record, content, of_command[-1] if of_command else None)
        if judged.outcome == "NOTARISED":
            of_command.append(Acceptance(content, judged.judged_us, judged.ledger_offset))
    knows_all = not any(isinstance(judged, JudgedLost) for judged in walked)  # what a lost record accepted is not known
    for name, asked, answer in world.recalled if knows_all else ():
        _check_recalled(world, name, asked, answer, accepted)


def _lost_at(world: World, offset: int) -> list[tuple[bytes, Acceptance]]:
    """What the salvage of a lost record has as accepted there: command and acceptance."""
    held = [salvage.entries_at(offset) for salvage in world.salvages.held.values()]
    entries = {key: value for one in held for key, value in one.items() if key[:1] == COMMAND_KEY}
    found = [(key[1:33], decode_acceptance(value)) for key, value in entries.items()]
    return [(key, Acceptance((one.tx_id, one.content_digest), one.judged_us, one.ledger_offset)) for key, one in found]


def _check_outcome(
    world: World,
    judged: JudgedRequest,
    record: RequestRecord,
    content: tuple[bytes, bytes],
    newest: Acceptance | None,
) -> None:
    after = world.options.get(record.submission_id, DEFAULT_OPTIONS).deduplication_after
    counts = newest is not None and (
        judged.judged_us - newest.judged_us <= record.deduplication_us
        if after is None
        else newest.ledger_offset > after
    )
    expected = None
    if newest is not None and counts:
        expected = "DEDUPLICATED" if newest.content == content else "COMMAND_ID_REUSED"
    if judged.outcome in OF_KEYS and expected == "COMMAND_ID_REUSED":  # a key that is not in force learns nothing
        expected = None
    found = judged.outcome if judged.outcome in _REFUSED_OR_REPEATED else None
    if found != expected:
        world.blame(f"the command of record {judged.offset} was judged {found}, by its newest acceptance {expected}")
    if found == "DEDUPLICATED" and not (world.plan.blind or world.plan.all_serve):
        world.blame(f"record {judged.offset} was logged, although its command was known to be accepted")


def _check_terms(world: World, judged: JudgedRequest, record: RequestRecord) -> None:
    options = world.options.get(record.submission_id, DEFAULT_OPTIONS)
    if record.deduplication_us != _period_us(world, options, judged.barrier.replica):
        world.blame(f"record {judged.offset} has the period {record.deduplication_us} us, asked for was {options}")


def _period_us(world: World, options: SubmitOptions, replica: str) -> int:
    """The period in force for what a sender asked of a replica."""
    if options.deduplication_after is not None:
        return TIME_MAX_US
    longest_s = world.replica(replica).plan.deduplication_max_s
    return round((longest_s if options.deduplication_s is None else options.deduplication_s) * 1e6)


def _check_recalled(
    world: World, name: str, asked: Asked, answer: object, accepted: dict[bytes, list[Acceptance]]
) -> None:
    """An answer without a record of its own: a success that was accepted within the period, as of the question."""
    if not isinstance(answer, Notarised):
        if getattr(answer, "code", None) == Code.COMMAND_ID_REUSED.name:
            world.blame(f"{name} refused a command of its own accord: {asked}")
        return
    tx_id, digest, _ = summarise(asked.submission.request)
    known = [one for one in accepted.get(_change_of(asked.submission), []) if one.content == (tx_id, digest)]
    period_us, after = _period_us(world, asked.options, name), asked.options.deduplication_after
    if not any(
        asked.stamp_us - one.judged_us <= period_us and (after is None or one.ledger_offset > after) for one in known
    ):
        world.blame(f"{name} repeated a success that was not accepted within the period: {asked.submission.command_id}")
