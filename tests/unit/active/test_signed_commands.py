"""Requests whose signature covers their command: what an active logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from ledger_api.client import Deduplication, Party
from replica.link.interface import SubmitOptions
from replica.notary.answers import Notarised
from replica.notary.records import RequestRecord, decode_record
from replica.notary.requests import Submission
from replica.notary.terms import FOR_EVER_US
from tests.simulation.virtual import run_virtually
from tests.worlds.beginning import LEDGER
from tests.worlds.core_world import PARTY, Replica, World, begun_topic, state

BANK = Party(PARTY, LEDGER)


def play(story: Callable[[World, Replica], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with World(topic=begun_topic((PARTY, BANK.public_key))) as world:
            replica = await world.replica()
            await replica.until_active()
            await story(world, replica)

    run_virtually(scenario())


def signed(tx: int, period: Deduplication | None = None, command_id: str = "c") -> Submission:
    tx_id = tx.to_bytes(32, "big")
    return BANK.sign(tx_id, [state(tx)], command_id=command_id, user_id="u", deduplication=period)


@pytest.mark.parametrize(
    ("period", "options", "period_us"),
    [
        (None, SubmitOptions(), 604_800_000_000),
        (Deduplication(60.0), SubmitOptions(deduplication_s=60.0), 60_000_000),
        (Deduplication(0.0000025), SubmitOptions(deduplication_s=0.000002), 2),
        (Deduplication(after_offset=0), SubmitOptions(deduplication_after=0), FOR_EVER_US),
        (Deduplication(after_offset=1), SubmitOptions(deduplication_after=1), FOR_EVER_US),
    ],
    ids=["none", "a minute", "two microseconds", "the first offset", "an offset"],
)
def test_its_record_has_what_was_signed(period: Deduplication | None, options: SubmitOptions, period_us: int) -> None:
    """Goal: no record of ours is void. Method: each kind of period; every record is read by the void rule."""

    async def story(world: World, replica: Replica) -> None:
        await replica.submit(replace(signed(8, command_id="first"), submission_id="s"))
        await asyncio.sleep(2.0)  # published: ledger offset 1
        (answer,) = await replica.submit(signed(1, period), options=options)
        assert isinstance(answer, Notarised)
        assert answer.record_offset is not None
        ((_, value),) = world.shared.topic.records(answer.record_offset, 1)
        record = decode_record(value, 2)
        assert isinstance(record, RequestRecord)
        assert record.deduplication_us == period_us

    play(story)
