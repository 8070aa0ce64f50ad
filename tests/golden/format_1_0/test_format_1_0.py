"""The golden vectors of docs/format-1.0.md, and what the second implementation must refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import product
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.golden.format_1_0 import judge, make, proofs
from tests.golden.format_1_0 import transaction as tx_format
from tests.golden.format_1_0.judge import Reader, Refused
from tests.golden.format_1_0.packing import NotShortest, Value, pack, unpack
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


def test_checkpoints_and_cose_receipts_are_those_that_foreign_programs_verified() -> None:
    """Both texts were verified by golang.org/x/mod, scitt-cose and others; the key is 00 to 1f."""
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    key = b"\1" + private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    leaves = [sha256(b"\0" + bytes.fromhex(leaf)).digest() for leaf in RFC_LEAVES]
    note = proofs.checkpoint("notary.example/ledger/1", 8, root_of(leaves), key, private.sign)
    assert note == (
        "notary.example/ledger/1\n8\nXcnaeacGWamtVZy3Ad7ZoqudgjqtL0lgz+Nw7/RgQyg=\n\n"
        "\u2014 notary.example/ledger/1 isovzqbpFDa4KGuLvmymP0srCI8vjwWvqbiycTgwt7N+nPY9sWRgs04QyzaRPE4TTmFb/Ng"
        "H4ruowprTee1Ez2WZpAc=\n"
    )
    receipt = proofs.cose_receipt({1: proofs.EDDSA, 395: 1}, leaves, 5, private.sign)
    assert sha256(receipt).hexdigest() == "037ac776b913f180c7a376166b3ecfd1b493469996ae3280b5bae3631ffba7d9"


def test_the_sample_log_has_every_outcome_and_every_reason_to_be_void() -> None:
    log, long = make.sample_log(), make.long_log()
    met = {one.outcome for one in (*log.decisions, *long.decisions)}
    assert met == {*range(11), *range(32, 42)}
    reasons = {one.void for one in log.decisions if one.void}
    assert reasons == {"undecodable", "repeat", "not_in_force", "barrier_not_higher", "holder_wrote"}
    assert {len(one.leaf) for one in log.decisions} == {174}


def test_copies_of_a_log_have_the_same_tree() -> None:
    log, copy = make.sample_log(), Reader("another topic", {make.SALVAGE: make.salvaged()})
    for raw in log.records:
        copy.read(raw)
    assert root(copy.frontier) == root(log.reader.frontier)
    assert copy.entries == log.reader.entries


def test_a_note_without_effect_uses_up_no_number() -> None:
    """One of who is no officer yet has its effect once he is one, unless another one had it meanwhile."""
    log = make.Log()
    log.append(make.genesis())
    log.append(make.barrier(1, make.ACTIVATION, [0, "postgres", "1", 1]))
    early = [log.note(1, make.BANK, 0, pack([key, 0, 9]), by=make.BOB) for key in (make.PARTY.key, make.ALICE.key)]
    again = [log.record(3, *cast("list[Value]", unpack(one))[5:]) for one in early]
    assert [log.append(one).outcome for one in early] == [judge.NOTE_IDLE] * 2
    assert log.append(log.note(1, make.BANK, 0, pack([make.ALICE.key, 0, 0]))).outcome == judge.NOTE
    officers = pack(sorted([make.OFFICER.key, make.BOB.key]))
    assert log.append(log.note(0, "", 1, officers)).outcome == judge.NOTE  # the genesis was the first
    assert [log.append(one).outcome for one in again] == [judge.NOTE, judge.NOTE_IDLE]


def test_a_clone_for_a_rehearsal_reads_the_past_and_refuses_what_was_signed_for_the_original() -> None:
    original = make.sample_log()
    fields = unpack(original.records[0])
    assert isinstance(fields, list)
    clone = Reader("clone", {make.SALVAGE: make.salvaged()})
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
    reader = Reader("r", {make.SALVAGE: make.salvaged()})
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


def test_a_later_format_may_have_granters_that_this_one_does_not_know() -> None:
    """A reader that took its barrier for void would judge on alone."""
    log = _begun()
    assert log.append(pack([0, 2, bytes(16), "r1", [4, "x"], 4, 4, None])).void == "undecodable"
    assert log.append(pack([0, 2, bytes(16), "r1", [0, "mariadb", "x", 1], 4, 4, None])).outcome == judge.IN_FORCE
    with pytest.raises(Refused):
        log.append(pack([0, 3, bytes(16), "r1", [4, "x"], 5, 5, None]))


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


def _begun(salvages: dict[bytes, list[tuple[bytes, bytes]]] | None = None) -> make.Log:
    """A log with a genesis, a barrier and PARTY's registration."""
    log = make.Log(salvages)
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


def _with(raw: bytes, at: int, value: object) -> bytes:
    fields = unpack(raw)
    fields[at] = value
    return pack(fields)


def test_a_window_with_one_end_is_any() -> None:
    for tx in (replace(PLAIN, until_us=0), replace(PLAIN, from_us=NEVER)):
        assert tx_format.decode(tx_format.encode(tx)) == tx


def test_no_stamp_frees_what_is_owned_for_ever() -> None:
    log = _begun()
    owner = tx_format.owner_of(tx_format.opening(bytes(16), 1, [make.ALICE.key]))
    issue = make.transaction(1, owners=(Owner(0, owner),))
    log.append(log.request(issue))
    steal = log.request(make.transaction(2, make.state(issue.tx_id, 0)))
    for stamp in (NEVER, judge.TIME_END_US):
        assert log.append(_with(steal, 4, stamp)).void == "undecodable"
    assert log.append(_with(steal, 4, judge.TIME_END_US - 1)).outcome == judge.CONSENT_MISSING


def test_all_numbers_of_a_position_have_63_bits() -> None:
    log = _begun()
    assert log.append(_with(log.record(2), 3, NEVER)).void == "undecodable"  # its range would end at 2**63
    assert log.append(_with(log.record(2), 3, NEVER - 1)).outcome == judge.SIGN_OF_LIFE
    assert unpack(log.reader.position)[8] == [[0, 1], [NEVER - 1, NEVER]]


def test_no_record_declares_a_salvage() -> None:
    """The lost records name it. Two records about one range broke the index."""
    log = _begun()
    for kind in (4, 5):
        assert log.append(log.record(kind, 1, 2, bytes(32))).void == "undecodable"


def _behind_a_loss(**lost: int) -> make.Log:
    log = _begun({make.SALVAGE: make.salvaged()})
    while log.reader.offset < make.LOST_AT - 1:
        log.append(log.record(2))
    assert log.append(make.lost_record(make.LOST_AT, **lost)).outcome == judge.LOST
    return log


def test_time_judged_and_ledger_offsets_go_on_behind_a_lost_record() -> None:
    log = _behind_a_loss(judged_us=make.BEGIN_US + make.HOUR_US)
    late = make.transaction(1, until_us=make.BEGIN_US + make.HOUR_US)
    assert log.append(log.request(late)).outcome == judge.WINDOW_CLOSED
    position = unpack(log.reader.position)
    assert (position[7], position[10]) == (make.BEGIN_US + make.HOUR_US, 41)


@pytest.mark.parametrize(
    "lost",
    [
        make.lost_record(make.LOST_AT, make.BEGIN_US, 2**62 + 1),
        make.lost_record(make.LOST_AT, make.BEGIN_US, 2**64 - 1),
        make.lost_record(make.LOST_AT, judge.TIME_END_US),
        make.lost_record(make.LOST_AT, make.BEGIN_US)[:-1],
    ],
)
def test_a_lost_record_that_no_position_could_hold_is_void(lost: bytes) -> None:
    log = _begun({make.SALVAGE: make.salvaged()})
    while log.reader.offset < make.LOST_AT - 1:
        log.append(log.record(2))
    assert log.append(lost).void == "undecodable"
    assert log.append(log.request(make.transaction(1))).outcome == judge.NOTARISED


def test_what_a_salvage_carries_counts_behind_it() -> None:
    """A spent state, a command, and that three notes of the pair had an effect before the salvage's."""
    log = _behind_a_loss(judged_us=make.BEGIN_US)
    taken = make.transaction(41, make.salvaged_source())
    assert log.append(log.request(taken)).outcome == judge.CONFLICT
    again = log.append(log.request(make.transaction(40, make.salvaged_source())))
    assert (again.outcome, again.first_success) == (judge.DEDUPLICATED, make.LOST_AT)
    body = pack([make.PARTY.key, 0, 0])
    assert log.append(log.note(1, make.BANK, 3, body)).outcome == judge.NOTE_IDLE
    assert log.append(log.note(1, make.BANK, 4, body)).outcome == judge.NOTE
    with pytest.raises(Refused):
        Reader("without the salvage").read(make.lost_record(0, make.BEGIN_US))


def test_a_generation_that_ended_in_a_lost_record_has_ended() -> None:
    body, at = pack([0, 4, bytes(32), None, None, None]), make.LOST_AT.to_bytes(8, "big")
    ended = (b"n\3\0\0" + at, (1).to_bytes(8, "big") + body + at)
    log = _begun({make.SALVAGE: [ended]})
    while log.reader.offset < make.LOST_AT - 1:
        log.append(log.record(2))
    log.append(make.lost_record(make.LOST_AT, make.BEGIN_US))
    assert unpack(log.reader.position)[11] == 1
    assert log.append(log.note(3, "", 1, body)).outcome == judge.NOTE_IDLE  # of a generation that ended
    later = pack([1, 4, bytes(32), None, None, None])
    assert log.append(log.note(3, "", 1, later)).outcome == judge.NOTE


def test_the_roots_of_a_position_are_those_of_its_own_tree() -> None:
    reader = Reader("r")
    reader.read(make.genesis())
    assert unpack(reader.position)[13] == []
    while reader.offset < judge.STEP - 1:
        reader.read(b"")
    assert unpack(reader.position)[13] == [root(reader.frontier)]


def test_a_checkpoint_of_size_zero_is_not_judged() -> None:
    log = _begun()
    assert log.append(log.record(4, 0, sha256(b"").digest())).outcome == judge.NOT_JUDGED


@pytest.mark.parametrize("name", ["", "r" * 255])
def test_a_barrier_with_any_name_is_below_each_limit(name: str) -> None:
    log = _with_limit(10_000)
    raw = pack([0, 2**63 - 1, bytes(16), name, [3, "postgres", name, 2**63 - 1, name], 4, 4, [name, 2**63 - 1]])
    assert log.append(raw).outcome == judge.IN_FORCE


def _with_limit(record_bytes: int) -> make.Log:
    log = make.Log()
    log.append(_with(make.genesis(), 4, [9_999, record_bytes, 0]))
    return log


def test_officers_can_be_replaced_under_each_limit() -> None:
    with pytest.raises(Refused):
        _with_limit(9_999)
    log = _with_limit(10_000)
    log.append(make.barrier(1, make.ACTIVATION, [0, "postgres", "1", 1]))
    most = [b"\2\2" + bytes(31) + bytes([number]) for number in range(100)]
    signed = [0, "", 1, pack(most), "\u20ac" * 170, "\u20ac" * 170, make.OFFICER.key]
    assert log.append(log.record(3, *signed, bytes(64))).outcome == judge.NOTE


@pytest.mark.parametrize("name", ["a\0b", "a b", "\u00e9", "r" * 256])
def test_a_name_that_not_every_store_keeps_is_none(name: str) -> None:
    log = _begun()
    for raw in (
        pack([0, 2, bytes(16), name, [1, 1], 4, 4, None]),
        pack([0, 2, bytes(16), "r1", [0, "postgres", name, 1], 4, 4, None]),
        pack([0, 2, bytes(16), "r1", [2, name], 4, 4, None]),
        pack([0, 2, bytes(16), "r1", [1, 1], 4, 4, [name, 1]]),
    ):
        assert log.append(raw).void == "undecodable"


def test_the_form_of_a_key_is_its_type_and_length_alone() -> None:
    """No library is asked whether the bytes are a point."""
    log = _begun()
    raw = log.request(make.transaction(1))
    assert log.append(_with(raw, 8, b"\2\x05" + bytes(32))).outcome == judge.PARTY_UNKNOWN
    raw = log.request(make.transaction(1))
    assert log.append(_with(raw, 8, b"\2" + bytes(32))).void == "undecodable"


def test_an_opening_of_another_form_makes_the_request_void() -> None:
    log = _begun()
    for wrong in (b"", bytes(18), tx_format.opening(bytes(16), 1, [make.ALICE.key]) + b"\0"):
        assert log.append(_with(log.request(make.transaction(1)), 11, [wrong])).void == "undecodable"


@pytest.mark.parametrize("number", [0, 127, 128, 255, 256, 32_767, 65_535, 65_536, 2**31 - 1, 2**63 - 1])
def test_numbers_from_zero_have_the_unsigned_forms(number: int) -> None:
    assert unpack(pack(number)) == number
    for head, length in ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)):
        if number < 2 ** (8 * length - 1):
            with pytest.raises(NotShortest):
                unpack(bytes([head]) + number.to_bytes(length, "big"))


EDGES: list[object] = [None, 0, 1, -1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, "", b"", [], "x" * 256, bytes(16), [[]]]


@pytest.mark.parametrize("at", range(len(make.sample_log().records)))
def test_no_value_of_a_field_breaks_a_reader(at: int) -> None:
    """Method: each field of each record of the sample takes each edge; a reader reads on, and a second one agrees."""
    raw = make.sample_log().records[at]
    try:
        fields = unpack(raw)
    except NotShortest:
        return
    for where, edge in product(range(len(fields)), EDGES):
        log = _begun()
        try:
            log.append(_with(raw, where, edge))
        except Refused:
            assert fields[0] == 0 and where in (5, 6)
            continue
        log.append(log.record(2))
        assert len(log.reader.position) < 4_000
        assert all(number < 2**63 for number in _numbers(unpack(log.reader.position)))


def test_the_longest_mark_has_3900_bytes_at_most() -> None:
    reader, name, most = Reader("x" * 255), "x" * 255, 2**63 - 1
    reader.read(make.genesis())
    reader.barrier = [0, most, bytes(16), name, [3, "postgres", name, most, name], 4, 4, [name, most]]
    reader.offset = reader.barrier_offset = reader.counted_offset = reader.stamp_us = most
    reader.ledger_offset = reader.generation = most
    reader.frontier, reader.anchors = [bytes(32)] * 63, [bytes(32)] * 2
    assert len(reader.position) <= 3_900


def _numbers(value: object) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    for one in value if isinstance(value, list) else ():
        yield from _numbers(one)
