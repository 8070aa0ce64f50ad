"""What `notary log tail` prints for each kind of record."""

from __future__ import annotations

from replica.cli.log import describe
from replica.notary.granters import Database
from replica.notary.records import (
    FORMAT,
    BarrierRecord,
    SignOfLifeRecord,
    encode_record,
    request_record,
)
from tests.worlds.core_world import name_of, state, submission

ACTIVATION = bytes(range(16))


def test_each_kind_of_record_is_told_in_a_line() -> None:
    """Goal: an operator reads the log without a decoder. Method: one record of each kind, and noise."""
    barrier = describe(0, encode_record(BarrierRecord(7, ACTIVATION, "r2", Database("postgres", "1", 1), FORMAT, 1)))
    assert (barrier.kind, barrier.activation, barrier.text) == (
        "barrier",
        "00010203",
        f"epoch 7 of r2, postgres:1:1, format {FORMAT}",
    )
    request = submission(5, inputs=[state(1), state(2)], references=[state(3)])
    line = describe(1, encode_record(request_record(FORMAT, ACTIVATION, 3, 1_000_000, request, 0)))
    assert (line.kind, line.sequence, line.at_us, line.tx_ids) == ("request", 3, 1_000_000, (name_of(5).hex(),))
    assert "2 inputs, 1 references" in line.text
    line = describe(2, encode_record(SignOfLifeRecord(FORMAT, ACTIVATION, 4, 1_000_000)))
    assert (line.kind, line.sequence, line.at_us, line.tx_ids) == ("life", 4, 1_000_000, ())
    noise = describe(3, b"\xc1 nothing")
    assert (noise.kind, noise.activation) == ("undecodable", "")
    assert noise.text.startswith("9 bytes, void: ")
