"""The audit of acts and registrations: who signed them, and whether that was an officer."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audit.findings import FindingCode
from pipeline.audit.notes import bad_notes
from pipeline.judging.columns import decode
from replica.notary.counted import CountedNote
from replica.notary.genesis import GenesisRecord
from replica.notary.note_signatures import signed_note
from replica.notary.parties import PartyNote
from replica.notary.position import begin
from replica.notary.reading import read_records
from tests.pipeline.judged import plan_of
from tests.worlds.beginning import OTHER_LEDGER
from tests.worlds.notary_logs import TOPIC, Log, split
from tests.worlds.party_logs import logs_with_parties
from tests.worlds.signed_notes import ANNA, BERT, EVE, FINE, log_of, officers_act, registration


def found_in(notes: list[PartyNote], after: int = -1) -> list[tuple[FindingCode, int]]:
    """What the audit finds in a log of these notes, and where."""
    reading = read_records(begin(TOPIC), log_of(notes))
    counting = [note for note in reading.counted if isinstance(note, CountedNote)]
    return [(finding.code, finding.offset - 1) for finding in bad_notes(counting, after=after + 1)]


def test_what_officers_signed_is_clean() -> None:
    """Goal: no false alarm. Method: the genesis' officer registers, is replaced, and those register; an act about
    something else; the same signed bytes a second time."""
    assert found_in([*FINE, officers_act(BERT, 0, name="pause"), FINE[2]]) == []


@pytest.mark.parametrize("at", range(len(FINE)))
def test_a_bad_signature_is_found(at: int) -> None:
    """Goal: a note that nobody signed, though its effect is that of a signed one. Method: each note in turn, with
    another name under the same signature."""
    forged = msgspec.structs.replace(FINE[at], operator="eve")
    notes = [*FINE[:at], forged, *FINE[at + 1 :]]
    assert found_in(notes) == [(FindingCode.NOTE_SIGNATURE_INVALID, at + 1)]
    assert found_in(notes, after=at + 1) == []


def test_what_was_signed_for_another_ledger_is_found() -> None:
    """Goal: nobody plays an officer's note in another ledger. Method: the first one, signed for that."""
    foreign = signed_note(FINE[0], OTHER_LEDGER, lambda message: ANNA.sign(message).signature)
    assert found_in([foreign, *FINE[1:]]) == [(FindingCode.NOTE_SIGNATURE_INVALID, 1)]


@pytest.mark.parametrize(
    "note",
    [
        registration(EVE),
        registration(ANNA, 1),
        officers_act(EVE, 2, EVE),
        officers_act(ANNA, 2, ANNA),
        officers_act(EVE, 0, name="pause"),
    ],
    ids=["a stranger registers", "a former officer registers", "usurps", "comes back", "another act"],
)
def test_who_is_no_officer_is_found(note: PartyNote) -> None:
    """Goal: the officers in force at that offset count, not those before. Method: properly signed, by a stranger or by
    an officer who was replaced."""
    assert found_in([*FINE, note, registration(BERT, 2)]) == [(FindingCode.NOT_AN_OFFICER, 4)]


def test_nobody_but_officers_registers_from_the_first_note_on() -> None:
    """Goal: no key is an officer's that the genesis did not name. Method: a stranger registers, then names itself."""
    notes = [registration(EVE), officers_act(EVE, 1, EVE)]
    assert found_in(notes) == [(FindingCode.NOT_AN_OFFICER, 1), (FindingCode.NOT_AN_OFFICER, 2)]


@settings(deadline=None)
@given(logs_with_parties(), st.lists(st.integers(0, 45), max_size=3))
def test_the_plan_has_the_notes_that_a_replica_reads(log: Log, cuts: list[int]) -> None:
    """Goal: the audit sees each note that counts, and no void one. Method: random logs in slices, against reading."""
    parts = [part for part in split(log, cuts) if part]
    plan = plan_of([decode(part[0][0], pa.array([value for _, value in part], pa.binary())) for part in parts])
    read = read_records(begin(TOPIC), log).counted
    wanted = [(one.offset, one.record) for one in read if isinstance(one, CountedNote)]
    assert [(note.offset, note.record) for note in plan.notes] == [
        (offset, record) for offset, record in wanted if isinstance(record, GenesisRecord | PartyNote)
    ]
