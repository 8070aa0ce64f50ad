"""Test vectors: the bytes of docs/formats.md built by hand, for those who implement them in another language."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from nacl.signing import SigningKey

from ledger_api.client import Bookmark, Deduplication, Party, encode_submission
from ledger_api.wire.feed import UpdateDocument
from ledger_api.wire.submissions import SubmissionDocument, submission_from_document
from replica.notary.canonical import change_id, content_digest, decode_request, encode_request
from replica.notary.errors import BadRequest
from replica.notary.merkle import leaf_hash, tree_levels
from replica.notary.receipts import ReceiptDocument, receipt_from_document, verify_receipt
from replica.notary.requests import TimeWindow, make_request, parse_state_ref
from replica.notary.signatures import algorithm_of, notary_key_from_hex, signature_holds
from replica.notary.terms import decode_canonical
from tests.golden.make import FOLDER


def _vectors(name: str) -> Any:
    return msgspec.json.decode((FOLDER / "vectors" / name).read_bytes())


REQUESTS = {case["name"]: case for case in _vectors("canonical.json")}


@pytest.mark.parametrize("case", _vectors("bookmarks.json"), ids=lambda case: case["bookmark"])
def test_a_bookmark(case: dict[str, Any]) -> None:
    """Goal: a kept bookmark is read by every client and release. Method: offset, and SHA-256 of five lines."""
    entry = case["entry"]
    names = ("offset", "tx_id", "content_digest", "log_offset", "recorded_at")
    digest = sha256("\n".join(str(entry[name]) for name in names).encode()).hexdigest()[:32]
    assert f"{entry['offset']}-{digest}" == case["bookmark"]
    update = msgspec.convert({**entry, "kind": "update", "act_as": []}, UpdateDocument)
    assert str(Bookmark.of(update)) == case["bookmark"]


def _by_hand(case: dict[str, Any]) -> str:
    """The canonical bytes in hexadecimal, put together without the product's code."""

    def refs(texts: list[str]) -> str:
        return "".join(sorted(f"{text[:64]}{int(text[65:]):08x}" for text in texts))

    flags = (case["from_us"] is not None) + 2 * (case["until_us"] is not None)
    party = case["party"].encode().hex()
    return (
        b"notary/request/3".hex()
        + case["ledger_id"]
        + case["tx_id"]
        + f"{len(case['inputs']):04x}{len(case['references']):04x}0000"
        + refs(case["inputs"])
        + refs(case["references"])
        + f"{flags:02x}{case['from_us'] or 0:016x}{case['until_us'] or 0:016x}"
        + f"{len(party) // 2:04x}{party}"
    )


@pytest.mark.parametrize("name", REQUESTS)
def test_canonical_bytes_and_digest_of_a_request(name: str) -> None:
    """Goal: anyone can rebuild what canonical bytes say of a request. Method: by hand, and by the product."""
    case = REQUESTS[name]
    raw = bytes.fromhex(case["request"])
    assert _by_hand(case) == case["request"]
    window = None
    if case["from_us"] is not None or case["until_us"] is not None:
        window = TimeWindow(case["from_us"], case["until_us"])
    request = make_request(
        bytes.fromhex(case["tx_id"]),
        [parse_state_ref(text) for text in reversed(case["inputs"])],
        [parse_state_ref(text) for text in case["references"]],
        window,
        case["party"],
        ledger_id=bytes.fromhex(case["ledger_id"]),
    )
    assert encode_request(request) == raw
    assert decode_request(raw)[0] == request
    content = raw[64 : len(raw) - 2 - len(case["party"].encode())]
    assert case["content_digest"] == sha256(b"notary/content/2" + content).hexdigest() == content_digest(request).hex()


SIGNED_COMMANDS = {case["name"]: case for case in _vectors("canonical_signed.json")}


@pytest.mark.parametrize("name", SIGNED_COMMANDS)
def test_canonical_bytes_and_their_signature(name: str) -> None:
    """Goal: anyone can rebuild what is signed. Method: by hand, by the client's party, and by another Ed25519 call."""
    case = SIGNED_COMMANDS[name]

    def texts(*parts: str) -> str:
        return "".join(f"{len(part.encode()):04x}{part.encode().hex()}" for part in parts)

    parties = sorted(case["act_as"], key=str.encode)
    kind, value = 0, 0
    if case["duration_s"] is not None:
        kind, value = 1, round(case["duration_s"] * 1e6)  # of doubles; half goes to even
    elif case["after_offset"] is not None:
        kind, value = 2, case["after_offset"]
    by_hand = _by_hand(case) + texts(case["user_id"], case["command_id"])
    by_hand += f"{len(parties):02x}{texts(*parties)}{kind:02x}{value:016x}00"
    assert by_hand == case["canonical"]
    window = TimeWindow(case["from_us"], case["until_us"])
    period = Deduplication(case["duration_s"], case["after_offset"])
    signed = Party(case["party"], bytes.fromhex(case["ledger_id"]), SigningKey(bytes.fromhex(case["party_seed"]))).sign(
        case["tx_id"],
        case["inputs"],
        case["references"],
        None if window == TimeWindow() else window,
        command_id=case["command_id"],
        user_id=case["user_id"],
        act_as=case["act_as"],
        deduplication=period,
    )
    assert (signed.request.hex(), signed.signature.hex()) == (case["canonical"], case["signature"])
    assert signature_holds(bytes.fromhex(case["party_public_key"]), signed.request, signed.signature)
    body = encode_submission(signed)
    document = msgspec.json.decode(body, type=SubmissionDocument)
    assert submission_from_document(document, lambda: "s").request == signed.request
    assert decode_canonical(signed.request)[1].hex() == case["content_digest"]


def test_one_case_written_out_in_full() -> None:
    """Goal: a reader can follow the layout with a finger. Method: the bytes of "one input" as text."""
    assert REQUESTS["one input"]["request"] == "".join(
        [
            "6e6f746172792f726571756573742f33",  # notary/request/3
            "4c" * 16,  # ledger id
            "22" * 32,  # transaction id
            "0001",  # one input
            "0000",  # no reference
            "0000",  # no owner
            "33" * 32 + "00000001",  # the input: id, index 1
            "00" + "00" * 8 + "00" * 8,  # no window
            "0016",  # 22 bytes of name
            "4f3d42616e6b20412c4c3d4c6f6e646f6e2c433d4742",  # O=Bank A,L=London,C=GB
        ]
    )


@pytest.mark.parametrize("case", _vectors("change_id.json"), ids=lambda case: case["user_id"] + str(case["act_as"]))
def test_change_ids(case: dict[str, Any]) -> None:
    """Goal: anyone can rebuild a command's id. Method: by hand and by the product."""
    parts = [text.encode() for text in (case["user_id"], case["command_id"], *sorted(case["act_as"]))]
    by_hand = b"notary/command/1" + b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    assert case["change_id"] == sha256(by_hand).hexdigest()
    assert case["change_id"] == change_id(case["user_id"], case["command_id"], tuple(case["act_as"])).hex()


def test_merkle_roots_of_one_to_nine_leaves() -> None:
    """Goal: anyone can rebuild a root. Method: three trees put together by hand, all by the product."""
    vectors = _vectors("merkle.json")
    leaves = [bytes.fromhex(leaf) for leaf in vectors["leaves"]]
    for number, leaf in enumerate(leaves):
        assert leaf == sha256(b"\x00" + bytes([number]) * 32 + bytes([0xD0 + number]) * 32).digest()
        assert leaf == leaf_hash(bytes([number]) * 32, bytes([0xD0 + number]) * 32)

    def node(left: bytes, right: bytes) -> bytes:
        return sha256(b"\x01" + left + right).digest()

    roots = vectors["root_of_the_first"]
    a, b, c, d, e, *_ = leaves
    assert roots["1"] == a.hex()
    assert roots["3"] == node(node(a, b), c).hex()
    assert roots["5"] == node(node(node(a, b), node(c, d)), e).hex()
    assert roots == {str(count): tree_levels(leaves[:count])[-1][0].hex() for count in range(1, 10)}


def _leaves(documents: list[ReceiptDocument]) -> list[bytes]:
    """As docs/formats.md has them."""
    leaves = []
    for document in documents:
        place = document.place
        content = bytes.fromhex(document.tx_id + document.content_digest)
        if place is not None:
            numbers = f"{place.log_offset:016x}{place.epoch:016x}{place.judged_us:016x}{len(place.log_id):04x}"
            content += bytes.fromhex(numbers) + place.log_id.encode()
        leaves.append(sha256(b"\x00" + content).digest())
    return leaves


def _statement_of_four(leaves: list[bytes]) -> bytes:
    inner = [sha256(b"\x01" + left + right).digest() for left, right in (leaves[:2], leaves[2:])]
    return b"notary/receipt/2" + (4).to_bytes(4, "big") + sha256(b"\x01" + inner[0] + inner[1]).digest()


def test_receipts() -> None:
    """Goal: anyone can verify a receipt, and where and when. Method: leaves, path and signature by hand, all by the
    product; the last one has no place."""
    vectors = _vectors("receipts.json")
    documents = [msgspec.convert(document, ReceiptDocument) for document in vectors["receipts"]]
    leaves = _leaves(documents)
    assert [document.place is None for document in documents] == [False, False, False, True]
    assert vectors["leaves"] == [leaf.hex() for leaf in leaves]
    assert documents[2].path == [leaves[3].hex(), sha256(b"\x01" + leaves[0] + leaves[1]).hexdigest()]
    key = SigningKey(bytes.fromhex(vectors["notary_seed"]))
    assert key.sign(_statement_of_four(leaves)).signature.hex() == documents[0].signature
    public_key = bytes.fromhex(vectors["notary_public_key"])
    assert all(verify_receipt(receipt_from_document(document), public_key) for document in documents)


def test_receipts_of_a_key_of_p256() -> None:
    """Goal: anyone can verify them. Method: the statement by hand and another library's ECDSA; all by the product,
    then each with a changed signature, by a key of the other kind, and by a point off the curve."""
    vectors = _vectors("receipts_p256.json")
    documents = [msgspec.convert(document, ReceiptDocument) for document in vectors["receipts"]]
    private = ec.derive_private_key(int(vectors["notary_private_key"], 16), ec.SECP256R1())
    public_key = bytes.fromhex(vectors["notary_public_key"])
    numbers = private.public_key().public_numbers()
    assert public_key == b"\x04" + numbers.x.to_bytes(32, "big") + numbers.y.to_bytes(32, "big")
    signature = bytes.fromhex(documents[0].signature)
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    signed = _statement_of_four(_leaves(documents))
    private.public_key().verify(encode_dss_signature(r, s), signed, ec.ECDSA(SHA256()))
    off_the_curve = public_key[:-1] + bytes([public_key[-1] ^ 1])
    for receipt in map(receipt_from_document, documents):
        assert verify_receipt(receipt, public_key)
        for wrong in (bytes(64), receipt.signature[:63], receipt.signature[32:] + receipt.signature[:32]):
            assert not verify_receipt(msgspec.structs.replace(receipt, signature=wrong), public_key)
        for key in (off_the_curve, public_key[1:33], b"\x02" + public_key[1:33], b"\x05" + public_key[1:]):
            assert not verify_receipt(msgspec.structs.replace(receipt, notary_key=key), key)


def test_a_key_says_its_algorithm() -> None:
    """Goal: no key is taken for one of the other kind. Method: good ones; wrong lengths, tags, and a point off the
    curve."""
    ed25519, p256 = (_vectors(name)["notary_public_key"] for name in ("receipts.json", "receipts_p256.json"))
    assert [algorithm_of(notary_key_from_hex("key", key)) for key in (ed25519, p256)] == ["ed25519", "p256"]
    for bad in ("", ed25519[:-2], p256[:-2], "02" + p256[2:], p256[:-2] + ("01" if p256.endswith("00") else "00")):
        with pytest.raises(BadRequest, match="130"):
            notary_key_from_hex("key", bad)
