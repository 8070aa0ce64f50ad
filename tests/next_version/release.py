"""What the next release would add: a record format with one field more, and rules with one rule more.

The writer of a request gives it a lot; the rules refuse what would be notarised for the first time and drew
`REFUSED_LOT`: as a window that is closed does, after conflicts, so a judge that knows today's rules alone agrees.
Importing this registers nothing: `register` makes a process one of the next release, and so does a wheel that calls it
(tests/runbooks/releases.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Annotated, Any

import msgspec

from replica.checker import judge as reference
from replica.notary import records, rules
from replica.notary.acceptances import Acceptance
from replica.notary.counted import CountedRequest
from replica.notary.formats import Formats, known
from replica.notary.records import NoteRecord, RecordFormat, RequestRecord, SignOfLifeRecord, request_record
from replica.notary.requests import Request
from replica.notary.rules import Outcome, Recorded, Verdict

PRESENT = known().newest
NEXT = Formats(PRESENT.records + 1, PRESENT.rules + 1)
LOTS, REFUSED_LOT = 16, 0
_judge = rules.RULES[PRESENT.rules]
_before_states = reference.RULES[PRESENT.rules].before_states


class NextRequest(RequestRecord, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False, tag=1):
    """One submission, with the lot that its writer gave it."""

    lot: Annotated[int, msgspec.Meta(ge=0, lt=LOTS)]


def make_request(*fields: Any) -> NextRequest:
    """The writer's part. The lot depends on what was signed, so a seed of the simulator can be replayed."""
    made = request_record(*fields)
    return NextRequest(*msgspec.structs.astuple(made), sha256(made.request).digest()[0] % LOTS)


def judge(entry: CountedRequest, recorded: Recorded, newest: Acceptance | None, registration: bytes | None) -> Verdict:
    """The reader's part: today's rules, and then the lot."""
    verdict = _judge(entry, recorded, newest, registration)
    assert isinstance(entry.record, NextRequest)
    is_first = verdict.outcome is Outcome.NOTARISED and verdict.notarised_offset == entry.offset
    return Verdict(Outcome.TIME_WINDOW_CLOSED) if is_first and entry.record.lot == REFUSED_LOT else verdict


def before_states(judge: reference.ReferenceJudge, record: RequestRecord, request: Request, *more: Any) -> str | None:
    """The same for the reference judge."""
    outcome = _before_states(judge, record, request, *more)
    assert isinstance(record, NextRequest)
    if outcome is not None or record.lot != REFUSED_LOT or request.tx_id in judge.notarised:
        return outcome
    is_free = judge.consumed.keys().isdisjoint((*request.inputs, *request.references))
    return reference.TIME_WINDOW_CLOSED if is_free else None


_DECODER = msgspec.msgpack.Decoder(NextRequest | SignOfLifeRecord | NoteRecord)
ADDED: list[tuple[dict[int, Any], int, Any]] = [
    (records.RECORD_FORMATS, NEXT.records, RecordFormat(make_request, _DECODER)),
    (rules.RULES, NEXT.rules, judge),
    (records.RECORD_FORMAT_OF, NEXT.rules, NEXT.records),
    (reference.RULES, NEXT.rules, reference.Rules(NEXT.records, before_states)),
]


def register() -> None:
    """This process is of the next release from now on."""
    for registry, number, value in ADDED:
        registry[number] = value


@contextmanager
def registered() -> Iterator[None]:
    """This process is of the next release meanwhile."""
    register()
    try:
        yield
    finally:
        for registry, number, _ in ADDED:
            del registry[number]
