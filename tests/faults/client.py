"""A client process: keeps a notary busy with all kinds of submissions, and writes down every answer.

Run as `python -m tests.faults.client` with a `ClientOrder` as a line of JSON on standard input. Soon after that input
ends, which it also does when whoever started the client is gone, the client ends with a complete history. It repeats
attempts without a definite answer, with the same ids, until `give_up_s` is over. The client library does that for
applications. The number of attempts that it gave up is written last.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from hashlib import sha256
from pathlib import Path
from random import Random
from time import monotonic_ns
from typing import IO

import msgspec
import uvloop
from nacl.signing import SigningKey

from ledger_api.client import Party, Result, RetryPolicy
from replica.checker.history import Event, HistoryWriter, Ok, Refused
from replica.local.recording import RecordingClient
from replica.notary.answers import Notarised, NotNow
from replica.notary.requests import Submission
from replica.notary.terms import decode_canonical

ATTEMPT_MAX_S = 3.0
INPUTS_MAX = 4
REMEMBERED = 2_000  # states and submissions that later ones spend again, or repeat
CONTENDED_NS = 50_000_000  # for so long the clients of a number have the same states
CONTENDED_AT_ONCE = 12


class ClientOrder(msgspec.Struct, kw_only=True, frozen=True):
    """What to do. `replica`: the replica at the endpoint, if that is not HAProxy; its answers then name it."""

    endpoint: str
    process: str
    history: str
    parties: list[tuple[str, bytes]]  # name, seed of the key
    ledger_id: bytes
    singles: int = 24  # workers that submit one at a time
    batches: int = 4  # workers that submit `batch` at a time
    batch: int = 20
    give_up_s: float = 30.0  # the client library's own default
    connections_max: int = 100
    pause_ms: int = 0  # of a worker between an answer and its next submission
    fresh_only: bool = False  # nothing twice: no double spend, no repetition
    contended: int = 0  # clients with the same number, other than 0, spend the same states at the same time
    seed: int = 1
    replica: str | None = None


class NamingWriter(HistoryWriter):
    """Writes down who answered, where that is known."""

    def __init__(self, stream: IO[bytes], replica: str | None) -> None:
        super().__init__(stream)
        self._replica = replica

    def write(self, event: Event) -> None:
        """Append one event."""
        if self._replica is not None and isinstance(event, Ok | Refused):
            event = msgspec.structs.replace(event, replica=self._replica)
        super().write(event)


class Mix:
    """Chooses what is submitted next: fresh states, states and whole submissions that were sent before."""

    def __init__(self, parties: list[Party], random: Random, *, fresh_only: bool = False, contended: int = 0) -> None:
        self._parties = parties
        self._fresh_only = fresh_only
        self._contended = contended
        self._random = random
        self._states: deque[bytes] = deque(maxlen=REMEMBERED)
        self._sent: deque[Submission] = deque(maxlen=REMEMBERED)

    def next(self) -> Submission:
        """One submission."""
        chance = 1.0 if self._fresh_only else self._random.random()
        if self._contended:
            return self._contend(chance)
        if self._sent and chance < 0.15:
            return self._again(self._random.choice(self._sent), chance)
        party = self._random.choice(self._parties)
        states = {self._fresh() for _ in range(self._random.randint(1, INPUTS_MAX))}
        if self._states and chance < 0.30:
            states.add(self._random.choice(self._states))  # a double spend, perhaps of a state that is in flight
        submission = party.sign(self._random.randbytes(32), sorted(states))
        self._states.extend(states)
        self._sent.append(submission)
        return submission

    def _again(self, submission: Submission, chance: float) -> Submission:
        """An earlier one: the same command, the same transaction under a new command, or its id with other inputs."""
        if chance < 0.05:
            return submission
        request = decode_canonical(submission.request).request
        inputs = list(request.inputs) if chance < 0.11 else [self._fresh()]
        (party,) = [party for party in self._parties if party.name == request.party]
        return party.sign(request.tx_id, inputs, command_id=self._random.randbytes(16).hex())

    def _contend(self, chance: float) -> Submission:
        """Some of the few states that all clients of a number spend now, whichever process they run in; or the newest
        submission again. Nothing joins states of different moments, or all operations would be one partition."""
        if self._sent and chance < 0.1:
            return self._sent[-1]
        moment = f"{self._contended} {monotonic_ns() // CONTENDED_NS}"
        numbers = self._random.sample(range(CONTENDED_AT_ONCE), self._random.randint(1, INPUTS_MAX))
        states = [sha256(f"{moment} {number}".encode()).digest() + bytes(4) for number in numbers]
        self._sent.append(self._random.choice(self._parties).sign(self._random.randbytes(32), sorted(states)))
        return self._sent[-1]

    def _fresh(self) -> bytes:
        return self._random.randbytes(32) + b"\0\0\0\0"


async def run(order: ClientOrder) -> None:
    """Submit until standard input ends."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(sys.stdin)
        stop.set()

    loop.add_reader(sys.stdin, end)
    random = Random(order.seed)
    parties = [Party(name, order.ledger_id, SigningKey(seed)) for name, seed in order.parties]
    mix = Mix(parties, random, fresh_only=order.fresh_only, contended=order.contended)
    policy = RetryPolicy(deadline_s=order.give_up_s, attempt_max_s=ATTEMPT_MAX_S)
    results: Counter[type] = Counter()
    with Path(order.history).open("wb") as stream:
        writer = NamingWriter(stream, order.replica)
        async with (
            RecordingClient(
                order.endpoint, writer, order.process, policy, connections_max=order.connections_max
            ) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(order.singles):
                group.create_task(_submit(client, mix, order.pause_ms / 1_000, stop, results))
            for _ in range(order.batches):
                group.create_task(_submit_batches(client, mix, order.batch, stop, results))
    given_up_path(Path(order.history)).write_text(str(results[NotNow]))


async def _submit(
    client: RecordingClient, mix: Mix, pause_s: float, stop: asyncio.Event, results: Counter[type]
) -> None:
    while not stop.is_set():
        submission = mix.next()
        answer = await client.submit(submission)
        results[type(answer)] += 1
        if isinstance(answer, Notarised) and answer.log_offset % 50 == 0:
            await client.look_up(answer.tx_id)
        if pause_s:
            await asyncio.sleep(pause_s)


async def _submit_batches(
    client: RecordingClient, mix: Mix, count: int, stop: asyncio.Event, results: Counter[type]
) -> None:
    while not stop.is_set():
        answers: list[Result] = await client.submit_batch([mix.next() for _ in range(count)])
        if len(answers) != count:
            raise RuntimeError(f"{len(answers)} answers for {count} submissions")
        results.update(map(type, answers))


def given_up_path(history: Path) -> Path:
    """Where a client that has ended left how many submissions it gave up."""
    return history.with_suffix(".given-up")


def main() -> int:
    """Read the order and carry it out."""
    uvloop.run(run(msgspec.json.decode(sys.stdin.buffer.readline(), type=ClientOrder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
