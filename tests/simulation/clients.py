"""Clients of a balancer: they submit, double-spend, repeat, look up, and keep their answers as a history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ha.lock.interface import ReleaseNote
from ha.lock.notes import encode_note
from replica.checker.history import (
    ConflictText,
    Event,
    Invoke,
    Ok,
    Refused,
    Unknown,
    invoke_submission,
)
from replica.link.interface import SubmitOptions
from replica.link.memory import MemoryLink
from replica.notary.answers import Accepted, Answer, Notarised, NotNow
from replica.notary.answers import Refused as CoreRefused
from replica.notary.codes import Code
from replica.notary.receipts import receipt_to_document
from replica.notary.records import RECORD_MAX_BYTES
from replica.notary.requests import Request, Submission, TimeWindow, format_state_ref, make_request, state_ref
from replica.notary.terms import Terms, encode_canonical, period_us_of
from tests.simulation.doubles.log import LATE_S
from tests.simulation.plan import START_US, Damage, Hostile, Operation, Transaction
from tests.worlds.beginning import LEDGER

if TYPE_CHECKING:
    from tests.simulation.world import World

PARTY = "O=Sim, L=London, C=GB"
CLIENT_KEY, _SIGNATURE = bytes(32), bytes(64)  # front ends checked them before the core sees a submission
AFTER_HEALING_MAX = 3  # operations of a client
STRANGER = "stranger"  # the user whose submissions are damaged
_NOBODY = NotNow("NOT_ACTIVE", "no replica is up", 0.1)


class Balancer:
    """Sends clients to the replica whose health check passed last; learns of changes late."""

    def __init__(self, world: World, check_s: float) -> None:
        self._world = world
        self._check_s = check_s
        self.up: list[str] = []  # as far as it knows

    async def run(self) -> None:
        """Check for ever. A replica that does not answer counts as down after one more check."""
        silent: set[str] = set()
        while True:
            up = []
            for replica in self._world.replicas:
                core = replica.core
                if core is not None and core.process.stopped:
                    if replica.name in self.up and replica.name not in silent:
                        up.append(replica.name)
                    silent.add(replica.name)
                else:
                    silent.discard(replica.name)
                    if replica.claims_to_lead:
                        up.append(replica.name)
                        self._world.claims_changed(replica)
            self.up = up
            await asyncio.sleep(self._check_s)

    def pick(self, client: Client) -> str:
        """Where a request goes: empty when no replica is up."""
        skies = self._world.skies
        if skies.strikes_with(0.2 * skies.client_share):
            name = skies.random.choice(self._world.replicas).name
            skies.struck("wrong_replica", name)
            return name
        if client.sticks_to in self.up and len(self.up) == 1:
            return client.sticks_to
        return skies.random.choice(self.up) if self.up else ""  # two, while a deposed one has not noticed that


class Content:
    """The requests of a plan, made once."""

    def __init__(self, transactions: tuple[Transaction, ...]) -> None:
        self._transactions = transactions
        self._made: dict[int, Request] = {}

    def request(self, number: int) -> Request:
        """A request."""
        if number not in self._made:
            planned = self._transactions[number]
            window = None
            if planned.from_s is not None or planned.until_s is not None:
                window = TimeWindow(_wall_us(planned.from_s), _wall_us(planned.until_s))
            request = make_request(
                sha256(b"transaction %d" % planned.id).digest(),
                [_state(number) for number in planned.inputs],
                [_state(number) for number in planned.references],
                window,
                PARTY,
                ledger_id=LEDGER,
            )
            self._made[number] = request
        return self._made[number]


def _state(number: int) -> bytes:
    return state_ref(sha256(b"issue %d" % (number // 3)).digest(), number % 3)


def _wall_us(at_s: float | None) -> int | None:
    return None if at_s is None else START_US + int(at_s * 1e6)


class Client:
    """One application: does its operations one after the other, each until its answer is final."""

    def __init__(self, number: int, operations: tuple[Operation, ...], world: World) -> None:
        self.name = f"c{number}"
        self.sticks_to = ""
        self.done = 0
        self._operations = operations
        self._world = world
        self._attempts = 0

    async def run(self) -> None:
        """Do all operations; once all is healed only a few more, so that the run ends."""
        left = AFTER_HEALING_MAX
        for operation in self._operations:
            left -= self._world.healed
            if left < 0:
                return
            await asyncio.sleep(operation.think_s)
            await self._do(operation)
            if operation.verify:
                for name in self._world.balancer.up:
                    await self._attempt(replace(operation, look_up=True), [0], 1, name)
            self.done += 1

    async def _do(self, operation: Operation) -> None:
        missing = list(range(len(operation.transactions)))
        attempt = 0
        while missing:
            attempt += 1
            if self._world.skies.fate(self.name, ("request_repeated",)):
                asked = self._attempt(operation, missing, attempt), self._attempt(operation, missing, attempt)
                answers, _ = await asyncio.gather(*asked)
            else:
                answers = await self._attempt(operation, missing, attempt)
            missing = [place for place, answer in zip(missing, answers, strict=True) if not _is_final(answer)]
            if attempt == operation.attempts_max:
                return  # gave up; the outcome stays unknown to it
            told_s = max([a.retry_after_s for a in answers if isinstance(a, NotNow)], default=0.0)
            own_s = min(0.05 * 2.0 ** min(attempt, 5), 0.5)
            if missing:
                await asyncio.sleep(min(max(own_s, told_s), 2.0) * (1 + 0.5 * self._world.skies.random.random()))

    async def _attempt(self, operation: Operation, places: list[int], attempt: int, name: str = "") -> list[Answer]:
        """Send once, to `name` or the balancer's choice; request and answer go into the history."""
        world = self._world
        world.attempts += len(places)
        numbers = range(self._attempts, self._attempts + len(places))
        self._attempts += len(places)
        now_ns = world.now_ns()
        asked: list[Submission] | bytes
        if operation.look_up:
            request = world.content.request(operation.transactions[0])
            asked = request.tx_id
            world.note(Invoke(self.name, numbers[0], now_ns, request.tx_id.hex()))
        else:
            asked = []
            for place, number in zip(places, numbers, strict=True):
                request, submission = self._submission(operation, place, attempt)
                asked.append(submission)
                world.note(invoke_submission(self.name, number, now_ns, request, submission))
        name = name or world.balancer.pick(self)
        world.story.tell(self.name, "ask", ops=f"{numbers[0]}+{len(places)}", to=name or "nobody", operation=operation)
        asynchronous = operation.asynchronous and attempt == 1  # later attempts wait for the outcome
        options = SubmitOptions(asynchronous, operation.deduplication_s, operation.deduplication_after)
        if isinstance(asked, list):
            world.options.update((one.submission_id, options) for one in asked)
        answers = await self._exchange(name, asked, operation.answer_max_s, len(places), options)
        for number, answer in zip(numbers, answers, strict=True):
            self._told(number, answer, name)
            if isinstance(answer, CoreRefused) and answer.bound is not None:
                world.bounds_told.append((options, answer.bound))
        return answers

    async def _exchange(
        self, name: str, asked: list[Submission] | bytes, answer_max_s: float, count: int, options: SubmitOptions
    ) -> list[Answer]:
        world, skies = self._world, self._world.skies
        unknown: list[Answer] = [NotNow("OUTCOME_UNKNOWN", "no answer", 0.05)] * count
        if not name:
            return [_NOBODY] * count
        what = skies.fate(name, ("request_lost", "request_late"))
        await asyncio.sleep(skies.random.uniform(0.0002, 0.003) + (LATE_S if what == "request_late" else 0.0))
        if what == "request_lost":
            await asyncio.sleep(answer_max_s)
            return unknown
        core = world.replica(name).core
        if core is None:
            return unknown
        try:
            async with asyncio.timeout(answer_max_s):
                if isinstance(asked, bytes):
                    answers = [await core.link.look_up(asked)]
                else:
                    answers = await core.link.submit(asked, options)
                    world.accepted |= {
                        (one.command_id, one.submission_id)
                        for one, answer in zip(asked, answers, strict=True)
                        if isinstance(answer, Accepted)
                    }
        except TimeoutError:
            skies.struck("reply_too_late", name)
            return unknown
        late_s = 0.0
        match skies.fate(name, ("reply_lost", "reply_late"), skies.client_share, _either):
            case "reply_lost":
                return unknown
            case "reply_late":
                late_s = 1.5 * skies.random.random()
        await asyncio.sleep(skies.random.uniform(0.0002, 0.003) + late_s)
        self.sticks_to = name
        return answers

    def _submission(self, operation: Operation, place: int, attempt: int) -> tuple[Request, Submission]:
        request = self._world.content.request(operation.transactions[place])
        command = operation.command + place
        submission_id = f"s{command}"
        period_us = None if operation.deduplication_s is None else period_us_of(operation.deduplication_s)
        terms = Terms("sim", f"c{command}", (PARTY,), period_us, operation.deduplication_after)
        raw = encode_canonical(request, terms)
        if operation.new_submission_id:
            submission_id = f"s{command}-{self.name}-{self.done}-{attempt}"
        return request, Submission(raw, CLIENT_KEY, _SIGNATURE, "sim", f"c{command}", (PARTY,), submission_id)

    def _told(self, number: int, answer: Answer, name: str) -> None:
        world, now_ns = self._world, self._world.now_ns()
        who, epoch = world.who_told(answer, name, (self.name, number))
        code = answer.code if not isinstance(answer, Notarised | Accepted) else type(answer).__name__.upper()
        world.story.tell(self.name, "told", op=number, code=code, by=who, offset=getattr(answer, "record_offset", None))
        if world.plan.all_serve:
            who = epoch = None  # anybody may answer, in any epoch
        world.note(_event(answer, self.name, number, now_ns, who, epoch))


def _either(random: Random, ways: Sequence[str]) -> str:
    return ways[random.random() >= 0.5]


def _is_final(answer: Answer) -> bool:
    """Whether a client stops there. It may have named a ledger offset that nobody ever writes."""
    if isinstance(answer, NotNow):
        return answer.code == Code.OFFSET_AFTER_END.name
    return not isinstance(answer, Accepted)


class Stranger:
    """Sends what no front end would let through: each must be refused, and must not affect other callers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent = 0

    async def run(self) -> None:
        """Send all of the plan, each item at its time, to replicas that lead."""
        for hostile in sorted(self._world.plan.hostile, key=lambda one: one.at_s):
            await asyncio.sleep(max(0.0, hostile.at_s - self._world.loop.time()))
            await self.send(hostile)

    async def send(self, hostile: Hostile) -> bool:
        """Send one; whether the leading replica answered it."""
        world, answered = self._world, True
        text = _notes(world.replicas[0].name, world.replicas[-1].name).get(hostile.damage)
        if text is not None:
            world.skies.struck(f"stranger_{hostile.damage}", world.replicas[0].name)
            world.primary.tell_all(text)
            return True
        for replica in world.replicas:
            if replica.core is not None and replica.claims_to_lead:
                if hostile.damage is not Damage.PERIOD:
                    world.skies.struck(f"stranger_{hostile.damage}", replica.name)
                answered = await self._submit(replica.core.link, hostile) and answered
        return answered

    async def _submit(self, link: MemoryLink, hostile: Hostile) -> bool:
        world, number = self._world, self._sent
        self._sent += 1
        request = make_request(sha256(b"hostile %d" % number).digest(), [], [], None, PARTY, ledger_id=LEDGER)
        submission = _damaged(number, hostile.damage, request)
        if hostile.damage in _RECORDED:
            world.note(invoke_submission(STRANGER, number, world.now_ns(), request, submission))
        options = (
            SubmitOptions(deduplication_s=hostile.deduplication_s)
            if hostile.damage is Damage.PERIOD
            else SubmitOptions()
        )
        try:
            async with asyncio.timeout(1.0):
                (answer,) = await link.submit([submission], options)
        except TimeoutError:
            return False
        except Exception as error:
            world.blame(f"the core failed on what a stranger sent: {error!r}")
            return True
        if isinstance(answer, Notarised | Accepted):
            honoured = f"a deduplication period of {hostile.deduplication_s:g} s was honoured"
            world.blame(honoured if hostile.damage is Damage.PERIOD else f"{hostile.damage} was taken")
        return True


_RECORDED = (Damage.REQUEST_UNREADABLE, Damage.RECORD_TOO_LARGE)
"""They may be recorded in the log."""


def _damaged(number: int, damage: Damage, request: Request) -> Submission:
    """A submission that no front end lets through."""
    command = f"h{number}"
    raw = encode_canonical(request, Terms(STRANGER, command, (PARTY,)))
    match damage:
        case Damage.REQUEST_CUT:
            raw = raw[:40]
        case Damage.REQUEST_UNREADABLE:
            raw = b"NOTARY" + raw[6:]
        case Damage.RECORD_TOO_LARGE:
            raw += bytes(RECORD_MAX_BYTES)
    return Submission(raw, CLIENT_KEY, _SIGNATURE, STRANGER, command, (PARTY,), command)


def _notes(by: str, to: str) -> dict[Damage, str]:
    return {Damage.NOTE_NESTED: "[" * 7_990, Damage.NOTE_FORGED: encode_note(ReleaseNote(by, to))}


def _event(answer: Answer, process: str, op: int, at_ns: int, who: str | None, epoch: int | None) -> Event:
    if isinstance(answer, Accepted):
        return Unknown(process, op, at_ns, "ACCEPTED")
    if isinstance(answer, NotNow):
        return Unknown(process, op, at_ns, answer.code)
    if isinstance(answer, Notarised):
        return Ok(
            process,
            op,
            at_ns,
            answer.content_digest.hex(),
            answer.log_offset,
            answer.record_offset,
            answer.duplicate,
            receipt_to_document(answer.receipt),
            epoch,
            who,
        )
    conflicts = tuple(
        [
            ConflictText(format_state_ref(c.state), c.consumed_by_hash.hex(), c.usage.value)  # type: ignore[arg-type]
            for c in answer.conflicts
        ]
    )
    return Refused(process, op, at_ns, answer.code, answer.record_offset, conflicts, answer.judged_us, epoch, who)
