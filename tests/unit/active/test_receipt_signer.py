"""Receipts with a key that is slow, hangs or fails: the event loop goes on, and everybody is answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from replica.active.receipt_signer import ReceiptSigner
from replica.active.signer import FileSigner
from replica.notary.codes import Code
from replica.notary.errors import SignerUnavailable
from replica.notary.receipts import Receipt, verify_receipt

KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
PATIENT_S, SHORT_S = 30.0, 0.05


class Token(FileSigner):
    """A signer that blocks until released, and fails on command."""

    blocks = True

    def __init__(self) -> None:
        super().__init__(KEY)
        self.goes_on = threading.Event()
        self.signed_count = 0
        self.fails = False

    def sign(self, message: bytes) -> bytes:
        assert threading.current_thread() is not threading.main_thread()
        self.goes_on.wait(PATIENT_S)
        if self.fails:
            raise SignerUnavailable("unplugged")
        self.signed_count += 1
        return super().sign(message)


class Asked:
    """What a receipt_signer was asked for, and what it gave."""

    def __init__(self, receipt_signer: ReceiptSigner, *numbers: int) -> None:
        self.contents = [(number.to_bytes(32, "big"), bytes(32)) for number in numbers]
        self.given: list[Sequence[Receipt] | None] = []
        receipt_signer.make(self.contents, self.given.append)

    def is_certified(self) -> bool:
        ((receipts,),) = [self.given]
        assert receipts is not None
        assert [(receipt.tx_id, receipt.content_digest) for receipt in receipts] == self.contents
        return all(verify_receipt(receipt, KEY.public_key().public_bytes_raw()) for receipt in receipts)


async def test_a_key_in_memory_signs_at_once() -> None:
    """Goal: the usual case costs no turn of the loop. Method: ask, look without waiting; ask for nothing."""
    receipt_signer = ReceiptSigner(FileSigner(KEY), SHORT_S, pytest.fail)
    assert Asked(receipt_signer, 1, 2, 3).is_certified()
    assert Asked(receipt_signer).given == [[]]
    assert len(await receipt_signer.receipts([(bytes(32), bytes(32))])) == 1


async def test_what_comes_while_a_token_signs_shares_the_next_signature() -> None:
    """Goal: a slow token makes larger trees, not a queue. Method: a batch, fifty more while it blocks."""
    token = Token()
    receipt_signer = ReceiptSigner(token, PATIENT_S, pytest.fail)
    first = Asked(receipt_signer, 0)
    await asyncio.sleep(0.01)  # the loop turns while the token blocks
    later = [Asked(receipt_signer, number, number + 100) for number in range(50)]
    waiting = asyncio.create_task(receipt_signer.receipts([(b"t" * 32, bytes(32))]))
    await asyncio.sleep(0)
    assert first.given == []
    token.goes_on.set()
    await receipt_signer.drain()
    assert all(asked.is_certified() for asked in (first, *later))
    assert len(await waiting) == 1
    assert token.signed_count == 2
    assert later[0].given[0] is not None
    assert later[0].given[0][0].tree_size == 101


async def test_a_token_that_fails_is_told_and_the_next_try_is_a_new_one() -> None:
    """Goal: nobody waits for ever, and a token that is back serves. Method: fail, ask both ways, heal, ask."""
    told: list[tuple[str, Code]] = []
    token = Token()
    token.goes_on.set()
    token.fails = True
    receipt_signer = ReceiptSigner(token, PATIENT_S, lambda *failure: told.append(failure))
    asked = Asked(receipt_signer, 1)
    await receipt_signer.drain()
    assert asked.given == [None]
    assert told == [("the notary's key cannot be used: unplugged", Code.SIGNER_UNAVAILABLE)]
    with pytest.raises(SignerUnavailable):
        await receipt_signer.receipts(asked.contents)
    with pytest.raises(SignerUnavailable, match="unplugged"):
        await receipt_signer.check()
    token.fails = False
    await receipt_signer.check()
    assert len(await receipt_signer.receipts(asked.contents)) == 1


async def test_a_token_that_hangs_holds_up_one_thread_and_no_more() -> None:
    """Goal: a dead token is noticed in time. Method: block for ever, ask twice, count threads, then let it go on."""
    told: list[str] = []
    token = Token()
    receipt_signer = ReceiptSigner(token, SHORT_S, lambda reason, _: told.append(reason))
    for number in range(5):
        asked = Asked(receipt_signer, number)
        await receipt_signer.drain()
        assert asked.given == [None]
    assert [thread.name for thread in threading.enumerate()].count("signer") == 1
    assert "no signature within" in told[0]
    assert "still owes" in told[1]
    token.goes_on.set()
    async with asyncio.timeout(PATIENT_S):
        while any(thread.name == "signer" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    assert len(await ReceiptSigner(token, PATIENT_S, pytest.fail).receipts(asked.contents)) == 1
    assert len(await receipt_signer.receipts(asked.contents)) == 1


async def test_halves_of_two_keys_are_noticed_before_anything_is_certified() -> None:
    """Goal: no replica serves with receipts that nobody can verify. Method: a token that shows another public key."""
    token = Token()
    token.goes_on.set()
    token.public_key = bytes(32)
    with pytest.raises(SignerUnavailable, match="not of one pair"):
        await ReceiptSigner(token, PATIENT_S, pytest.fail).check()


async def test_a_site_without_its_term_signs_nothing() -> None:
    """Goal: no signature goes out that another site's may contradict. Method: the term ends before, and while, a key in
    memory or elsewhere signs; then the key is checked."""
    for signer in (FileSigner(KEY), Token()):
        if isinstance(signer, Token):
            signer.goes_on.set()
        for term in (iter([False]), iter([True, False])):
            receipt_signer = ReceiptSigner(signer, PATIENT_S, pytest.fail, term.__next__)
            asked = Asked(receipt_signer, 1, 2)
            await receipt_signer.drain()
            assert asked.given == [None]
    with pytest.raises(SignerUnavailable, match="site"):
        await ReceiptSigner(FileSigner(KEY), PATIENT_S, pytest.fail, lambda: False).check()
