"""The golden vectors of docs/format-1.0.md, and what the second implementation must refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from tests.golden.format_1_0 import judge, make
from tests.golden.format_1_0 import transaction as tx_format
from tests.golden.format_1_0.judge import Reader, Refused
from tests.golden.format_1_0.packing import NotShortest, pack, unpack
from tests.golden.format_1_0.transaction import NEVER, NotCanonical, Owner
from tests.golden.format_1_0.tree import node, root, root_of

RFC_LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
RFC_ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


def test_the_vectors_are_what_this_implementation_makes() -> None:
    assert json.loads(make.VECTORS.read_text()) == make.document()


def test_the_tree_is_that_of_the_rfc() -> None:
    leaves = [sha256(b"\0" + bytes.fromhex(leaf)).digest() for leaf in RFC_LEAVES]
    assert {size: root_of(leaves[:size]).hex() for size in RFC_ROOTS} == RFC_ROOTS
    assert node(root_of(leaves[:4]), root_of(leaves[4:])).hex() == RFC_ROOTS[8]


def test_the_sample_log_has_every_outcome_and_every_reason_to_be_void() -> None:
    log, long = make.sample_log(), make.long_log()
    met = {one.outcome for one in (*log.decisions, *long.decisions)}
    assert met == {*range(11), *range(32, 43)}
    reasons = {one.void for one in log.decisions if one.void}
    assert reasons == {"undecodable", "repeat", "not_in_force", "barrier_not_higher", "holder_wrote"}
    assert {len(one.leaf) for one in log.decisions} == {174}


def test_copies_of_a_log_have_the_same_tree() -> None:
    log, copy = make.sample_log(), Reader("another topic")
    for raw in log.records:
        copy.read(raw)
    assert root(copy.frontier) == root(log.reader.frontier)
    assert copy.entries == log.reader.entries


def test_a_signed_note_has_one_moment_only() -> None:
    """One that had no effect, as its signer was no officer, has none when the signer becomes one."""
    log = make.Log()
    log.append(make.genesis())
    log.append(make.barrier(1, make.ACTIVATION, [0, "postgres", "1", 1]))
    early = log.note(1, make.BANK, 0, pack([make.PARTY.key, 0, 9]), by=make.BOB)
    fields = unpack(early)
    assert isinstance(fields, list)
    assert log.append(early).outcome == judge.NOTE_IDLE
    officers = pack(sorted([make.OFFICER.key, make.BOB.key]))
    assert log.append(log.note(0, "", 1, officers)).outcome == judge.NOTE  # the genesis was the first
    assert log.append(log.record(3, *fields[5:])).outcome == judge.NOTE_IDLE
    assert log.append(log.note(1, make.BANK, 1, pack([make.PARTY.key, 0, 9]), by=make.BOB)).outcome == judge.NOTE


def test_a_clone_for_a_rehearsal_reads_the_past_and_refuses_what_was_signed_for_the_original() -> None:
    original = make.sample_log()
    fields = unpack(original.records[0])
    assert isinstance(fields, list)
    clone = Reader("clone")
    clone.read(pack([*fields[:2], bytes([77] * 16), *fields[3:5], [[make.LEDGER, 17]]]))
    decided = [clone.read(raw) for raw in original.records[1:]]
    assert [one.outcome for one in decided[:16]] == [one.outcome for one in original.decisions[1:17]]
    assert decided[16].void == "undecodable"  # at offset 17 the clone's own id counts
    assert original.decisions[17].outcome == judge.NOTARISED


@pytest.mark.parametrize("at", range(len(make.sample_log().records)))
def test_a_flipped_bit_shows_in_the_leaf_or_stops_the_reader(at: int) -> None:
    """Method: flip every seventh bit of one record, behind a genesis and a barrier."""
    raw = make.sample_log().records[at]
    whole = _read_alone(raw, is_first=at == 0)
    for bit in range(0, 8 * len(raw), 7):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert _read_alone(bytes(flipped), is_first=at == 0) != whole
        except Refused:
            assert at == 0 or flipped[:2] == b"\x98\x00"


def _read_alone(raw: bytes, *, is_first: bool) -> bytes:
    reader = Reader("r")
    if not is_first:
        reader.read(make.genesis())
        reader.read(make.barrier(1, make.ACTIVATION, [0, "postgres", "1", 1]))
    return reader.read(raw).leaf


def test_a_log_without_a_genesis_is_refused() -> None:
    with pytest.raises(Refused):
        Reader("r").read(make.barrier(1, make.ACTIVATION, [0, "postgres", "1", 1]))
    reader = Reader("r")
    reader.read(make.genesis())
    assert reader.read(make.genesis()).void == "undecodable"


def test_a_barrier_of_another_format_stops_the_reader() -> None:
    reader = Reader("r")
    reader.read(make.genesis())
    with pytest.raises(Refused):
        reader.read(pack([0, 1, make.ACTIVATION, "r1", [0, "postgres", "1", 1], 5, 5, None]))


FIRST, SECOND = make.state(bytes([6] * 32), 0), make.state(bytes([6] * 32), 1)
PLAIN = make.transaction(30, FIRST)
DERIVED_ID = tx_format.derived_id(PLAIN, bytes(32)).tx_id


@pytest.mark.parametrize(
    "wrong",
    [
        replace(PLAIN, inputs=(SECOND, FIRST)),
        replace(PLAIN, inputs=(FIRST, FIRST)),
        replace(PLAIN, references=(FIRST,)),
        replace(PLAIN, inputs=(make.state(PLAIN.tx_id, 0),)),
        replace(PLAIN, from_us=5, until_us=5),
        replace(PLAIN, owners=(Owner(1, bytes(32)), Owner(0, bytes(32)))),
        replace(PLAIN, act_as=()),
        replace(PLAIN, act_as=("B", "A")),
        replace(PLAIN, command_id=""),
        replace(PLAIN, party="O=\u202eA"),
        replace(PLAIN, nonce=bytes(32)),
        replace(PLAIN, tx_id=DERIVED_ID),
        replace(tx_format.derived_id(PLAIN, bytes(32)), inputs=(SECOND,)),
        replace(PLAIN, seed=bytes(31)),
        replace(PLAIN, deduplication=(0, 1)),
        replace(PLAIN, deduplication=(3, 0)),
    ],
)
def test_what_is_not_canonical_has_no_bytes(wrong: tx_format.Transaction) -> None:
    with pytest.raises(NotCanonical):
        tx_format.encode(wrong)


def test_canonical_bytes_have_one_reading() -> None:
    for vector in json.loads(make.VECTORS.read_text())["transactions"]:
        raw = bytes.fromhex(vector["canonical"])
        assert tx_format.encode(tx_format.decode(raw)) == raw
        for more in (raw + b"\0", raw[:-1]):
            with pytest.raises(NotCanonical):
                tx_format.decode(more)


@pytest.mark.parametrize(
    "longer", ["cc05", "cd0005", "d9016f", "c50001ff", "dc000105", "cb3ff0000000000000", "c3", "05c0"]
)
def test_an_encoding_that_is_not_the_shortest_is_refused(longer: str) -> None:
    with pytest.raises(NotShortest):
        unpack(bytes.fromhex(longer))


def _begun() -> make.Log:
    """A log with a genesis, a barrier and PARTY's registration."""
    log = make.Log()
    log.append(make.genesis())
    log.append(make.barrier(1, make.ACTIVATION, [0, "postgres", "1", 1]))
    log.append(log.note(1, make.BANK, 0, pack([make.PARTY.key, 0, NEVER])))
    return log


def test_nobody_takes_a_derived_id_for_other_content_not_even_as_a_free_one() -> None:
    log = _begun()
    owned = tx_format.derived_id(replace(PLAIN, owners=(Owner(0, bytes(32)),)), bytes(32))
    with pytest.raises(NotCanonical):
        tx_format.encode(replace(owned, nonce=None, owners=(Owner(0, bytes([1] * 32)),)))
    assert log.append(log.request(owned)).outcome == judge.NOTARISED


def test_a_window_with_one_end_is_any() -> None:
    for tx in (replace(PLAIN, until_us=0), replace(PLAIN, from_us=NEVER)):
        assert tx_format.decode(tx_format.encode(tx)) == tx
