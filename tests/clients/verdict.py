"""What a run of a client's program across faults must have brought."""

from __future__ import annotations

from collections import Counter

import msgspec

from replica.notary.receipts import ReceiptDocument, receipt_from_document, verify_receipt
from replica.store.interface import NOTARISED
from tests.clients.programs import Program
from tests.promises import promised


def check_exactly_once(program: Program, count: int, notary_key: bytes) -> None:
    """Each request is a success exactly once, with a receipt that verifies and one completion that agrees."""
    end, successes, completions = program.said[-1], program.of("success"), program.of("completion")
    assert (end["kind"], end["submitted"], end["verified"]) == ("end", count + 1, count)
    assert end["connections"] >= 2  # the stream went on with the successor
    for one in successes:
        receipt = receipt_from_document(msgspec.convert(one["receipt"], ReceiptDocument))
        same = (receipt.tx_id.hex(), receipt.content_digest.hex()) == (one["tx_id"], one["content_digest"])
        promised(same and verify_receipt(receipt, notary_key), one)
    told = Counter(one["tx_id"] for one in successes)
    promised(len(told) == count and set(told.values()) == {1}, told.most_common(3))
    promised(len({one["log_offset"] for one in successes}) == count, "two transactions at one offset")
    published = {one["tx_id"]: one for one in reversed(completions) if one["code"] == NOTARISED}
    promised(len(published) == count + 1 and set(told) <= set(published), Counter(one["code"] for one in completions))
    offsets = [one["offset"] for one in completions]
    promised(offsets == sorted(set(offsets)), "a completion came twice, or out of order")
    wrong = [one for one in successes if published[one["tx_id"]]["log_offset"] != one["log_offset"]]
    promised(not wrong, wrong)
