"""The demo's pure parts: reading requests, judging answers, measuring an outage."""

from __future__ import annotations

import gzip
from hashlib import sha256
from pathlib import Path

import pytest

from replica.cli.demo.kill import outage
from replica.cli.demo.phases import conflicts_with
from replica.cli.demo.requests import DemoRequest, find_requests, parse_requests
from replica.local.process import ServerFailed
from replica.notary.answers import NotNow, Refused
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.requests import state_ref
from replica.notary.rules import Conflict, Usage

A, B, C = bytes([1] * 32), bytes([2] * 32), bytes([3] * 32)


def _line(tx_id: bytes, *states: tuple[bytes, int], more: str = "") -> bytes:
    inputs = ", ".join(f'"{of.hex()}:{index}"' for of, index in states)
    return f'{{"tx_id": "{tx_id.hex()}", "inputs": [{inputs}]{more}}}\n'.encode()


def test_unknown_fields_are_ignored_and_inputs_come_in_canonical_order() -> None:
    """Goal: files of others can be read. Method: a line with more fields than we know."""
    found = parse_requests([_line(A, (C, 1), (B, 0), more=', "outputs": 2, "block": "x"')], "test")
    assert found.requests == (DemoRequest(A, (state_ref(B, 0), state_ref(C, 1))),)


def test_repeated_ids_and_inputs_are_left_out_and_counted() -> None:
    """Goal: each request that is kept must be notarised. Method: repeat an id, and an input under another id."""
    found = parse_requests([_line(A, (B, 0)), _line(A), _line(C, (B, 0)), b"\n", _line(B)], "test")
    assert [request.tx_id for request in found.requests] == [A, B]
    assert found.left_out == 2


@pytest.mark.parametrize(
    "line",
    [b"not json\n", b'{"tx_id": "ab", "inputs": []}\n', _line(A, (B, 0), (B, 0)), b'{"tx_id": "' + b"a" * 64 + b'"}\n'],
)
def test_a_line_that_is_no_request_is_named(line: bytes) -> None:
    """Goal: a bad file is reported before anything starts. Method: bad JSON, id, inputs, and a missing field."""
    with pytest.raises(ConfigError, match="file, line 2"):
        parse_requests([_line(C), line], "file")


def test_a_file_may_be_compressed_or_not(tmp_path: Path) -> None:
    """Goal: both forms read alike, whatever the name. Method: write both."""
    plain, compressed = tmp_path / "a", tmp_path / "b"
    plain.write_bytes(_line(A))
    compressed.write_bytes(gzip.compress(_line(A)))
    assert find_requests(plain).requests == find_requests(compressed).requests


def test_the_excerpt_that_we_ship_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the demo runs without any other file. Method: read it from a folder without shared data."""
    monkeypatch.chdir(tmp_path)
    found = find_requests(None)
    assert (len(found.requests), found.left_out) == (200, 0)
    assert any(not request.inputs for request in found.requests)
    assert any(len(request.inputs) > 1 for request in found.requests)


def test_only_a_conflict_that_names_the_right_winner_for_every_input_is_right() -> None:
    """Goal: the demo would notice a wrong conflict. Method: each thing that can be wrong, once."""
    winner = DemoRequest(A, (state_ref(B, 0), state_ref(C, 1)))

    def conflict(*states: bytes, by: bytes = A, usage: Usage = Usage.INPUT) -> Refused:
        named = tuple(Conflict(state, sha256(by).digest(), usage) for state in states)
        return Refused(Code.STATE_CONFLICT.name, B, 7, named)

    assert conflicts_with(winner, conflict(*winner.inputs))
    assert not conflicts_with(winner, conflict(winner.inputs[0]))
    assert not conflicts_with(winner, conflict(*winner.inputs, by=C))
    assert not conflicts_with(winner, conflict(*winner.inputs, usage=Usage.REFERENCE))
    assert not conflicts_with(winner, conflict(winner.inputs[0], *winner.inputs))
    assert not conflicts_with(winner, Refused(Code.TX_ID_REUSED.name, B, 7))
    assert not conflicts_with(winner, NotNow(Code.NOT_ACTIVE.name, "", 0.1))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([0.0, 0.9, 1.0, 1.75, 1.8], (0.75, 0.73)),  # nobody is answered once it has happened
        ([0.0, 0.9, 1.0, 1.05, 1.75, 1.8], (0.7, 0.73)),  # one answer was on its way
    ],
)
def test_the_outage_is_the_longest_pause_that_ends_after_the_fault(
    seconds: list[float], expected: tuple[float, float]
) -> None:
    """Goal: longer pauses before the fault do not count. Method: a fault at 1.02 s, with and without a late answer."""
    assert outage([round(s * 1e9) for s in seconds], round(1.02 * 1e9)) == pytest.approx(expected)


def test_an_outage_that_does_not_end_is_no_figure() -> None:
    """Goal: no invented outage. Method: no success after the fault."""
    with pytest.raises(ServerFailed):
        outage([1, 2, 3], 10)
