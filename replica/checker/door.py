"""Refusals before the log: compares what a front end says of a request or its sender with what was sent.

Such refusals name no record, so the log cannot confirm them. Three facts can: a signature holds or does not; a request
that has a canonical form keeps to its format; and callers have to show a token, or need not.
"""

from __future__ import annotations

from replica.checker.history import Content, Invoke, Signed
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.genesis import NO_LEDGER
from replica.notary.requests import (
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    Request,
    TimeWindow,
    check_command,
    check_submission_id,
    make_request,
    parse_state_ref,
)
from replica.notary.signatures import signature_holds
from replica.notary.terms import decode_canonical

_OF_FORMAT = {Code.MALFORMED_JSON, Code.MALFORMED_REQUEST, Code.TOO_MANY_STATES}
_OF_TOKENS = {Code.TOKEN_MISSING, Code.TOKEN_INVALID, Code.PERMISSION_DENIED}
_OF_KEYS = {Code.PARTY_UNKNOWN, Code.KEY_NOT_VALID}
_OF_SUBMISSIONS = {
    *_OF_KEYS,
    Code.SIGNATURE_INVALID,
    Code.TOO_MANY_STATES,
    Code.BATCH_TOO_LARGE,
    Code.WINDOW_EXCEEDED,
    Code.STATE_CONFLICT,
    Code.TX_ID_REUSED,
    Code.TIME_WINDOW_CLOSED,
    Code.COMMAND_ID_REUSED,
}
# No submission and no look-up of a transaction can cause these.
_OF_OTHER_CALLS = {Code.EMPTY_BATCH, Code.OFFSET_PRUNED, Code.NO_LOG_NODES}
UNCHECKED = {  # they are about bytes in transit, terms, the ledger and the kind of log, which a history does not tell
    Code.DEDUPLICATION_PERIOD_TOO_LONG,
    Code.EARLY_NOT_OFFERED,
    Code.BODY_TOO_LARGE,
    Code.WRONG_LEDGER,
    Code.MEDIA_TYPE_UNSUPPORTED,
    Code.UPGRADE_REQUIRED,
    Code.WRONG_HOST,
    Code.HTTP_MALFORMED,
    Code.QUERY_INVALID,
    Code.ROUTE_NOT_FOUND,
    Code.METHOD_NOT_ALLOWED,
    Code.BATCH_TOO_LARGE,
    Code.WINDOW_EXCEEDED,
}


def problem_of_refusal(name: str, sent: Invoke, *, tokens: bool) -> str | None:
    """Why this definite refusal of what was sent is wrong; None if it is right, or cannot be judged.
    `tokens`: whether callers have to show one.

    Raises BadRequest when the history lacks the key or signature that the refusal is about.
    """
    code = Code[name]
    if code in _OF_OTHER_CALLS:
        return "no submission and no look-up is refused so"
    if code in _OF_TOKENS:
        return None if tokens else "no token is asked for"
    if sent.content is None:
        return "a look-up is not refused so" if code in _OF_SUBMISSIONS | _OF_FORMAT else None
    if code is Code.TX_NOT_FOUND:
        return "a submission is not refused so"
    if code in _OF_FORMAT:
        return _problem_of_format(sent)
    return None if sent.signed is None else _problem_of_signer(code, sent, sent.content, sent.signed)


def _problem_of_signer(code: Code, sent: Invoke, content: Content, signed: Signed) -> str | None:
    key = _bytes(signed.public_key, PUBLIC_KEY_BYTES)
    signature = _bytes(signed.signature, SIGNATURE_BYTES)
    if code is Code.SIGNATURE_INVALID:
        raw = _signed_bytes(sent, content, signed)
        return "the signature holds" if raw is not None and signature_holds(key, raw, signature) else None
    return None


def _signed_bytes(sent: Invoke, content: Content, signed: Signed) -> bytes | None:
    """What the signature must cover; None if what was signed is not for the command that was sent.

    The terms are believed, because the client sends the very terms that it signs."""
    try:
        raw = bytes.fromhex(signed.canonical)
        found, _, terms, _ = decode_canonical(raw)
    except (ValueError, BadRequest):
        raise BadRequest("canonical of a history holds no canonical bytes") from None
    ids = sent.command
    request = request_in(bytes.fromhex(sent.tx_id), content, found.ledger_id)
    named = None if ids is None else (ids.user_id, ids.command_id, tuple(sorted(ids.act_as)))
    is_sent = found == request and named == (terms.user_id, terms.command_id, terms.act_as)
    return raw if is_sent else None


def request_in(tx_id: bytes, content: Content, ledger_id: bytes = NO_LEDGER) -> Request:
    """The request of a history, which does not name the ledger. Raises BadRequest."""
    window = None
    if content.from_us is not None or content.until_us is not None:
        window = TimeWindow(content.from_us, content.until_us)
    inputs = [parse_state_ref(text) for text in content.inputs]
    references = [parse_state_ref(text) for text in content.references]
    return make_request(tx_id, inputs, references, window, content.party, ledger_id=ledger_id)


def _problem_of_format(sent: Invoke) -> str | None:
    """The content has a canonical form, or no history would have it. The ids of the command may break their format."""
    ids = sent.command
    if ids is None:
        return None
    try:
        check_command(ids.user_id, ids.command_id, ids.act_as)
        check_submission_id(ids.submission_id)
    except BadRequest:
        return None
    return "the request and its command keep to the format"


def _bytes(text: str, size: int) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise BadRequest(f"a key or a signature is {2 * size} hexadecimal digits")
    return raw
