"""A log of a short morning, with which the tables' page and the notebook show what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from nacl.signing import SigningKey

from pipeline.tables.write import open_writer
from replica.notary.records import SignOfLifeRecord, encode_record, request_record
from replica.notary.requests import Submission, TimeWindow, make_request, state_ref
from replica.notary.terms import Terms, encode_canonical
from tests.pipeline.judged import TOPIC
from tests.worlds.beginning import LEDGER, OFFICER, beginning, next_barrier

BANK_A, BANK_B, FUND = "O=Bank A,L=London,C=GB", "O=Bank B,L=Paris,C=FR", "O=Fund,L=Zürich,C=CH"
_KEYS = {party: SigningKey(sha256(party.encode()).digest()) for party in (BANK_A, BANK_B, FUND)}
_FIRST, _SECOND = b"\xb1" * 16, b"\xb2" * 16
_NINE_US = round(datetime(2026, 3, 2, 9, tzinfo=UTC).timestamp()) * 1_000_000


def lake_tx(name: str) -> bytes:
    """A transaction id."""
    return sha256(name.encode()).digest()


def lake_state(name: str) -> bytes:
    """A state."""
    return state_ref(lake_tx(name), 0)


def lake_values() -> list[bytes]:
    """Two states that two parties want, a state in the way of a reader, a retry and a repeat, a window that closed, a
    fail-over of 30 s, and a command whose second attempt succeeds."""
    return [
        *beginning(OFFICER, *[(party, bytes(key.verify_key)) for party, key in _KEYS.items()]),
        next_barrier(2, _FIRST),
        _asked(_FIRST, 0, 0, BANK_A, "sale", "sell-1", ["house"]),
        _asked(_FIRST, 1, 1, BANK_B, "other sale", "buy-1", ["house", "car"]),
        _asked(_FIRST, 2, 2, BANK_A, "sale", "sell-1", ["house"]),
        _asked(_FIRST, 3, 61, BANK_A, "sale", "sell-again", ["house"]),
        _asked(_FIRST, 4, 90, FUND, "valuation", "value-1", ["bond"], reading=["house"]),
        _asked(_FIRST, 5, 120, BANK_B, "late", "late-1", ["boat"], until_s=100),
        _asked(_FIRST, 6, 3_900, FUND, "coupon", "coupon-1", ["bond"]),
        next_barrier(3, _SECOND, "r2"),
        encode_record(SignOfLifeRecord(2, _SECOND, 0, _NINE_US)),
        _asked(_SECOND, 1, 3_930, BANK_B, "coupon too", "coupon-1", ["bond"]),
        _asked(_SECOND, 2, 3_960, BANK_B, "cheaper sale", "buy-1", ["car"]),
    ]


def lake(folder: Path) -> Path:
    """The tables of that log, made below a folder."""
    with open_writer(folder / "tables", folder / "index", TOPIC) as writer:
        writer.append(list(enumerate(lake_values())))
    return folder / "tables"


def _asked(
    activation: bytes,
    sequence: int,
    at_s: int,
    party: str,
    transaction: str,
    command: str,
    inputs: Sequence[str],
    *,
    reading: Sequence[str] = (),
    until_s: int | None = None,
) -> bytes:
    window = None if until_s is None else TimeWindow(None, _NINE_US + until_s * 1_000_000)
    states, read = ([lake_state(name) for name in names] for names in (inputs, reading))
    request = make_request(lake_tx(transaction), states, read, window, party, ledger_id=LEDGER)
    key, user = _KEYS[party], party[2:].partition(",")[0].lower().replace(" ", "-")
    canonical = encode_canonical(request, Terms(user, command, (party,)))
    submission = Submission(
        canonical, bytes(key.verify_key), key.sign(canonical).signature, user, command, (party,), f"s{sequence}"
    )
    stamp_us = _NINE_US + at_s * 1_000_000
    return encode_record(request_record(2, activation, sequence, stamp_us, submission, 10**9))
