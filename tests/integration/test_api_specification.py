"""Schemathesis against a running API: whatever it is sent, it serves what its own specification describes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import schemathesis
from schemathesis.checks import CHECKS, load_all_checks

from ledger_api.server.contract import OPENAPI
from ledger_api.server.submission_routes import ASYNCHRONOUS_BATCH, BATCH
from tests.drawing import drawn
from tests.tokens import AUDIENCE, Issuer
from tests.worlds.api_world import BANK, ApiWorld, StubParticipant

EXAMPLES, EXAMPLES_WITH_TOKENS = 30, 8  # for each call: less than a minute for all
load_all_checks()
# What a schema cannot say is refused with 400 all the same: inputs that are references too, a window that ends before
# it begins, texts that are too long in bytes.
EXCLUDED = [CHECKS.get_one("positive_data_acceptance")]
NEGATIVE = CHECKS.get_one("negative_data_rejection")  # not of a batch: each item is judged by itself
TOKENS = "tokens"


class Served(NamedTuple):
    """A running API, and what gets its callers in."""

    endpoint: str
    headers: dict[str, str]


@pytest.fixture(scope="module", params=[pytest.param("open", marks=pytest.mark.thorough), TOKENS])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running API on an event loop of its own: schemathesis calls it as any client would."""
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    worlds: list[ApiWorld] = []
    headers: dict[str, str] = {}

    async def serve(folder: Path) -> None:
        tokens = None
        if request.param == TOKENS:
            issuer = Issuer()
            tokens = {"keys_file": issuer.write(folder / "keys.json"), "audience": AUDIENCE}
            token = issuer.token(expires_at_s=time.time() + 3_600, notary={"act_as": [BANK.name], "admin": True})
            headers["Authorization"] = f"Bearer {token}"
        world = ApiWorld(StubParticipant(), tokens=tokens)
        async with world.serve():
            worlds.append(world)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(tmp_path_factory.mktemp("api")),))
    thread.start()
    assert started.wait(30)
    yield Served(worlds[0].endpoint, headers)
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()


def is_finite(case: Any) -> bool:
    """A stream has no end to wait for."""
    return str((case.query or {}).get("follow", "")).lower() != "true"


@pytest.mark.parametrize("modes", ["positive", pytest.param("negative", marks=pytest.mark.thorough)])
def test_every_call_keeps_to_the_specification(served: Served, modes: str) -> None:
    """Goal: no status, header or document that is not described, no crash. Method: generated calls, good and bad.

    Where tokens are asked for, a call that was answered is made again without and with a bad one: `ignored_auth`.
    """
    schema = schemathesis.openapi.from_url(served.endpoint + OPENAPI)
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if modes == "negative" and not (operation.body or operation.query or operation.path_parameters):
            continue
        excluded = [*EXCLUDED, NEGATIVE] if operation.path in (BATCH, ASYNCHRONOUS_BATCH) else EXCLUDED

        def call(case: Any, excluded: list[Any] = excluded) -> None:
            case.call_and_validate(
                base_url=served.endpoint, headers=served.headers, excluded_checks=excluded, timeout=20
            )

        strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode(modes)).filter(is_finite)
        drawn(strategy, EXAMPLES_WITH_TOKENS if served.headers else EXAMPLES, call)
        count += 1
    assert count >= 5


@pytest.mark.thorough
@pytest.mark.parametrize("served", [TOKENS], indirect=True)
def test_whoever_has_no_token_is_told_so(served: Served) -> None:
    """Goal: 401, as described, whatever else is wrong with a call. Method: generated calls with bad tokens and none."""
    schema = schemathesis.openapi.from_url(served.endpoint + OPENAPI)
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if not operation.definition.raw["security"][0]:
            continue

        def call(case: Any) -> None:
            answer = case.call(base_url=served.endpoint, timeout=20)
            assert answer.status_code == 401
            assert answer.json()["code"] in ("TOKEN_MISSING", "TOKEN_INVALID")
            assert answer.headers["www-authenticate"][0].startswith("Bearer")
            case.validate_response(answer, excluded_checks=EXCLUDED)

        drawn(operation.as_strategy().filter(is_finite), EXAMPLES_WITH_TOKENS, call)
        count += 1
    assert count >= 5
