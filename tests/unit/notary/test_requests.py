"""Limits and text forms of requests: each rule, on both sides of its edge."""

from __future__ import annotations

import pytest

from replica.notary.errors import BadRequest
from replica.notary.requests import (
    INDEX_MAX,
    TIME_MAX_US,
    Request,
    TimeWindow,
    check_command,
    check_request,
    check_submission_id,
    format_state_ref,
    make_request,
    parse_state_ref,
    parse_tx_id,
    state_ref,
)
from tests.worlds.beginning import LEDGER
from tests.worlds.notary_logs import PARTY, state, tx

HEX = "ab" * 32


@pytest.mark.parametrize("index", [0, 1, 9, 10, 255, 256, INDEX_MAX])
def test_a_state_survives_its_text(index: int) -> None:
    """Goal: text and bytes agree. Method: small, two-digit and largest indexes."""
    ref = state_ref(tx(1), index)
    assert ref == tx(1) + index.to_bytes(4, "big")
    assert format_state_ref(ref) == f"{tx(1).hex()}:{index}"
    assert parse_state_ref(format_state_ref(ref)) == ref
    assert parse_state_ref(format_state_ref(ref).upper()) == ref


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEX,
        f"{HEX}:",
        f"{HEX}:-1",
        f"{HEX}:+1",
        f"{HEX}:1.0",
        f"{HEX}: 1",
        f"{HEX}:1_0",
        f"{HEX}:٣",
        f"{HEX}:{INDEX_MAX + 1}",
        f"{HEX}:00000000001",
        f"{HEX[:-2]}:1",
        f"{HEX}ab:1",
        f"{'ab ' * 2}{'ab' * 29}:1",
        f"{HEX[:-1]}g:1",
        f"{HEX}:1:1",
    ],
)
def test_other_texts_are_no_state(text: str) -> None:
    """Goal: bad input is refused here, not later. Method: wrong lengths, digits, signs, spaces."""
    with pytest.raises(BadRequest):
        parse_state_ref(text)


@pytest.mark.parametrize("text", ["", HEX[:-2], HEX + "ab", HEX[:-1] + "g", "ab " * 21 + "a", " " * 64, HEX[:-1] + "é"])
def test_other_texts_are_no_transaction_id(text: str) -> None:
    """Goal: 64 hexadecimal digits and nothing else. Method: wrong lengths, digits, spaces."""
    assert parse_tx_id(HEX) == bytes.fromhex(HEX)
    with pytest.raises(BadRequest):
        parse_tx_id(text)


@pytest.mark.parametrize(("tx_id", "index"), [(b"a" * 31, 0), (b"a" * 33, 0), (b"a" * 32, -1), (b"a" * 32, 2**32)])
def test_a_state_has_32_bytes_and_an_unsigned_index(tx_id: bytes, index: int) -> None:
    """Goal: bounds of the parts. Method: one step outside each."""
    with pytest.raises(BadRequest):
        state_ref(tx_id, index)


def test_parts_come_in_any_order_and_leave_in_one() -> None:
    """Goal: one request, one form. Method: shuffled inputs and references."""
    a, b, c, d = sorted(state(n) for n in range(4))
    request = make_request(tx(1), [b, a], [d, c], None, PARTY, ledger_id=LEDGER)
    assert (request.inputs, request.references, request.state_count) == ((a, b), (c, d), 4)


@pytest.mark.parametrize(
    "request_",
    [
        Request(LEDGER, b"t" * 31, (), (), None, PARTY),
        Request(LEDGER, tx(1), (b"s" * 35,), (), None, PARTY),
        Request(LEDGER, tx(1), (), (b"s" * 37,), None, PARTY),
        Request(LEDGER, tx(1), (state(1), state(1)), (), None, PARTY),
        Request(LEDGER, tx(1), (), (state(1), state(1)), None, PARTY),
        Request(LEDGER, tx(1), tuple(sorted((state(1), state(2)), reverse=True)), (), None, PARTY),
        Request(LEDGER, tx(1), (state(1),), (state(1),), None, PARTY),
        Request(LEDGER, tx(1), (), (), TimeWindow(None, None), PARTY),
        Request(LEDGER, tx(1), (), (), TimeWindow(-1, None), PARTY),
        Request(LEDGER, tx(1), (), (), TimeWindow(None, TIME_MAX_US + 1), PARTY),
        Request(LEDGER, tx(1), (), (), TimeWindow(5, 5), PARTY),
        Request(LEDGER, tx(1), (), (), TimeWindow(6, 5), PARTY),
        Request(LEDGER, tx(1), (), (), None, ""),
        Request(LEDGER, tx(1), (), (), None, "p" * 513),
        Request(LEDGER, tx(1), (), (), None, "é" * 257),
        Request(LEDGER, tx(1), (), (), None, "a\tb"),
        Request(LEDGER, tx(1), (), (), None, "a\ud800"),
    ],
)
def test_each_rule_of_a_request_is_enforced(request_: Request) -> None:
    """Goal: what passes has exactly one encoding. Method: break one rule at a time."""
    with pytest.raises(BadRequest):
        check_request(request_)


@pytest.mark.parametrize("window", [None, TimeWindow(0, None), TimeWindow(None, TIME_MAX_US), TimeWindow(4, 5)])
def test_the_edges_of_the_rules_pass(window: TimeWindow | None) -> None:
    """Goal: limits are not narrower than they say. Method: each edge."""
    check_request(Request(LEDGER, tx(1), (), (), window, "p" * 512))
    check_request(Request(LEDGER, tx(1), (bytes(35) + b"\x01",), (), window, "é" * 256))
    check_command("u" * 255, "c", tuple(f"{n:0512}" for n in range(16)))
    check_submission_id("é" * 127)


@pytest.mark.parametrize(
    "command",
    [
        ("", "c", ("p",)),
        ("u", "", ("p",)),
        ("u", "c", ()),
        ("u", "c", ("p",) * 2),
        ("u", "c", tuple(map(str, range(17)))),
        ("u", "c", ("",)),
        ("u", "c", ("p" * 513,)),
        ("u" * 256, "c", ("p",)),
        ("u", "é" * 128, ("p",)),
        ("u", "c\x00", ("p",)),
        ("u", "c", ("p\u2066",)),
    ],
)
def test_each_rule_of_a_command_is_enforced(command: tuple[str, str, tuple[str, ...]]) -> None:
    """Goal: whatever is logged fits the database and can be shown. Method: break one rule at a time."""
    with pytest.raises(BadRequest):
        check_command(*command)


@pytest.mark.parametrize("submission_id", ["", "\udfff", "é" * 128])
def test_each_rule_of_a_submission_id_is_enforced(submission_id: str) -> None:
    """Goal: as for commands. Method: break one rule at a time."""
    with pytest.raises(BadRequest):
        check_submission_id(submission_id)
