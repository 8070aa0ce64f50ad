"""Which route a request has: submissions by their path as it came, all others by aiohttp's router."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from tests.worlds.api_world import ApiWorld, StubParticipant

TX_ID, STATE = "ab" * 32, "cd" * 32 + ":7"
LOOK_UP, STATUS, STATE_PATH, ATTEMPTS = (
    "/v1/transactions/{tx_id}",
    "/v1/transactions/{tx_id}/status",
    "/v1/states/{state}",
    "/v1/states/{state}/attempts",
)


@pytest.mark.parametrize(
    ("raw_path", "path", "argument"),
    [
        ("/v1/submissions", "/v1/submissions", ""),
        ("/v1/submissions?x=1", "/v1/submissions", ""),
        ("/v1/submissions/batch/async", "/v1/submissions/batch/async", ""),
        ("/v1/completions?after=3&follow=true", "/v1/completions", ""),
        (f"/v1/transactions/{TX_ID}", LOOK_UP, TX_ID),
        (f"/v1/transactions/{TX_ID}?x=1", LOOK_UP, TX_ID),
        (f"/v1/transactions/{TX_ID}/status", STATUS, TX_ID),
        ("/v1/transactions/", LOOK_UP, ""),
        ("/v1/transactions//status", STATUS, ""),
        ("/v1/transactions/{x}", LOOK_UP, "{x}"),
        (f"/v1/states/{STATE}", STATE_PATH, STATE),
        (f"/v1/states/{STATE.replace(':', '%3A')}", STATE_PATH, STATE),
        (f"/v1/states/{STATE}/attempts", ATTEMPTS, STATE),
        ("/v1/states/a%2Fattempts", STATE_PATH, "a/attempts"),
        ("/v1/states/a%253A", STATE_PATH, "a%3A"),
    ],
)
async def test_a_path_has_its_route(tmp_path: Path, raw_path: str, path: str, argument: str) -> None:
    """Goal: each path finds its route, and the call gets what the path names. Method: paths of every form."""
    table = ApiWorld(StubParticipant()).api.routes
    for method in ("GET", "POST", "DELETE"):  # whether the method fits is the API's to say
        found = await table.find(make_mocked_request(method, raw_path))
        assert found is not None
        assert (found.route.path, found.argument) == (path, argument)


@pytest.mark.parametrize(
    "raw_path",
    [
        *(
            "/",
            "/v1",
            "/v1/",
            "/v1/nothing",
            "/v1/submissions/",
            "/v1/transactions",
            "/v1/states",
            "//v1/x",
            "/v2/notary",
        ),
        f"/v1/transactions/{TX_ID}/",
        f"/v1/transactions/{TX_ID}/nothing",
        f"/v1/transactions/{TX_ID}/status/x",
    ],
)
async def test_a_path_without_a_route(tmp_path: Path, raw_path: str) -> None:
    """Goal: nothing is answered under a path that is not described. Method: paths that only look like a route's."""
    table = ApiWorld(StubParticipant()).api.routes
    assert await table.find(make_mocked_request("GET", raw_path)) is None
