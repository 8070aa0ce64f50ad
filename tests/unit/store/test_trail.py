"""The operators' trail: what is in a line, and that no change of it goes unnoticed."""

from __future__ import annotations

import json
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.notary.errors import ConfigError
from replica.store.trail import (
    BEFORE_THE_FIRST,
    LINE_MAX_BYTES,
    REASON_MAX,
    Broken,
    Entry,
    Head,
    Signatory,
    TrailBroken,
    check_reason,
    digest_of,
    encode_entry,
    follow,
    head_before,
    head_of,
    parse_head,
    signed_line,
    still_has,
)
from replica.store.trail_writing import TRIES_MAX, TrailUnavailable, add_line, bring_back, lines_after
from tests.golden.samples import NOTARY_P256
from tests.worlds.trails import KNOWN, NOW, PEOPLE, KeptHere, line_after, trail_of

LINES = trail_of(
    {"reason": "zoë's\u2028 disk \\u", "details": {"to": "r2"}},
    {"phase": "done", "of": 1, "outcome": "r2 took over"},
    {"who": "notary", "act": "resume"},
    {"who": "ben", "act": "switchover"},
)


def test_a_line_has_who_when_what_and_why_and_is_ascii() -> None:
    """Goal: a SIEM and a terminal need nothing else. Method: the members of a line, the chain by hand."""
    first, second, third, _ = (json.loads(line) for line in LINES)
    assert (first["number"], first["previous"], first["at"]) == (1, BEFORE_THE_FIRST, "2026-05-01T12:00:00Z")
    assert (first["operator"], first["os_user"], first["host"], first["cluster"]) == (
        "anna",
        "root",
        "machine",
        "notary",
    )
    assert (first["act"], first["phase"], first["reason"]) == ("pause", "begun", "zoë's\u2028 disk \\u")
    assert (second["of"], second["outcome"], second["previous"]) == (1, "r2 took over", digest_of(LINES[0]))
    assert (third["signer"], third["operator"]) == ("notary", "root")
    assert all(line.isascii() and b"\n" not in line for line in LINES)


def test_a_trail_is_followed_in_parts() -> None:
    """Goal: an export goes on where the one before ended. Method: every cut, with and without the known keys."""
    whole = follow(LINES, Head(), KNOWN)
    assert (len(whole.entries), whole.head, whole.broken) == (4, Head(4, digest_of(LINES[3])), None)
    for cut in range(len(LINES) + 1):
        first = follow(LINES[:cut])
        second = follow(LINES[cut:], first.head, KNOWN)
        assert (first.entries + second.entries, second.head, second.broken) == (whole.entries, whole.head, None)
        assert head_before(LINES[cut:]) == (first.head if LINES[cut:] else Head())


@pytest.mark.parametrize("at", range(len(LINES)))
def test_a_change_is_found(at: int) -> None:
    """Goal: nobody edits a trail unnoticed. Method: each line changed, dropped, doubled, swapped, spelled otherwise,
    or signed by nobody; the last line dropped is what only a remembered head finds."""
    changed = LINES[at].replace(b'"host":"machine"', b'"host":"another"')
    spelled = LINES[at].replace(b'"host":', b'"host": ')
    unsigned = json.dumps(json.loads(LINES[at]) | {"signature": "00" * 64}, separators=(",", ":")).encode()
    for other in (changed, spelled, unsigned, b"", b"{}", b"\xff", LINES[at] + b" " * LINE_MAX_BYTES):
        assert _first_broken([*LINES[:at], other, *LINES[at + 1 :]]) == at + 1
    assert _first_broken([*LINES[: at + 1], *LINES[at:]]) == at + 2
    if at < len(LINES) - 1:
        assert _first_broken([*LINES[:at], *LINES[at + 1 :]]) == at + 1
        assert _first_broken([*LINES[:at], LINES[at + 1], LINES[at], *LINES[at + 2 :]]) == at + 1


def _first_broken(lines: list[bytes]) -> int | None:
    broken = follow(lines).broken
    return None if broken is None else broken.number


def test_a_line_of_another_history_does_not_follow() -> None:
    """Goal: a signed line stands in one place only. Method: the same number after other lines."""
    others = trail_of({"reason": "another"}, {}, {}, {})
    assert follow([*LINES[:2], others[2]]).broken == Broken(3, "does not name the digest of the line before")
    assert follow([line_after(Head(), number=2)]).broken == Broken(1, "is missing: 2 comes after 0")
    assert follow([line_after(Head(), of=1)]).broken == Broken(1, "refers to a later one")


def test_only_known_people_and_the_notary_count_as_what_they_are() -> None:
    """Goal: an entry is its operator's. Method: an unknown key, another's name, the notary's key as an operator's and
    the reverse, a key that has ended; one that ends later is good."""
    key = {name: bytes(PEOPLE[name].verify_key).hex() for name in PEOPLE}

    def why(line: bytes, known: dict[str, Signatory]) -> str:
        broken = follow([line], Head(), known).broken
        return "" if broken is None else broken.why

    line = line_after(Head())
    assert why(line, KNOWN) == ""
    assert "nobody's here" in why(line, {key["ben"]: Signatory("ben")})
    assert why(line_after(Head(), operator="ben"), KNOWN) == "names ben, and the key is anna's"
    assert "another kind" in why(line_after(Head(), "notary", signer="operator"), KNOWN)
    assert "another kind" in why(line_after(Head(), signer="notary"), KNOWN)
    assert "had ended" in why(line, {key["anna"]: Signatory("anna", NOW)})
    assert why(line, {key["anna"]: Signatory("anna", NOW + timedelta(seconds=1))}) == ""


def test_the_notary_may_sign_entries_with_p256() -> None:
    """Goal: a notary whose key is of P-256 keeps a trail. Method: an entry between two of Ed25519; then a changed one,
    and one whose signature was made by the key of the other algorithm."""
    key = NOTARY_P256.public_key.hex()
    known = KNOWN | {key: Signatory(None)}
    entry = msgspec.json.decode(line_after(head_of(LINES[0]), "notary"), type=Entry)
    entry = msgspec.structs.replace(entry, key=key, signature="")
    good = signed_line(entry, NOTARY_P256.sign)
    assert follow([LINES[0], good, line_after(head_of(good), "ben")], Head(), known).broken is None
    other = signed_line(entry, lambda message: PEOPLE["notary"].sign(message).signature)
    for bad in (good.replace(b'"pause"', b'"paus3"'), other):
        assert follow([LINES[0], bad], Head(), known).broken == Broken(2, "has a signature that does not hold")


def test_a_head_that_somebody_remembers_is_still_there_or_not() -> None:
    """Goal: deleted and rewritten tails are found. Method: no line, another line, the line; number 0 asks nothing."""
    head = head_of(LINES[2])
    assert still_has(LINES[2], head) is None
    assert still_has(None, Head()) is None
    assert still_has(None, head) == Broken(3, "is gone, with all that came after it")
    assert still_has(trail_of({}, {}, {})[2], head) == Broken(3, "is another one than it was")


def test_a_cursor_is_read_as_it_is_printed() -> None:
    """Goal: a damaged cursor is no cursor. Method: one, the empty one, and others."""
    for head in (Head(), head_of(LINES[3])):
        assert parse_head(f"{head}\n") == head
    for text in ("", "4", f"4:{'g' * 64}", f"-1:{'a' * 64}", f"0:{'a' * 64}", f"4:{BEFORE_THE_FIRST}", f"4:{'A' * 64}"):
        with pytest.raises(ConfigError):
            parse_head(text)


@given(
    reason=st.text(max_size=REASON_MAX),
    outcome=st.text(max_size=5_000),
    details=st.dictionaries(st.text("ab", min_size=1), st.text(max_size=40), max_size=4),
)
def test_every_line_fits_where_it_is_kept(reason: str, outcome: str, details: dict[str, str]) -> None:
    """Goal: no act fails because of its words. Method: any texts; the outcome alone is cut."""
    try:
        (entry,) = follow([line := line_after(Head(), reason=reason, outcome=outcome, details=details)]).entries
    except ConfigError:
        assert len(json.dumps([reason, details])) > 2_000
        return
    assert len(line) <= LINE_MAX_BYTES
    assert (entry.reason, entry.details) == (reason, details)
    assert entry.outcome == outcome or outcome.startswith(entry.outcome[: -len("...")].rstrip("."))


def test_a_long_outcome_leaves_room_for_the_signature() -> None:
    """Goal: the bound is that of the whole line. Method: outcomes of every length about the bound."""
    for length in range(3_000, 3_600, 7):
        assert len(line_after(Head(), outcome="x" * length)) <= LINE_MAX_BYTES


def test_a_reason_is_one_short_line() -> None:
    """Goal: what people write fits a line of a table. Method: at the bound, above it, and with a line break."""
    assert check_reason("  a disk ") == "a disk"
    assert check_reason("ü" * REASON_MAX) == "ü" * REASON_MAX
    for text in ("x" * (REASON_MAX + 1), "two\nlines", "\x1b[31m"):
        with pytest.raises(ConfigError):
            check_reason(text)
    with pytest.raises(ConfigError, match="too long"):
        line_after(Head(), details={str(number): "x" * 400 for number in range(10)})


def test_the_signature_is_over_all_but_itself() -> None:
    """Goal: nothing in a line is unsigned. Method: each member changed in its one spelling."""
    (entry,) = follow(LINES[:1]).entries
    for name in entry.__struct_fields__:
        if name in ("signature", "key"):
            continue
        value = getattr(entry, name)
        other = {int: 7, str: "other", dict: {"a": "b"}}.get(type(value), NOW + timedelta(days=1))
        forged = msgspec.structs.replace(entry, **{name: 7 if name == "of" else other})
        assert follow([encode_entry(forged)]).broken is not None, name
    assert signed_line(entry, lambda _: bytes(64)) != LINES[0]


async def test_two_writers_make_one_chain() -> None:
    """Goal: nobody's entry is lost or takes another's place. Method: somebody comes first, once, and for ever."""
    kept = KeptHere(LINES[:1])
    kept.late = [{"who": "ben"}]
    head = await add_line(kept, line_after)
    assert head.number == 3
    assert [entry.operator for entry in follow(kept.lines, Head(), KNOWN).entries] == ["anna", "ben", "anna"]
    kept.late = [{}] * TRIES_MAX
    with pytest.raises(TrailUnavailable):
        await add_line(kept, line_after)
    assert follow(kept.lines).broken is None


async def test_a_deleted_tail_is_found_by_who_has_a_cursor() -> None:
    """Goal: an export never goes on after a trail that lost what was exported. Method: cut; cut and write anew."""
    head = head_of(LINES[2])
    assert [line async for line in lines_after(KeptHere(LINES), head)] == LINES[3:]
    assert [line async for line in lines_after(KeptHere(LINES), Head())] == LINES
    for lines in (LINES[:2], [*LINES[:2], line_after(head_of(LINES[1]), reason="in its place")], []):
        with pytest.raises(TrailBroken, match="entry 3"):
            assert [line async for line in lines_after(KeptHere(lines), head)]


async def test_an_export_brings_back_what_a_restore_has_lost() -> None:
    """Goal: the chain goes on after a restore. Method: nothing, a part and all are lost; histories that parted."""
    for cut in range(len(LINES) + 1):
        kept = KeptHere(LINES[:cut])
        assert await bring_back(kept, LINES) == len(LINES) - cut
        assert kept.lines == LINES
    kept = KeptHere(LINES[:2])
    assert (await bring_back(kept, LINES[1:]), await bring_back(kept, [])) == (2, 0)
    parted = KeptHere([*LINES[:2], line_after(head_of(LINES[1]), reason="another")])
    for kept, lines in (
        (parted, LINES),
        (KeptHere(LINES[:1]), LINES[2:]),
        (KeptHere(), LINES[1:]),
        (KeptHere(), [b"x"]),
    ):
        before = list(kept.lines)
        with pytest.raises(TrailBroken):
            await bring_back(kept, lines)
        assert kept.lines == before
