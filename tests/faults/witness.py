"""A client in the test's own process: spends states, and later tries to spend each of them once more."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledger_api.client import Party, RetryPolicy
from replica.checker.history import HistoryWriter
from replica.local.cluster import LocalCluster
from replica.local.recording import RecordingClient
from replica.notary.answers import Notarised, Refused
from replica.notary.codes import Code
from replica.notary.requests import format_state_ref, state_ref
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.under_load import end_of_log
from tests.promises import promised

TOGETHER = 50  # submissions in one call
_numbers = itertools.count(1)


class Witness:
    """Remembers the states it has spent. The answer to a second spend is the most direct test of an index."""

    def __init__(self, client: RecordingClient, party: Party) -> None:
        self._client = client
        self._party = party
        self._spent: list[bytes] = []

    async def spend(self, count: int, inputs: int = 1) -> None:
        """Spend fresh states in `count` transactions of `inputs` inputs. Raises AssertionError unless all succeed."""
        together = max(1, min(TOGETHER, 20_000 // inputs))
        for _ in range(0, count, together):
            fresh = [[state_ref(os.urandom(32), 0) for _ in range(inputs)] for _ in range(together)]
            answers = await self._client.submit_batch([self._party.sign(os.urandom(32), states) for states in fresh])
            assert all(isinstance(answer, Notarised) for answer in answers), answers
            self._spent += [states[0] for states in fresh]

    async def collide(self, times: int, inputs: int) -> str:
        """Spend states in one transaction, and try to spend all of them again several times; returns one of them.

        Raises AssertionError unless each of the others is refused, with every state as a conflict.
        """
        states = [state_ref(os.urandom(32), 0) for _ in range(inputs)]
        first = await self._client.submit(self._party.sign(os.urandom(32), states))
        assert isinstance(first, Notarised), first
        for _ in range(times):
            answer = await self._client.submit(self._party.sign(os.urandom(32), states))
            promised(not isinstance(answer, Notarised), f"spent twice: {answer}")
            assert isinstance(answer, Refused), answer
            assert len(answer.conflicts) == inputs
        return format_state_ref(states[0])

    async def spend_again(self) -> int:
        """Try to spend each of them again; returns how many were tried. Raises AssertionError unless all are refused,
        as conflicts."""
        for at in range(0, len(self._spent), TOGETHER):
            states = self._spent[at : at + TOGETHER]
            answers = await self._client.submit_batch([self._party.sign(os.urandom(32), [state]) for state in states])
            spent_twice = [answer for answer in answers if isinstance(answer, Notarised)]
            promised(not spent_twice, f"spent twice: {spent_twice}")
            codes = {answer.code if isinstance(answer, Refused) else str(answer) for answer in answers}
            assert codes == {Code.STATE_CONFLICT.name}, codes
        return len(self._spent)


@asynccontextmanager
async def witness(cluster: LocalCluster, scenario: Scenario, give_up_s: float = 90.0) -> AsyncIterator[Witness]:
    """A witness through HAProxy; its history is audited with the scenario's load, so open it inside that block."""
    name = f"witness-{next(_numbers)}"
    path = cluster.folder / f"history-{name}.jsonl"
    with path.open("wb") as stream:
        policy = RetryPolicy(deadline_s=give_up_s)
        async with RecordingClient(cluster.endpoint, HistoryWriter(stream), name, policy) as client:
            yield Witness(client, cluster.parties[0])
    scenario.add_history(path)


@asynccontextmanager
async def only_witness(cluster: LocalCluster, scenario: Scenario) -> AsyncIterator[Witness]:
    """A witness, and no clients but the scenario's own; then `notary check` over all their answers."""
    await wait_for_return(cluster)
    first_offset = await end_of_log(cluster)
    async with witness(cluster, scenario) as spender:
        yield spender
    await scenario.audit(cluster, first_offset)
