"""A small notary that never lies, in one random process: good histories, logs and completions for checking the checker.

Verdicts come from the product's rules, so that the reference judge is checked against them on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from random import Random

import msgspec
from nacl.signing import SigningKey

from replica.checker.check import Scope, check, receipt_verifier
from replica.checker.completions import CompletionRow
from replica.checker.findings import Report
from replica.checker.history import (
    ConflictText,
    Event,
    Invoke,
    Ok,
    Refused,
    Unknown,
    invoke_submission,
)
from replica.notary.canonical import summarise
from replica.notary.counted import CountedRequest
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.receipts import make_receipts, receipt_to_document
from replica.notary.records import encode_record, request_record
from replica.notary.requests import Request, Submission, TimeWindow, format_state_ref
from replica.notary.rules import Outcome, Verdict
from tests.worlds.notary_logs import FOR_EVER, LogMaker, begun, judge_knowing, request_of, submission_of

NOTARY = SigningKey(b"\x21" * 32)
NOTARY_KEY = bytes(NOTARY.verify_key)
KNOWN, STRANGER = SigningKey(b"\x22" * 32), SigningKey(b"\x23" * 32)
CODES = {
    Outcome.DEDUPLICATED: "DEDUPLICATED",
    Outcome.COMMAND_ID_REUSED: "COMMAND_ID_REUSED",
    Outcome.NOTARISED: "NOTARISED",
    Outcome.TX_ID_REUSED: "TX_ID_REUSED",
    Outcome.CONFLICT: "STATE_CONFLICT",
    Outcome.TIME_WINDOW_CLOSED: "TIME_WINDOW_CLOSED",
}


@dataclass
class World:
    """What a run leaves behind."""

    history: list[Event]
    values: list[bytes]
    completions: list[CompletionRow]
    scope: Scope = field(default_factory=Scope)

    def check(self) -> Report:
        """The checker's findings on it."""
        return check(
            iter(self.history),
            enumerate(self.values),
            completions=self.completions,
            verify=receipt_verifier(NOTARY_KEY),
            scope=self.scope,
        )


@dataclass
class _Attempt:
    """A submission on its way."""

    process: str
    op: int
    request: Request
    submission: Submission
    activation_id: bytes
    epoch: int
    offset: int | None = None


def receipt_of(tx_id: bytes, digest: bytes, key: SigningKey = NOTARY) -> object:
    """A receipt document of a batch of two."""
    pairs = [(tx_id, digest), (sha256(tx_id).digest(), digest)]
    return receipt_to_document(make_receipts(pairs, bytes(key.verify_key), lambda m: key.sign(m).signature)[0])


class _Notary:
    def __init__(self, seed: int, ids: int, states: int, windows: bool, unlogged: bool, repeats: bool) -> None:
        self.random = Random(seed)
        self.ids, self.states, self.windows, self.unlogged = ids, states, windows, unlogged
        self.repeats = repeats
        self.now_ns = 1_000
        self.history: list[Event] = []
        self.log = begun()
        self.completions: list[CompletionRow] = []
        self.position = read_records(begin("topic"), self.log.log).position
        self.index: dict[bytes, bytes] = {}
        self.acceptances: dict[bytes, bytes] = {}
        self.decided: dict[int, tuple[CountedRequest, Verdict]] = {}
        self.ops = dict.fromkeys("abcd", 0)
        self.sent: list[_Attempt] = []
        self.accepted: dict[bytes, tuple[Request, Submission, int]] = {}
        self.epoch = 1
        self.stamp_us = 100

    # ---- the log ----

    def _append(self, value: bytes) -> int:
        """Append and judge at once; completions are published at once as well."""
        offset = self.log.raw(value)
        reading = read_records(self.position, [(offset, value)])
        self.position = reading.position
        for entry in reading.counted:
            assert isinstance(entry, CountedRequest)
            verdicts, added, accepted = judge_knowing(self.index, [entry], self.acceptances)
            self.index |= added
            self.acceptances |= accepted
            self.decided[offset] = (entry, verdicts[0])
            self._complete_request(entry, verdicts[0])
        return offset

    def _complete_request(self, entry: CountedRequest, verdict: Verdict) -> None:
        terms = entry.terms
        detail = msgspec.msgpack.encode(verdict.conflicts) if verdict.conflicts else b""
        at = verdict.notarised_offset
        self.completions.append(
            CompletionRow(
                len(self.completions) + 1,
                entry.offset,
                entry.change_id,
                terms.user_id,
                terms.command_id,
                terms.act_as,
                entry.record.submission_id,
                entry.request.tx_id,
                entry.content_digest,
                CODES[verdict.outcome],
                at,
                entry.judged_us,
                detail,
            )
        )
        if at is not None:
            record = entry.record
            ids = (terms.user_id, terms.command_id, terms.act_as, record.submission_id)
            submission = Submission(record.request, record.public_key, record.signature, *ids)
            self.accepted[entry.change_id] = (entry.request, submission, at)

    def _activate(self) -> None:
        self.epoch += 1
        made = LogMaker()
        made.barrier(self.epoch)
        self.log.activation_id, self.log.sequence = made.activation_id, 0
        self._append(made.values[0])

    # ---- clients ----

    def _tick(self) -> int:
        self.now_ns += self.random.randint(1, 10)
        return self.now_ns

    def _name(self) -> tuple[str, int]:
        process = self.random.choice("abcd")
        self.ops[process] += 1
        return process, self.ops[process]

    def send(self) -> None:
        """A fresh command, or an earlier transaction under a fresh command."""
        process, op = self._name()
        random = self.random
        states = random.sample(range(self.states), random.randint(0, 3))
        cut = random.randint(0, len(states))
        soon_us = self.stamp_us + 5
        windows = [None, None, None, TimeWindow(None, soon_us), TimeWindow(soon_us, None)]
        window = random.choice(windows) if self.windows else None
        request = request_of(random.randrange(self.ids), tuple(states[:cut]), tuple(states[cut:]), window)
        if self.decided and random.random() < 0.3:
            request = random.choice(list(self.decided.values()))[0].request
        submission = submission_of(request, f"command-{process}-{op}")
        self._sent(process, op, request, submission)

    def send_again(self) -> None:
        """An accepted command that reaches the log once more, or its id with another transaction: the log judges it."""
        if self.accepted:
            request, submission, _ = self.random.choice(list(self.accepted.values()))
            if self.random.random() < 0.3:
                request = request_of(self.random.randrange(self.ids))
                submission = submission_of(request, submission.command_id)
            self._sent(*self._name(), request, submission)

    def _sent(self, process: str, op: int, request: Request, submission: Submission) -> None:
        self.history.append(invoke_submission(process, op, self._tick(), request, submission))
        self.sent.append(_Attempt(process, op, request, submission, self.log.activation_id, self.epoch))

    def _record(self, attempt: _Attempt, sequence: int) -> bytes:
        fields = (attempt.activation_id, sequence, max(0, self.stamp_us), attempt.submission)
        return encode_record(request_record(2, *fields, self.random.choice([0, 20, FOR_EVER, FOR_EVER])))

    def log_one(self) -> None:
        """A record of the activation that took the submission; void if that is over."""
        waiting = [attempt for attempt in self.sent if attempt.offset is None]
        if not waiting:
            return
        attempt = self.random.choice(waiting)
        self.stamp_us += self.random.randint(-2, 6)
        self.log.sequence += 1
        attempt.offset = self._append(self._record(attempt, self.log.sequence))

    def answer(self) -> None:
        """Answer a client with what the log decided; a client whose record is void never gets a definite answer."""
        logged = [attempt for attempt in self.sent if attempt.offset is not None]
        if not logged:
            return
        attempt = self.random.choice(logged)
        self.sent.remove(attempt)
        decided = self.decided.get(attempt.offset if attempt.offset is not None else -1)
        if decided is None or self.random.random() < 0.1:
            self.history.append(Unknown(attempt.process, attempt.op, self._tick(), "OUTCOME_UNKNOWN"))
        else:
            self.history.append(self._definite(attempt, *decided))

    def _definite(self, attempt: _Attempt, entry: CountedRequest, verdict: Verdict) -> Event:
        at = (attempt.process, attempt.op, self._tick())
        who = (attempt.epoch, f"R{attempt.epoch}")
        if verdict.notarised_offset is not None:
            receipt = receipt_of(entry.request.tx_id, entry.content_digest)
            digest = entry.content_digest.hex()
            again = verdict.outcome is Outcome.DEDUPLICATED
            return Ok(*at, digest, verdict.notarised_offset, entry.offset, again, receipt, *who)  # type: ignore[arg-type]
        conflicts = tuple(
            ConflictText(format_state_ref(c.state), c.consumed_by_hash.hex(), c.usage.value) for c in verdict.conflicts
        )
        judged_us = entry.judged_us if verdict.outcome is Outcome.TIME_WINDOW_CLOSED else None
        return Refused(*at, CODES[verdict.outcome], entry.offset, conflicts, judged_us, *who)

    def give_up(self) -> None:
        """A client loses patience with a submission that may still be logged."""
        if self.sent:
            attempt = self.random.choice(self.sent)
            self.history.append(Unknown(attempt.process, attempt.op, self._tick(), "TIMEOUT"))
            if attempt.offset is None:
                self.log_one()
            self.sent.remove(attempt)

    def resubmit(self) -> None:
        """An accepted command again: the recorded answer, without a record of its own."""
        if self.accepted:
            request, submission, offset = self.random.choice(list(self.accepted.values()))
            process, op = self._name()
            self.history.append(invoke_submission(process, op, self._tick(), request, submission))
            digest = summarise(submission.request)[1]
            receipt = receipt_of(request.tx_id, digest)
            who = (self.epoch, f"R{self.epoch}")
            self.history.append(
                Ok(process, op, self._tick(), digest.hex(), offset, None, True, receipt, *who)  # type: ignore[arg-type]
            )

    def refused_at_the_door(self) -> None:
        """A signature that does not hold, a stranger's, a caller without the right: refused, and not logged."""
        process, op = self._name()
        code = self.random.choice(["SIGNATURE_INVALID", "PARTY_UNKNOWN", "PERMISSION_DENIED"])
        request = request_of(self.random.randrange(self.ids))
        submission = submission_of(request, f"command-{process}-{op}")
        if code != "SIGNATURE_INVALID":
            key = STRANGER if code == "PARTY_UNKNOWN" else KNOWN
            submission = msgspec.structs.replace(
                submission, public_key=bytes(key.verify_key), signature=key.sign(submission.request).signature
            )
        self.history.append(invoke_submission(process, op, self._tick(), request, submission))
        self.history.append(Refused(process, op, self._tick(), code))

    def reuse(self) -> None:
        """A command id of another transaction, which was accepted or is on its way: refused, and not logged."""
        known = [submission for _, submission, _ in self.accepted.values()]
        known += [attempt.submission for attempt in self.sent if attempt.activation_id == self.log.activation_id]
        if known:
            earlier = self.random.choice(known)
            process, op = self._name()
            request = request_of(self.ids + self.now_ns)
            submission = submission_of(request, earlier.command_id)
            self.history.append(invoke_submission(process, op, self._tick(), request, submission))
            self.history.append(Refused(process, op, self._tick(), "COMMAND_ID_REUSED"))

    def look_up(self) -> None:
        """Ask for a transaction, which is answered at once."""
        tx_id = request_of(self.random.randrange(self.ids)).tx_id
        process, op = self._name()
        self.history.append(Invoke(process, op, self._tick(), tx_id.hex()))
        known = self.index.get(b"t" + tx_id)
        who = (self.epoch, f"R{self.epoch}")
        event: Event
        if known is None:
            event = Refused(process, op, self._tick(), "TX_NOT_FOUND", None, (), None, *who)
        else:
            offset = int.from_bytes(known[32:], "big")
            event = Ok(process, op, self._tick(), known[:32].hex(), offset, None, False, None, *who)
        self.history.append(event)

    def fail_over(self) -> None:
        """The next activation; what the old one had on its way can only become void."""
        self._activate()
        for attempt in self.sent:
            if attempt.offset is None and self.random.random() < 0.5:
                attempt.offset = self._append(self._record(attempt, 10_000))
        lost = [attempt for attempt in self.sent if attempt.offset is None]
        for attempt in lost:
            self.sent.remove(attempt)
            self.history.append(Unknown(attempt.process, attempt.op, self._tick(), "OUTCOME_UNKNOWN"))

    def run(self, steps: int) -> World:
        """Take random steps, then answer what is left."""
        actions = [self.send] * 8 + [self.log_one] * 8 + [self.answer] * 8
        actions += [self.resubmit, self.look_up, self.look_up, self.give_up] + [self.send_again] * (4 * self.repeats)
        for step in range(steps):
            if step % 60 == 59:
                self.fail_over()
            self.random.choice(actions)()
        while any(attempt.offset is not None for attempt in self.sent):
            self.answer()
        for _ in range(6 if self.unlogged else 0):
            self.reuse()
            self.refused_at_the_door()
        return World(self.history, self.log.values, self.completions)


def good_world(
    seed: int,
    steps: int = 250,
    ids: int = 61,
    states: int = 40,
    windows: bool = True,
    unlogged: bool = True,
    repeats: bool = True,
) -> World:
    """A run in which everything is right, over a number of transaction ids and states.

    `unlogged`: at its end there are refusals that no record stands for. `repeats`: accepted commands reach the log
    again.
    """
    return _Notary(seed, ids, states, windows, unlogged, repeats).run(steps)
