"""How far answers may run ahead of what survives a power cut."""

from __future__ import annotations

from replica.marks.lead import LEAD_MAX_S, Lead


def test_what_is_covered_is_not_exposed() -> None:
    lead = Lead(10)
    lead.note_covered(100)
    lead.note_applied(100, 0.0)
    assert lead.exposed_records == 0
    assert lead.why_not(1_000.0) is None


def test_records_are_bounded() -> None:
    lead = Lead(10)
    lead.note_applied(9, 0.0)  # ten records, none covered
    assert lead.why_not(0.0) is None
    lead.note_applied(10, 0.0)
    assert "11 records" in str(lead.why_not(0.0))
    lead.note_covered(0)
    assert lead.why_not(0.0) is None


def test_the_oldest_record_that_is_not_covered_bounds_the_time() -> None:
    lead = Lead(1_000)
    for offset in range(100):
        lead.note_applied(offset, offset * 0.015)
        lead.note_covered(offset - 50)  # 0.75 s behind
        assert lead.why_not(offset * 0.015) is None
    assert lead.why_not(0.75 + LEAD_MAX_S + 0.1) is not None
    lead.note_covered(99)
    assert lead.why_not(1_000.0) is None


def test_a_long_stop_is_bounded_and_ends_with_the_newest_record() -> None:
    lead = Lead(10**6)
    for offset in range(100_000):
        lead.note_applied(offset, offset * 0.01)
    assert len(lead._uncovered) <= LEAD_MAX_S / 0.02 + 2
    lead.note_covered(99_998)
    assert lead.why_not(1_000.0) is not None  # its newest record is not covered
    lead.note_covered(99_999)
    assert lead.why_not(1_000.0) is None


def test_cover_never_goes_back() -> None:
    lead = Lead(10)
    lead.note_covered(50)
    lead.note_covered(3)
    lead.note_applied(55, 0.0)
    assert lead.exposed_records == 5
