"""Questions about one transaction or one state, over real HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from ledger_api.server.authorisation import Caller
from ledger_api.server.logs import LogLimits
from ledger_api.server.rendering import Renderer
from replica.notary.answers import NotNow, StateStatus
from replica.notary.codes import Code
from replica.notary.receipts import ReceiptDocument, receipt_from_document, verify_receipt
from replica.notary.requests import format_state_ref
from replica.notary.rules import Conflict, Usage, hash_of_tx_id
from replica.store.interface import NOTARISED, Completion
from replica.telemetry.counts import ApiCounts
from tests.worlds.api_world import ACTIVE, NOTARY_KEY, PASSIVE, ApiWorld, StubParticipant, make_submission, notarise

WINNER, LOSER, OTHER = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
STATE, UNTOUCHED = b"\x0a" * 32 + bytes(4), b"\x0b" * 32 + bytes(4)


def completion(log_offset: int, tx_id: bytes, party: str, conflict: bytes = b"") -> Completion:
    detail = msgspec.msgpack.encode((Conflict(conflict, hash_of_tx_id(WINNER), Usage.INPUT),)) if conflict else b""
    outcome = Code.STATE_CONFLICT.name if conflict else NOTARISED
    first = None if conflict else 41
    return Completion(
        log_offset, tx_id, "alice", "c", (party,), "s", tx_id, tx_id, outcome, first, log_offset * 1_000_000, detail
    )


def make_ledger() -> StubParticipant:
    """Two completions before the state was consumed at log offset 41, then its history among others."""
    ledger = StubParticipant()
    rows = [
        completion(39, OTHER, "O=B"),
        completion(40, OTHER, "O=B"),
        completion(41, WINNER, "O=A"),
        completion(42, LOSER, "O=B", STATE),
        completion(43, LOSER, "O=B", UNTOUCHED),
        completion(44, WINNER, "O=A"),
    ]
    ledger.database.completions = list(enumerate(rows, 1))
    ledger.standing = msgspec.structs.replace(ACTIVE, ledger_end=len(rows))
    ledger.consumed[STATE] = StateStatus(STATE, WINNER, 41)
    answer = notarise(make_submission())
    ledger.found[WINNER] = msgspec.structs.replace(answer, tx_id=WINNER)  # type: ignore[type-var]
    return ledger


async def get(world: ApiWorld, path: str) -> tuple[int, Any]:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    raw = await world.exchange(request.encode(), close=False)
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def test_a_transaction_s_status_says_where_when_and_for_whom(tmp_path: Path) -> None:
    """Goal: one call returns all that is known. Method: a notarised one, an unknown one, one not published, pruned."""
    ledger = make_ledger()
    async with ApiWorld(ledger).serve() as world:
        status, known = await get(world, f"/v1/transactions/{WINNER.hex()}/status")
        assert (status, known["log_offset"], known["offset"]) == (200, 41, 3)
        assert known["recorded_at"] == "1970-01-01T00:00:41.000000Z"
        assert known["requested_by"] == {
            "user_id": "alice",
            "command_id": "c",
            "act_as": ["O=A"],
            "submission_id": "s",
        }
        status, unknown = await get(world, f"/v1/transactions/{OTHER.hex()}/status")
        assert (status, unknown["code"]) == (404, "TX_NOT_FOUND")
        ledger.standing = msgspec.structs.replace(ledger.standing, ledger_end=2)
        _, early = await get(world, f"/v1/transactions/{WINNER.hex()}/status")
        assert (early["log_offset"], early["offset"], early["requested_by"]) == (41, None, None)
        ledger.database.pruned_to = 4
        ledger.standing = msgspec.structs.replace(ledger.standing, ledger_end=6, pruned_to=4)
        _, pruned = await get(world, f"/v1/transactions/{WINNER.hex()}/status")
        assert (pruned["log_offset"], pruned["offset"], pruned["requested_by"]) == (41, None, None)


async def test_a_receipt_comes_alone_and_verifies(tmp_path: Path) -> None:
    """Goal: a receipt for callers that need only that. Method: fetch, verify."""
    ledger = make_ledger()
    answer = notarise(make_submission())
    ledger.found[answer.tx_id] = answer  # type: ignore[union-attr,index]
    async with ApiWorld(ledger).serve() as world:
        status, document = await get(world, f"/v1/transactions/{answer.tx_id.hex()}/receipt")  # type: ignore[union-attr]
        assert status == 200
        receipt = receipt_from_document(msgspec.convert(document, ReceiptDocument))
        assert verify_receipt(receipt, bytes(NOTARY_KEY.verify_key))
        assert (await get(world, f"/v1/transactions/{OTHER.hex()}/receipt"))[0] == 404


async def test_a_state_s_status_and_history(tmp_path: Path) -> None:
    """Goal: what consumed it, and who tried after that. Method: a consumed state and another, from an offset."""
    ledger = make_ledger()
    async with ApiWorld(ledger).serve() as world:
        state, untouched = format_state_ref(STATE), format_state_ref(UNTOUCHED)
        assert await get(world, f"/v1/states/{state}") == (
            200,
            {
                "state": state,
                "consumed": True,
                "consumed_by_hash": hash_of_tx_id(WINNER).hex(),
                "consumed_by": WINNER.hex(),
                "log_offset": 41,
            },
        )
        status, unspent = await get(world, f"/v1/states/{untouched.replace(':', '%3A')}")
        assert (status, unspent["consumed"], unspent["consumed_by_hash"]) == (200, False, None)
        _, history = await get(world, f"/v1/states/{state}/attempts")
        assert [(a["offset"], a["code"]) for a in history["attempts"]] == [
            (3, NOTARISED),
            (4, "STATE_CONFLICT"),
            (6, NOTARISED),
        ]
        assert (history["next_after"], history["ledger_end"]) == (6, 6)
        _, rest = await get(world, f"/v1/states/{state}/attempts?after=4")
        assert [a["offset"] for a in rest["attempts"]] == [6]
        _, none = await get(world, f"/v1/states/{untouched}/attempts")
        assert (none["attempts"], none["next_after"]) == ([], 6)


async def test_who_may_not_see_is_told_the_hash_only(tmp_path: Path) -> None:
    """Goal: a stranger learns that a state is spent, and no id. Method: callers for either party."""
    ledger = make_ledger()
    async with ApiWorld(ledger, caller=Caller("alice", frozenset({"O=B"}))).serve() as world:
        _, state = await get(world, f"/v1/states/{format_state_ref(STATE)}")
        assert (state["consumed_by"], state["consumed_by_hash"]) == (None, hash_of_tx_id(WINNER).hex())
        _, history = await get(world, f"/v1/states/{format_state_ref(STATE)}/attempts")
        assert [a["offset"] for a in history["attempts"]] == [4]
        _, status = await get(world, f"/v1/transactions/{WINNER.hex()}/status")
        assert (status["offset"], status["requested_by"]) == (3, None)
    async with ApiWorld(ledger, caller=Caller("bob", frozenset({"O=A"}))).serve() as world:
        _, state = await get(world, f"/v1/states/{format_state_ref(STATE)}")
        assert state["consumed_by"] == WINNER.hex()


async def test_nothing_is_denied_by_a_replica_that_is_not_active(tmp_path: Path) -> None:
    """Goal: only the active answers "not consumed". Method: a passive, and a core that could not ask the lock."""
    ledger = make_ledger()
    async with ApiWorld(ledger).serve() as world:
        ledger.consumed[STATE] = NotNow("NOT_ACTIVE", "the lock did not answer", 0.2)  # type: ignore[assignment]
        for path in (f"/v1/states/{format_state_ref(STATE)}", f"/v1/states/{format_state_ref(STATE)}/attempts"):
            status, problem = await get(world, path)
            assert (status, problem["code"], problem["retry"]) == (503, "NOT_ACTIVE", "same")
        ledger.standing = PASSIVE
        assert (await get(world, f"/v1/transactions/{WINNER.hex()}/status"))[0] == 503
        for path in ("/v1/states/xyz", "/v1/transactions/12/status", "/v1/states/" + format_state_ref(STATE) + "?x=1"):
            status, problem = await get(world, path)
            assert status == 400
        status, problem = await get(world, f"/v1/transactions/{WINNER.hex()}/nothing")
        assert (status, problem["code"]) == (404, "ROUTE_NOT_FOUND")


async def test_problems_are_counted() -> None:
    """Goal: operators see refusals of reading calls as well. Method: the renderer's own count."""
    counts = ApiCounts()
    Renderer(counts, LogLimits(10), lambda: PASSIVE).reply(NotNow("NOT_ACTIVE", "x", 0.2), "r")
    assert counts.answers == {"NOT_ACTIVE": 1}
