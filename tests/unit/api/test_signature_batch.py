"""Signatures of single calls are checked together, and each caller gets its own result only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from ledger_api.server import signature_batch
from ledger_api.server.signature_batch import SignatureBatcher
from ledger_api.server.validation import Validator
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.requests import Submission
from replica.telemetry.counts import ApiCounts
from tests.worlds.api_world import make_submission
from tests.worlds.beginning import LEDGER


class CountingValidator(Validator):
    """Notes how many signatures it was asked for at a time."""

    def __init__(self) -> None:
        self.counts = ApiCounts()
        self.sizes: list[int] = []
        super().__init__(self.counts, 100, lambda: LEDGER)

    def signature_errors(self, submissions: Sequence[Submission]) -> list[BadRequest | None]:
        self.sizes.append(len(submissions))
        return super().signature_errors(submissions)


@pytest.fixture
def validator() -> CountingValidator:
    """A validator that knows one party."""
    return CountingValidator()


def forged() -> Submission:
    return msgspec.structs.replace(make_submission(), signature=make_submission().signature)


async def verdicts(batcher: SignatureBatcher, submissions: Sequence[Submission]) -> list[str]:
    """The answer to each of the callers, all in the same turn."""
    told = await asyncio.gather(*map(batcher.check, submissions), return_exceptions=True)
    return [error.code.name if isinstance(error, BadRequest) else str(error) for error in told]


@pytest.mark.parametrize("gathers", [True, False])
async def test_each_caller_hears_of_his_own(
    validator: CountingValidator, monkeypatch: pytest.MonkeyPatch, gathers: bool
) -> None:
    """Goal: nobody is let in, or turned away, for another one's signature. Method: a forgery in each place, on a
    machine that gains by checking together, and on one that does not."""
    monkeypatch.setattr(signature_batch, "checks_together", lambda: gathers)
    batcher = SignatureBatcher(validator)
    for place in range(10):
        asked = [forged() if at == place else make_submission() for at in range(10)]
        expected = [Code.SIGNATURE_INVALID.name if at == place else "None" for at in range(10)]
        assert await verdicts(batcher, asked) == expected
    assert validator.sizes == ([10] * 10 if gathers else [1] * 100)
    assert (validator.counts.signatures_good, validator.counts.signatures_bad) == (90, 10)


async def test_a_turn_is_bounded_and_a_caller_may_be_gone(
    validator: CountingValidator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a flood does not hold the event loop, and a client that leaves holds nobody up. Method: more calls in a
    turn than are checked together; one of them is given up meanwhile."""
    monkeypatch.setattr(signature_batch, "checks_together", lambda: True)
    batcher = SignatureBatcher(validator)
    count = 2 * signature_batch.BATCH_MAX + 5
    calls = [asyncio.create_task(batcher.check(make_submission())) for _ in range(count)]
    await asyncio.sleep(0)
    calls[-1].cancel()
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert told[:-1] == [None] * (count - 1)
    assert isinstance(told[-1], asyncio.CancelledError)
    assert validator.sizes == [signature_batch.BATCH_MAX] * 2 + [5]
