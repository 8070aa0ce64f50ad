"""What the checker makes of unknown outcomes, partial histories, late publishing, and of what it cannot read."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256

import msgspec
import pytest
from nacl.signing import SigningKey

from replica.checker.check import Scope, check, receipt_verifier
from replica.checker.completions import CompletionRow, completions_of
from replica.checker.findings import FindingCode, Findings, Report
from replica.checker.history import (
    ConflictText,
    Event,
    Invoke,
    Ok,
    Refused,
    Unknown,
    decode_event,
    encode_event,
    invoke_submission,
)
from replica.checker.judge import ReferenceJudge
from replica.notary.canonical import content_digest
from replica.notary.errors import FormatUnknown, InvariantBroken
from replica.notary.receipts import Place, make_receipts, receipt_to_document
from replica.notary.requests import Request, format_state_ref
from replica.notary.signatures import signature_holds
from tests.worlds.checker_world import good_world
from tests.worlds.notary_logs import LogMaker, begun, request_of, submission_of, tx

ONE, TWO = request_of(1, (1,)), request_of(2, (2,))


def _log(*requests: Request, command: str = "") -> list[tuple[int, bytes]]:
    """Each request under its own command unless one is given."""
    maker = begun()
    for number, request in enumerate(requests):
        maker.submit(request, command=command or ("command" if number + 1 == len(requests) else f"earlier-{number}"))
    return maker.log


def _sent(op: int, at_ns: int, request: Request, command: str = "command") -> Invoke:
    return invoke_submission("p", op, at_ns, request, submission_of(request, command))


def _ok(op: int, at_ns: int, request: Request, offset: int) -> Ok:
    return Ok("p", op, at_ns, content_digest(request).hex(), offset, offset)


def _codes(report: Report) -> set[str]:
    return set(report.counts)


@pytest.mark.parametrize("logged", [True, False])
@pytest.mark.parametrize("end", [[], [Unknown("p", 0, 20, "TIMEOUT")]])
def test_an_operation_of_unknown_outcome_may_be_in_the_log_or_not(logged: bool, end: list[Event]) -> None:
    """Goal: I11. Method: no answer, and "unknown", each with and without its record."""
    report = check([_sent(0, 10, ONE), *end], _log(ONE) if logged else _log())
    assert report.findings == []
    assert report.summary.answers == {"UNKNOWN": 1}


def test_one_unknown_attempt_explains_one_record_only() -> None:
    """Goal: a submission runs once. Method: two records for one attempt; then two attempts."""
    assert _codes(check([_sent(0, 10, ONE)], _log(ONE, ONE, command="command"))) == {"RECORD_FROM_NOWHERE"}
    twice = [_sent(0, 10, ONE, "a"), _sent(1, 20, ONE, "b")]
    assert _codes(check(twice, _log(ONE, ONE, command="a"))) >= {"RECORD_FROM_NOWHERE"}
    maker = begun()
    maker.submit(ONE, command="b")
    maker.submit(ONE, command="a")
    assert check(twice, maker.log).findings == []


def test_an_unknown_record_must_not_stand_before_what_was_answered_earlier() -> None:
    """Goal: I6 holds for unknown outcomes too. Method: TWO is sent after ONE's answer, and stands before it."""
    history = [_sent(0, 10, ONE, "a"), _ok(0, 20, ONE, 4), _sent(1, 30, TWO, "b"), Unknown("p", 1, 40, "TIMEOUT")]
    maker = begun()
    maker.submit(TWO, command="b")
    maker.submit(ONE, command="a")
    assert _codes(check(history, maker.log)) == {"ORDER_BROKEN"}


def test_operations_that_overlap_may_stand_in_either_order() -> None:
    """Goal: no false alarm. Method: both sent before either is answered; then the second sent after the answer."""
    maker = begun()
    maker.submit(TWO, command="b")
    maker.submit(ONE, command="a")
    answers = [_ok(0, 20, ONE, 4), _ok(1, 31, TWO, 3)]
    assert check([_sent(0, 10, ONE, "a"), _sent(1, 20, TWO, "b"), *answers], maker.log).findings == []
    assert _codes(check([_sent(0, 10, ONE, "a"), _sent(1, 21, TWO, "b"), *answers], maker.log)) == {"ORDER_BROKEN"}


def test_what_is_older_than_the_history_needs_no_operation() -> None:
    """Goal: a log with a past can be checked. Method: a conflict with a winner from before `first_offset`."""
    loser = request_of(3, (1,))
    conflicts = check([_sent(0, 10, loser)], _log(ONE, loser)).counts
    assert conflicts == {"RECORD_FROM_NOWHERE": 1}
    assert check([_sent(0, 10, loser)], _log(ONE, loser), scope=Scope(first_offset=4)).findings == []
    assert check([_sent(0, 10, loser)], _log(ONE, loser), scope=Scope(complete=False)).findings == []


def test_a_conflict_needs_a_winner_that_somebody_sent() -> None:
    """Goal: I3. Method: a refusal whose winner is in no history, inside and outside what the history covers."""
    loser = request_of(3, (1,))
    conflict = (ConflictText(format_state_ref(ONE.inputs[0]), sha256(ONE.tx_id).hexdigest(), "input"),)
    history = [_sent(0, 10, loser), Refused("p", 0, 20, "STATE_CONFLICT", 4, conflict)]
    assert _codes(check(history, _log(ONE, loser))) == {"WINNER_FROM_NOWHERE", "RECORD_FROM_NOWHERE"}
    assert check(history, _log(ONE, loser), scope=Scope(first_offset=4)).findings == []
    assert check(history, _log(ONE, loser), scope=Scope(complete=False)).findings == []


def test_an_answer_must_rest_on_the_record_of_its_own_submission() -> None:
    """Goal: answers are matched by submission, not by transaction id. Method: another command, another content."""
    other_content = request_of(1, (7,))
    history = [_sent(0, 10, ONE, "a"), _ok(0, 20, ONE, 3)]
    scope = Scope(complete=False)
    assert check(history, _log(ONE, command="a"), scope=scope).findings == []
    assert _codes(check(history, _log(ONE, command="b"), scope=scope)) == {"WRONG_RECORD"}
    assert _codes(check(history, _log(other_content, command="a"), scope=scope)) == {"WRONG_RECORD"}


def test_a_recalled_success_names_the_first_record_its_content_and_a_later_epoch() -> None:
    """Goal: look-ups and duplicates are answers like others. Method: other offset, digest, epoch."""
    maker = begun()
    maker.barrier(2)
    maker.submit(ONE, command="a")
    maker.submit(ONE, command="b")

    def codes(**changes: object) -> set[str]:
        found = Ok("q", 0, 50, content_digest(ONE).hex(), 4, epoch=2, replica="R2")
        look_up = [Invoke("q", 0, 40, ONE.tx_id.hex()), msgspec.structs.replace(found, **changes)]
        return _codes(check([_sent(0, 10, ONE, "a"), _sent(1, 11, ONE, "b"), *look_up], maker.log))

    assert codes() == set()
    assert codes(log_offset=5) == {"WRONG_OFFSET"}
    assert codes(log_offset=3) == {"LOST_ANSWER"}
    assert codes(content_digest="ab" * 32) == {"WRONG_DIGEST"}
    assert codes(epoch=1, replica="R1") == {"PASSIVE_ANSWERED"}
    assert codes(replica="R1") == {"PASSIVE_ANSWERED"}


def test_any_replica_may_answer_where_all_serve() -> None:
    """Goal: an answer by another replica than the epoch's is right there, one of another epoch is not. Method: answers
    with and without a record of their own, under both modes."""
    maker = begun()
    offset = maker.submit(ONE, command="a")
    sent = _sent(0, 10, ONE, "a")

    def codes(*, all_serve: bool, epoch: int = 1) -> set[str]:
        own = Ok("p", 0, 30, content_digest(ONE).hex(), offset, record_offset=offset, epoch=epoch, replica="R2")
        look_up = Invoke("q", 0, 40, ONE.tx_id.hex())
        found = Ok("q", 0, 50, content_digest(ONE).hex(), offset, epoch=epoch, replica="R2")
        return _codes(check([sent, own, look_up, found], maker.log, scope=Scope(all_serve=all_serve)))

    assert codes(all_serve=False) == {"PASSIVE_ANSWERED"}
    assert codes(all_serve=True) == set()
    assert codes(all_serve=True, epoch=2) == {"PASSIVE_ANSWERED"}


def test_histories_without_commands_are_matched_by_content() -> None:
    """Goal: commands may be left out. Method: answered and open operations without them."""
    content = _sent(0, 10, ONE).content
    history = [Invoke("p", 0, 10, ONE.tx_id.hex(), content), _ok(0, 20, ONE, 3)]
    assert check(history, _log(ONE)).findings == []
    assert check(history[:1], _log(ONE)).findings == []
    assert _codes(check(history[:1], _log(TWO))) == {"RECORD_FROM_NOWHERE"}


def test_not_found_is_true_until_the_log_is_known_to_have_it() -> None:
    """Goal: a look-up may overlap with the notarisation. Method: denied before, during and after the answer."""
    denied = [Invoke("q", 0, 0, ONE.tx_id.hex()), Refused("q", 0, 25, "TX_NOT_FOUND")]
    overlapping = [_sent(0, 10, ONE), _ok(0, 20, ONE, 3), *denied]
    assert check(overlapping, _log(ONE)).findings == []
    late = [*overlapping[:2], Invoke("q", 0, 21, ONE.tx_id.hex()), denied[1]]
    assert _codes(check(late, _log(ONE))) == {"DENIED"}
    others = [_sent(0, 5, ONE, "a"), _sent(1, 10, TWO), _ok(1, 20, TWO, 4)]
    through_another = [*others, Invoke("q", 0, 21, ONE.tx_id.hex()), denied[1]]
    maker = begun()
    maker.submit(ONE, command="a")
    maker.submit(TWO, command="command")
    assert _codes(check(through_another, maker.log)) == {"DENIED"}


def test_completions_may_lag_behind_the_log() -> None:
    """Goal: publishing is later than answering. Method: leave the tail out, with and without saying how far it goes."""
    world = good_world(3)
    published = world.completions[10]
    world.completions = [row for row in world.completions if row.log_offset <= published.log_offset]
    assert _codes(world.check()) == {"COMPLETION_MISSING"}
    world.scope = Scope(published_offset=published.log_offset)
    assert world.check().findings == []
    world.completions = []
    world.scope = Scope(published_offset=-1)
    assert world.check().findings == []


def test_the_summary_says_what_was_looked_at() -> None:
    """Goal: "no finding" is worth something only with counts. Method: a good run."""
    world = good_world(1)
    summary = world.check().summary
    assert summary.operations == sum(isinstance(event, Invoke) for event in world.history)
    assert sum(summary.answers.values()) == summary.operations
    assert summary.receipts == sum(isinstance(e, Ok) and e.receipt is not None for e in world.history)
    assert summary.records == len(world.values)
    assert summary.completions == len(world.completions)
    assert summary.epochs == {epoch: f"R{epoch}" for epoch in range(1, 6)}
    assert summary.voids.keys() == {"not_in_force"}
    requests = sum(summary.outcomes.values()) - summary.outcomes["GENESIS"] - summary.outcomes["NOTE"]
    assert requests == len({row.log_offset for row in world.completions})


@pytest.mark.parametrize("unknown", [1, 9])
def test_a_log_with_a_gap_or_of_another_release_is_not_checked(unknown: int) -> None:
    """Goal: no result is better than a wrong one. Method: an offset left out; an earlier or later format in force."""
    log = _log(ONE, TWO)
    with pytest.raises(InvariantBroken):
        check([], [log[0], log[2]])
    maker = LogMaker()
    maker.barrier(1, format=unknown)
    with pytest.raises(FormatUnknown):
        check([], maker.log)


def test_findings_are_bounded_and_counted() -> None:
    """Goal: a broken run does not fill the memory. Method: more findings than are kept."""
    findings = Findings(kept_per_code=2)
    for number in range(5):
        findings.add(FindingCode.DENIED, operation=f"p/{number}")
    assert [finding.evidence["operation"] for finding in findings.kept] == ["p/0", "p/1"]
    assert findings.counts[FindingCode.DENIED] == 5


def test_each_request_has_one_completion_in_order() -> None:
    """Goal: submissions end in the log's order. Method: none published, both, the two swapped, one left out."""
    maker = begun()
    maker.submit(ONE, stamp_us=7, command="c")
    maker.live()
    maker.submit(ONE, stamp_us=6, command="d")

    def codes(*rows: CompletionRow) -> set[str]:
        return _codes(check([], maker.log, scope=Scope(complete=False), completions=rows))

    good = [row for judged in ReferenceJudge().judge(maker.log) for row in completions_of(judged)]
    first, second = good
    assert [(row.outcome, row.recorded_us) for row in good] == [("NOTARISED", 7)] * 2
    assert codes() == {"COMPLETION_MISSING"}
    assert codes(first, second) == set()
    swapped = msgspec.structs.replace(second, ledger_offset=1), msgspec.structs.replace(first, ledger_offset=2)
    assert codes(*swapped) >= {"COMPLETION_EXTRA", "COMPLETION_MISSING"}
    assert codes(first) == {"COMPLETION_MISSING"}


def test_a_receipt_is_of_the_place_that_the_answer_names() -> None:
    """Goal: where and when are the answer's. Method: a good receipt, at the answer's offset and beside."""
    key = SigningKey(b"\x05" * 32)
    public = bytes(key.verify_key)
    pair = (ONE.tx_id, content_digest(ONE))
    for offset, found in ((3, set()), (4, {"RECEIPT_INVALID"})):
        place = Place("log", offset, 1, 1_000)
        (receipt,) = make_receipts([pair], public, lambda message: key.sign(message).signature, [place])
        answer = msgspec.structs.replace(_ok(0, 20, ONE, 3), receipt=receipt_to_document(receipt))
        history = [decode_event(encode_event(event)) for event in (_sent(0, 10, ONE), answer)]
        assert _codes(check(history, _log(ONE), verify=receipt_verifier(public))) == found


def test_one_signature_is_checked_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a million receipts take seconds, not minutes. Method: count the signature checks behind twenty receipts."""
    asked: list[bytes] = []

    def holds(public_key: bytes, message: bytes, signature: bytes) -> bool:
        asked.append(message)
        return signature_holds(public_key, message, signature)

    monkeypatch.setattr("replica.checker.check.notary_signature_holds", holds)
    key = SigningKey(b"\x05" * 32)
    public = bytes(key.verify_key)
    pairs = [(tx(number), tx(number + 50)) for number in range(20)]
    receipts = make_receipts(pairs, public, lambda message: key.sign(message).signature)
    verify = receipt_verifier(public)
    assert all(verify(receipt) for receipt in receipts)
    assert len(asked) == 1
    assert not any(verify(msgspec.structs.replace(receipt, signature=bytes(64))) for receipt in receipts)


def test_the_checker_knows_neither_rules_nor_void_rule() -> None:
    """Goal: a mistake must be made twice. Method: import the checker alone and look at what came with it."""
    code = (
        "import sys, replica.checker.check;"
        "sys.exit(bool({'replica.notary.rules', 'replica.notary.reading'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rows_compare_in_full() -> None:
    """Goal: completions are equal, whichever replica served them. Method: each field of one row changed."""
    world = good_world(2)
    at = next(n for n, row in enumerate(world.completions) if row.outcome == "NOTARISED")
    good = world.completions[at]
    others = {
        "change_id": b"x" * 32,
        "user_id": "x",
        "command_id": "x",
        "act_as": ("x",),
        "submission_id": "x",
        "tx_id": b"x" * 32,
        "content_digest": b"x" * 32,
        "outcome": "TX_ID_REUSED",
        "notarised_offset": 0,
        "recorded_us": 0,
        "detail": b"x",
    }
    assert {*others, "ledger_offset", "log_offset"} == set(CompletionRow.__struct_fields__)
    for name, value in others.items():
        world.completions[at] = msgspec.structs.replace(good, **{name: value})
        assert _codes(world.check()) == {"COMPLETION_WRONG"}, name
