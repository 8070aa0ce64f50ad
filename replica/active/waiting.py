"""A submission in the core, and the way of its answer back to the caller."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from replica.active.terms import Terms
from replica.link.interface import Replies, SubmitOptions
from replica.notary.answers import Answer
from replica.notary.requests import Submission
from replica.store.interface import Command


class Waiting(msgspec.Struct, gc=False):
    """A submission in the core, and the caller that waits for its answer. `states` is its weight (admission_budget.py).
    `terms` is the deduplication period that the log honours, once it is known; `voided`: how many of its records a
    barrier made void."""

    replies: Replies
    ticket: int
    submission: Submission
    command: Command
    states: int
    options: SubmitOptions
    answered: bool = False
    terms: Terms | None = None
    voided: int = 0


def send(answers: Iterable[tuple[Waiting, Answer]]) -> None:
    """Send answers, one call per front end. A ticket has one answer: who was answered before gets no other."""
    by_front_end: dict[Replies, list[tuple[int, Answer]]] = {}
    for waiting, answer in answers:
        if waiting.answered:
            continue
        waiting.answered = True
        by_front_end.setdefault(waiting.replies, []).append((waiting.ticket, answer))
    for replies, batch in by_front_end.items():
        replies.send(batch)
