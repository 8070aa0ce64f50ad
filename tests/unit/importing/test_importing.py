"""An import's source, its work file, and what it submits; the notary is a stand-in that judges by a dict."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from ledger_api.client import Party, Result
from ledger_api.wire.problems import problem_document
from replica.importing.sources import CORDA, Consumed, file_identity, parse_columns, read_csv
from replica.importing.staging import Progress, Staging
from replica.importing.submit import CALLS, ImportStopped, make_submission, submit_staged
from replica.notary.answers import Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, NotActive
from replica.notary.receipts import make_receipts
from replica.notary.requests import Submission, format_state_ref, state_ref
from replica.notary.rules import Conflict, Usage, hash_of_tx_id
from replica.notary.terms import decode_canonical
from tests.worlds.beginning import LEDGER

PARTY = Party("O=Importer,L=London,C=GB", LEDGER, SigningKey(bytes(32)))


def tx_id(number: int) -> bytes:
    return sha256(number.to_bytes(4, "big")).digest()


def state(number: int) -> bytes:
    return state_ref(tx_id(number), number % 3)


class Notary:
    """Knows which transaction consumed what; stops answering on command."""

    def __init__(self) -> None:
        self.consumed: dict[bytes, bytes] = {}
        self.seen: list[bytes] = []
        self.silent_after = 10**9
        self.problem: Code | None = None

    async def submit_batch(self, submissions: Sequence[Submission]) -> list[Result]:
        return [self._judge(submission) for submission in submissions]

    def _judge(self, submission: Submission) -> Result:
        if self.problem is not None:
            return problem_document(self.problem, "no")
        if len(self.seen) >= self.silent_after:
            return NotNow("NOT_ACTIVE", "nobody is active", 0.1)
        request, digest, _, _ = decode_canonical(submission.request)
        self.seen.append(request.tx_id)
        others = [ref for ref in request.inputs if self.consumed.get(ref, request.tx_id) != request.tx_id]
        if others:
            conflicts = tuple([Conflict(ref, hash_of_tx_id(self.consumed[ref]), Usage.INPUT) for ref in others])
            return Refused("STATE_CONFLICT", request.tx_id, 1, conflicts)
        self.consumed.update(dict.fromkeys(request.inputs, request.tx_id))
        key = SigningKey(bytes(32))
        (receipt,) = make_receipts(
            [(request.tx_id, digest)], bytes(key.verify_key), lambda raw: key.sign(raw).signature
        )
        return Notarised(request.tx_id, digest, 0, 0, False, receipt)


def filled(path: Path, rows: list[Consumed]) -> Staging:
    staging = Staging(path)
    staging.fill(iter(rows), "test")
    return staging


def many(count: int) -> list[Consumed]:
    return [Consumed(tx_id(number), state(1_000_000 + 2 * number + more)) for number in range(count) for more in (0, 1)]


async def test_everything_is_submitted_once_and_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    """Goal: all of the source, grouped by transaction. Method: shuffled rows of 3,000 transactions, then again."""
    notary, told = Notary(), list[Progress]()
    rows = sorted(many(3_000), key=lambda row: row.state)
    staging = filled(tmp_path / "work", [*rows, *rows[:10], Consumed(tx_id(9_999_999), b"")])
    progress = await submit_staged(staging, notary, PARTY, told.append)
    assert progress == Progress(3_001, 6_000, 3_001, 0) == told[-1]
    assert sorted(notary.seen) == sorted({row.tx_id for row in rows} | {tx_id(9_999_999)})
    assert all(notary.consumed[row.state] == row.tx_id for row in rows)
    count = len(notary.seen)
    assert await submit_staged(staging, notary, PARTY, told.append) == progress
    assert len(notary.seen) == count


async def test_an_interrupted_import_goes_on(tmp_path: Path) -> None:
    """Goal: nothing left out, whatever stops it. Method: a notary that falls silent; the work file opened again."""
    notary, path = Notary(), tmp_path / "work"
    notary.silent_after = 2_100
    staging = filled(path, many(5_000))
    with pytest.raises(NotActive, match="run the import again"):
        await submit_staged(staging, notary, PARTY, lambda _: None)
    done = staging.progress().done
    assert 0 < done < 5_000
    staging.close()
    notary.silent_after = 10**9
    again = Staging(path)
    assert again.is_filled("test")
    assert (await submit_staged(again, notary, PARTY, lambda _: None)).done == 5_000
    assert len(notary.consumed) == 10_000


async def test_what_the_notary_knows_otherwise_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    """Goal: a contradiction is evidence, not an end. Method: one state that somebody else consumed here."""
    notary = Notary()
    rows = many(20)
    notary.consumed[rows[4].state] = tx_id(77)
    staging = filled(tmp_path / "work", rows)
    progress = await submit_staged(staging, notary, PARTY, lambda _: None)
    assert (progress.done, progress.refused) == (20, 1)
    ((refused, code, detail),) = staging.refusals()
    assert (refused, code) == (rows[4].tx_id, "STATE_CONFLICT")
    assert hash_of_tx_id(tx_id(77)).hex() in detail


async def test_an_importer_that_is_not_registered_is_told_at_once(tmp_path: Path) -> None:
    """Goal: no thousand refusals for one missing line. Method: a problem instead of an answer."""
    notary = Notary()
    notary.problem = Code.PARTY_UNKNOWN
    staging = filled(tmp_path / "work", many(5))
    with pytest.raises(ImportStopped, match="PARTY_UNKNOWN"):
        await submit_staged(staging, notary, PARTY, lambda _: None)
    assert staging.progress().done == 0


async def test_large_transactions_are_cut_into_calls_of_bounded_states(tmp_path: Path) -> None:
    """Goal: no call grows beyond what the API takes. Method: transactions of 9,000 states; count those of each call."""
    sizes: list[int] = []

    class Counting(Notary):
        async def submit_batch(self, submissions: Sequence[Submission]) -> list[Result]:
            sizes.append(sum(len(decode_canonical(one.request)[0].inputs) for one in submissions))
            return await super().submit_batch(submissions)

    rows = [Consumed(tx_id(n), state_ref(tx_id(n), at)) for n in range(6) for at in range(9_000)]
    await submit_staged(filled(tmp_path / "work", rows), Counting(), PARTY, lambda _: None)
    assert (max(sizes), sum(sizes)) == (18_000, 54_000)
    assert CALLS > 1


def test_a_source_that_no_notary_can_have_decided_is_refused_as_a_whole(tmp_path: Path) -> None:
    """Goal: a double spend of the source is found first. Method: one state with two consumers; nothing stays."""
    staging = Staging(tmp_path / "work")
    with pytest.raises(ConfigError, match="was consumed by"):
        staging.fill([*many(10), Consumed(tx_id(500), many(1)[0].state)], "test")
    assert not staging.is_filled("test")
    with pytest.raises(ConfigError, match="at most 9999"):
        staging.fill([Consumed(tx_id(1), state_ref(tx_id(2), at)) for at in range(10_000)], "test")
    with pytest.raises(ConfigError, match="ends in '/derived'"):
        staging.fill([*many(10), Consumed(b"d" * 24 + b"/derived", state_ref(tx_id(500), 1))], "test")
    staging.fill(many(1), "test")
    with pytest.raises(ConfigError, match="another source"):
        staging.is_filled("other")


def test_two_imports_cannot_share_a_work_file(tmp_path: Path) -> None:
    """Goal: progress has one writer. Method: open it twice; a file that is something else."""
    first = Staging(tmp_path / "work")
    with pytest.raises(ConfigError, match="in use"):
        Staging(tmp_path / "work")
    first.close()
    (tmp_path / "other").write_text("state,consumed_by\n")
    with pytest.raises(ConfigError, match="no work file"):
        Staging(tmp_path / "other")


def test_a_csv_file_in_either_form(tmp_path: Path) -> None:
    """Goal: our own columns and a notary's table. Method: the same states both ways, any case, columns in any order."""
    rows = many(3)
    own, table = tmp_path / "own.csv", tmp_path / "table.csv"
    lines = [f"{row.tx_id.hex()},{format_state_ref(row.state).upper()}" for row in rows]
    own.write_text("\n".join(["consumed_by,state", *lines, f"{tx_id(5).hex()},"]) + "\n")
    cells = [
        f"{row.state[:32].hex().upper()},{int.from_bytes(row.state[32:], 'big')},x,{row.tx_id.hex()}" for row in rows
    ]
    table.write_text(f"{CORDA.state_tx},{CORDA.state_index},note,{CORDA.consumed_by}\n" + "\n".join(cells) + "\n")
    assert list(read_csv(own, CORDA)) == [*rows, Consumed(tx_id(5), b"")]
    assert list(read_csv(table, CORDA)) == rows
    assert file_identity(own) != file_identity(table)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no column"),
        ("state,by\n", "no column"),
        ("state,consumed_by\nxyz,00\n", "line 2"),
        (f"state,consumed_by\n{'00' * 32}:0\n", "line 2: .*1 fields"),
        (f"state,consumed_by\n{'00' * 32}:4294967296,{'11' * 32}\n", "line 2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    """Goal: nobody searches a million lines. Method: one bad line, or header, at a time."""
    path = tmp_path / "states.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        list(read_csv(path, CORDA))


def test_column_names_are_names() -> None:
    """Goal: no SQL in an option. Method: three names, and what is none."""
    assert parse_columns("a, b,c") == ("a", "b", "c")
    for bad in ("a,b", "a,b,c;drop table", "a,b,"):
        with pytest.raises(ConfigError):
            parse_columns(bad)


def test_the_request_of_an_imported_transaction_never_changes(tmp_path: Path) -> None:
    """Goal: another run, another release sends the very same bytes. Method: compare with a digest that was kept."""
    staging = filled(tmp_path / "work", [Consumed(tx_id(1), state(at)) for at in (5, 3, 4)])
    (tx,) = staging.remaining(10)
    submission = make_submission(PARTY, tx)
    assert (submission.command_id, submission.submission_id) == (tx_id(1).hex(), tx_id(1).hex())
    assert (submission.user_id, submission.act_as) == ("notary-import", (PARTY.name,))
    assert decode_canonical(submission.request)[0].inputs == tuple(sorted(state(at) for at in (3, 4, 5)))
    assert sha256(submission.request + submission.signature).hexdigest() == KEPT


KEPT = "d99dd512d0e5b4167d05b61a7422c964f334da1d5ad9162ffc074c3ed41ccb70"
