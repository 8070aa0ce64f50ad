"""Schemathesis against a running API: what it serves is what its own specification says, whatever it is sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS, load_all_checks

from ledger_api.server.api import ASYNCHRONOUS_BATCH, BATCH
from ledger_api.server.contract import OPENAPI
from tests.api_world import ApiWorld, StubParticipant

EXAMPLES = 30  # for each call: less than a minute for all
load_all_checks()
# What a schema cannot say is refused with 400 all the same: inputs that are references too, a window that ends before
# it begins, texts that are too long in bytes. Tokens are off here, so no call needs one.
EXCLUDED = [CHECKS.get_one(name) for name in ("positive_data_acceptance", "ignored_auth")]
NEGATIVE = CHECKS.get_one("negative_data_rejection")  # not of a batch: each item is judged by itself


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running API on an event loop of its own: schemathesis calls it as any client would."""
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    worlds: list[ApiWorld] = []

    async def serve(folder: Path) -> None:
        world = ApiWorld(folder, StubParticipant())
        async with world.serve():
            worlds.append(world)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(tmp_path_factory.mktemp("api")),))
    thread.start()
    assert started.wait(30)
    yield worlds[0].endpoint
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()


def is_finite(case: Any) -> bool:
    """A stream has no end to wait for."""
    return str((case.query or {}).get("follow", "")).lower() != "true"


@pytest.mark.parametrize("modes", ["positive", "negative"])
def test_every_call_keeps_to_the_specification(endpoint: str, modes: str) -> None:
    """Goal: no status, header or document that is not described, no crash. Method: generated calls, good and bad."""
    schema = schemathesis.openapi.from_url(endpoint + OPENAPI)
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if modes == "negative" and not (operation.body or operation.query or operation.path_parameters):
            continue
        excluded = [*EXCLUDED, NEGATIVE] if operation.path in (BATCH, ASYNCHRONOUS_BATCH) else EXCLUDED
        mode = schemathesis.GenerationMode(modes)
        check_calls(operation.as_strategy(generation_mode=mode).filter(is_finite), endpoint, excluded)
        count += 1
    assert count >= 5


def check_calls(strategy: Any, endpoint: str, excluded: list[Any]) -> None:
    """Make the calls of a strategy, and check each answer."""

    @given(case=strategy)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def call(case: Any) -> None:
        case.call_and_validate(base_url=endpoint, excluded_checks=excluded, timeout=20)

    call()
