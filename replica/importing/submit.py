"""Submits the staged transactions through the notary's API, like any client, and records the results.

An imported transaction is an ordinary request: its id, the states it consumed as inputs, no reference and no window,
signed by the importing party. Every id in it is derived from the transaction's id. So every run sends the same command
and the same request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from ledger_api.client import Party, Result
from replica.importing.staging import ImportedTx, Progress, Staging
from replica.notary.answers import Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.errors import NotActive, NotaryError
from replica.notary.requests import Submission

USER_ID = "notary-import"
BATCH = 250  # transactions in one call
CALLS = 4  # under way at a time; a new one is not sent before all of them are noted
BATCH_STATES_MAX = 20_000  # of a call, so that its body stays far below what the API takes


class BatchClient(Protocol):
    """The part of a client that an import needs."""

    async def submit_batch(self, submissions: Sequence[Submission]) -> list[Result]:
        """Results in order; see NotaryClient."""


class ImportStopped(NotaryError):
    """The notary refuses this import as it is set up, with this code: a person must change something first."""


def make_submission(party: Party, tx: ImportedTx) -> Submission:
    """The request that stands for an imported transaction; always the same for the same party and transaction."""
    text = tx.tx_id.hex()
    return party.sign(tx.tx_id, tx.states, command_id=text, user_id=USER_ID, submission_id=text)


async def submit_staged(
    staging: Staging, client: BatchClient, party: Party, on_progress: Callable[[Progress], None]
) -> Progress:
    """Submit what is left, until all is done. May be cancelled and run again at any point.

    Raises NotActive when the notary has no final answer in the client's time: run it again; ImportStopped when it
    refuses the importing party itself.
    """
    while taken := staging.remaining(BATCH * CALLS):
        results = await asyncio.gather(*(_submit(client, party, call) for call in _calls(taken)))
        staging.note(taken, {tx_id: why for refused in results for tx_id, why in refused.items()})
        on_progress(staging.progress())
    return staging.progress()


async def _submit(client: BatchClient, party: Party, txs: list[ImportedTx]) -> dict[bytes, tuple[str, str]]:
    """Submit one call's transactions; code and detail of those that were refused."""
    refused: dict[bytes, tuple[str, str]] = {}
    results = await client.submit_batch([make_submission(party, tx) for tx in txs])
    for tx, result in zip(txs, results, strict=True):
        match result:
            case Notarised():
                pass
            case Refused():
                refused[tx.tx_id] = (result.code, _why(result))
            case NotNow():
                raise NotActive(
                    f"no final answer in time ({result.code}: {result.detail}); run the import again",
                    Code.OUTCOME_UNKNOWN,
                )
            case problem:
                raise ImportStopped(problem.detail, Code.__members__.get(problem.code, Code.ANSWER_UNREADABLE))
    return refused


def _calls(txs: list[ImportedTx]) -> list[list[ImportedTx]]:
    """Cut into calls of bounded transactions and states."""
    calls: list[list[ImportedTx]] = [[]]
    states = 0
    for tx in txs:
        states += len(tx.states)
        if len(calls[-1]) == BATCH or (calls[-1] and states > BATCH_STATES_MAX):
            calls.append([])
            states = len(tx.states)
        calls[-1].append(tx)
    return calls


def _why(refused: Refused) -> str:
    if not refused.conflicts:
        return Code[refused.code].title
    count, first = len(refused.conflicts), refused.conflicts[0].consumed_by_hash
    return f"{count} states are consumed by others, the first by one with hash {first.hex()}"
