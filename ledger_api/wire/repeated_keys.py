"""Refuses a submission in which a key is given twice: decoders take the last value, other readers the first.

Few bodies need a second reading for that. A colon outside a text always follows a key. So if the texts and keys of a
document account for all colons of its body, the body has each key once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ledger_api.wire.submissions import ANONYMOUS, SubmissionDocument
from replica.notary.one_value import check_keys, given_twice

_INSTANT_COLONS = 2  # at least: hours, minutes and seconds
_LIST = re.compile(rb'\s*\{\s*"[^"]*"\s*:\s*\[\s*')  # the key may be written with escapes, of other characters
_BETWEEN = frozenset([b",", b" ", b"\n", b"\r", b"\t"])
_END, _ENDS = [b"]}"], [b"]", b"}"]


def check_submission(raw: bytes, document: SubmissionDocument) -> None:
    """As `check_keys`, for a submission and the document that was read from it; seldom reads it again."""
    if b"\\" in raw or raw.count(b":") != _colons(document):
        check_keys(raw)


def check_batch(raw: bytes, submissions: Sequence[object]) -> None:
    """As `check_keys`, for the outside of a batch that was read; its submissions are checked one by one.

    Nothing is read again: a submission may be a million small objects, and reading them would delay all other calls.
    """
    start = _LIST.match(raw)
    if start is None or not _ends_with(raw, start.end(), submissions):
        raise given_twice("submissions")


def _colons(document: SubmissionDocument) -> int:
    """The least number of colons in a body where each key with a value other than its default occurs once."""
    request, user_id, command_id = document.request, document.user_id, document.command_id
    count = 6 + len(request.inputs) + request.party.count(":")  # request and five of its keys
    if request.references:
        count += 1 + len(request.references)
    if (window := request.time_window) is not None:
        ends = (window.from_ is not None) + (window.until is not None)
        count += 1 + ends * (1 + _INSTANT_COLONS)
    if user_id != ANONYMOUS:
        count += 1 + user_id.count(":")
    if command_id is not None:
        count += 1 + command_id.count(":")
    if document.act_as is not None:
        count += 1 + sum([party.count(":") for party in document.act_as])
    if document.submission_id is not None:
        count += 1 + document.submission_id.count(":")
    if (period := document.deduplication) is not None:
        count += 1 + (period.duration_s is not None) + (period.after_offset is not None)
    return count


def _ends_with(raw: bytes, at: int, submissions: Sequence[Any]) -> bool:
    """Whether only these submissions follow, one directly after the other, then the end of list and object."""
    for submission in submissions:
        piece = bytes(submission)
        if not raw.startswith(piece, at):
            return False
        at += len(piece)
        while raw[at : at + 1] in _BETWEEN:
            at += 1
    return raw[at:].split() in (_END, _ENDS)
