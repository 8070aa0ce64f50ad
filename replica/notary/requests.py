"""A notarisation request, and its limits.

A state reference is kept as its 36 bytes, id (32) and big-endian index (4). The same bytes are hashed, signed, logged
and used as the index's key, so no step converts them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated

import msgspec

from replica.notary.codes import Code
from replica.notary.errors import BadRequest

LEDGER_ID_BYTES = 16
TX_ID_BYTES = 32
DERIVED = b"/derived"  # a transaction id that ends so is kept for ids that are derived from their content
STATE_REF_BYTES = 36
DIGEST_BYTES = 32
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
STATES_LIMIT = 10_000  # inputs + references stay below it; a larger request would delay all others
INDEX_MAX = 2**32 - 1
PARTY_MAX_BYTES = 512  # the party and each of act_as, in UTF-8
ID_MAX_BYTES = 255  # user_id, command_id and submission_id, in UTF-8
NOTE_MAX_BYTES = 512  # each text of an operator, in UTF-8
ACT_AS_MAX = 16
TIME_MAX_US = 2**63 - 1
DEDUPLICATION_LIMIT_S = 100 * 366 * 86_400.0  # no period is longer, whatever the configuration: sums stay 64-bit
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # controls, line ends, bidi overrides

DeduplicationS = Annotated[float, msgspec.Meta(ge=0, le=DEDUPLICATION_LIMIT_S)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""What databases call a bigint: of a ledger, or any other number that others choose."""
PublicKey = Annotated[bytes, msgspec.Meta(min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class TimeWindow(msgspec.Struct, frozen=True, gc=False):
    """[from, until) in microseconds UTC; None leaves that side open, but not both sides."""

    from_us: int | None = None
    until_us: int | None = None

    def contains(self, time_us: int) -> bool:
        """Whether a request judged at `time_us` is inside."""
        return (self.from_us is None or self.from_us <= time_us) and (self.until_us is None or time_us < self.until_us)


class Request(msgspec.Struct, frozen=True, gc=False):
    """A notarisation request in canonical order: inputs and references ascending, no duplicate, no overlap.

    `ledger_id`: of the ledger that it is for, as the genesis has it.
    """

    ledger_id: bytes
    tx_id: bytes
    inputs: tuple[bytes, ...]
    references: tuple[bytes, ...]
    window: TimeWindow | None
    party: str

    @property
    def state_count(self) -> int:
        """Inputs and references together: the unit of the backpressure estimate."""
        return len(self.inputs) + len(self.references)


class Submission(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A signed request, on its way to the log, and the command it was submitted under, which was signed as well.

    `request` holds the canonical bytes, verbatim as signed. The texts are bounded by `check_command` and
    `check_submission_id`; `act_as` is sorted.
    """

    request: bytes
    public_key: PublicKey
    signature: Signature
    user_id: str
    command_id: str
    act_as: tuple[str, ...]
    submission_id: str


def state_ref(tx_id: bytes, index: int) -> bytes:
    """The 36 bytes of one state reference. Raises BadRequest when a part is out of range."""
    if len(tx_id) != TX_ID_BYTES:
        raise BadRequest(f"a transaction id has {TX_ID_BYTES} bytes, not {len(tx_id)}")
    if not 0 <= index <= INDEX_MAX:
        raise BadRequest(f"an output index lies in 0..{INDEX_MAX}, not {index}")
    return tx_id + index.to_bytes(4, "big")


def parse_state_ref(text: str) -> bytes:
    """State reference from its text form, `<64 hexadecimal digits>:<index>`. Raises BadRequest."""
    tx_id, colon, index = text.partition(":")
    if colon and len(tx_id) == 2 * TX_ID_BYTES and index.isascii() and index.isdecimal() and len(index) <= 10:
        try:
            ref = bytes.fromhex(tx_id) + int(index).to_bytes(4, "big")
        except (ValueError, OverflowError):
            ref = b""
        if len(ref) == STATE_REF_BYTES:  # `fromhex` skips spaces
            return ref
    raise BadRequest(f"a state is '<64 hexadecimal digits>:<index 0..{INDEX_MAX}>', not {text[:90]!r}")


def parse_ledger_id(text: str) -> bytes:
    """Ledger id from 32 hexadecimal digits. Raises BadRequest."""
    return _parse_hex("a ledger id", text, LEDGER_ID_BYTES)


def parse_tx_id(text: str) -> bytes:
    """Transaction id from 64 hexadecimal digits. Raises BadRequest."""
    return _parse_hex("a transaction id", text, TX_ID_BYTES)


def _parse_hex(name: str, text: str, size: int) -> bytes:
    if len(text) == 2 * size:
        try:
            found = bytes.fromhex(text)
        except ValueError:
            found = b""
        if len(found) == size:
            return found
    raise BadRequest(f"{name} is {2 * size} hexadecimal digits, not {text[:70]!r}")


def format_state_ref(ref: bytes) -> str:
    """The text form that `parse_state_ref` reads."""
    return f"{ref[:TX_ID_BYTES].hex()}:{int.from_bytes(ref[TX_ID_BYTES:], 'big')}"


def make_request(
    tx_id: bytes,
    inputs: list[bytes],
    references: list[bytes],
    window: TimeWindow | None,
    party: str,
    *,
    ledger_id: bytes,
) -> Request:
    """A request in canonical order from parts in any order. Raises BadRequest naming the rule that is broken."""
    sorted_inputs, sorted_references = tuple(sorted(inputs)), tuple(sorted(references))
    request = Request(ledger_id, tx_id, sorted_inputs, sorted_references, window, party)
    check_request(request)
    return request


def check_request(request: Request) -> None:
    """Enforce every rule of the format; a request that passes has exactly one canonical encoding. Raises BadRequest."""
    if len(request.ledger_id) != LEDGER_ID_BYTES:
        raise BadRequest(f"a ledger id has {LEDGER_ID_BYTES} bytes, not {len(request.ledger_id)}")
    if len(request.tx_id) != TX_ID_BYTES:
        raise BadRequest(f"a transaction id has {TX_ID_BYTES} bytes, not {len(request.tx_id)}")
    if request.tx_id.endswith(DERIVED):
        raise BadRequest("a transaction id that ends in '/derived' is kept for ids that are derived from their content")
    if request.state_count >= STATES_LIMIT:
        raise BadRequest(f"{request.state_count} states, the limit is {STATES_LIMIT - 1}", Code.TOO_MANY_STATES)
    _check_refs("inputs", request.inputs)
    _check_refs("references", request.references)
    if request.references and not set(request.references).isdisjoint(request.inputs):
        raise BadRequest("a state is both an input and a reference")
    if request.window is not None:
        _check_window(request.window)
    check_party(request.party)


def check_party(party: str) -> None:
    """Bound the name of a party, in any field that has one. Raises BadRequest."""
    _check_text("party", party, PARTY_MAX_BYTES)


def check_user_id(user_id: str) -> None:
    """Bound the name of the submitting user. Raises BadRequest."""
    _check_text("user_id", user_id, ID_MAX_BYTES)


def check_note(name: str, text: str) -> None:
    """Bound a text that an operator wrote. Raises BadRequest."""
    _check_text(name, text, NOTE_MAX_BYTES)


def check_submission_id(submission_id: str) -> None:
    """Bound the id of a submission. Raises BadRequest."""
    _check_text("submission_id", submission_id, ID_MAX_BYTES)


def check_command(user_id: str, command_id: str, act_as: tuple[str, ...]) -> None:
    """Bound the texts of a command. Raises BadRequest."""
    check_command_id(command_id)
    check_actors(user_id, act_as)


def check_command_id(command_id: str) -> None:
    """Bound the id of a command. Raises BadRequest."""
    _check_text("command_id", command_id, ID_MAX_BYTES)


@lru_cache(1_024)  # few users have most commands; what is refused is not kept
def check_actors(user_id: str, act_as: tuple[str, ...]) -> None:
    """Bound the names of who submits a command and of the parties that act. Raises BadRequest."""
    check_user_id(user_id)
    if not 1 <= len(act_as) <= ACT_AS_MAX:
        raise BadRequest(f"act_as names 1 to {ACT_AS_MAX} parties, not {len(act_as)}")
    for party in act_as:
        _check_text("act_as", party, PARTY_MAX_BYTES)
    if len(act_as) > 1 and len(set(act_as)) != len(act_as):
        raise BadRequest("act_as names a party twice")


def _check_refs(name: str, refs: tuple[bytes, ...]) -> None:
    previous = b""
    for ref in refs:
        if len(ref) != STATE_REF_BYTES:
            raise BadRequest(f"{name}: a state reference has {STATE_REF_BYTES} bytes, not {len(ref)}")
        if ref <= previous:
            problem = "named twice" if ref == previous else "out of canonical order"
            raise BadRequest(f"{name}: {format_state_ref(ref)} is {problem}")
        previous = ref


def _check_window(window: TimeWindow) -> None:
    if window.from_us is None and window.until_us is None:
        raise BadRequest("a time window has at least one end")
    for end_us in (window.from_us, window.until_us):
        if end_us is not None and not 0 <= end_us <= TIME_MAX_US:
            raise BadRequest("a time window's ends lie between 1970 and the largest 64-bit count of microseconds")
    if window.from_us is not None and window.until_us is not None and window.from_us >= window.until_us:
        raise BadRequest("a time window starts before it ends")


def _check_text(name: str, text: str, max_bytes: int) -> None:
    """Refuse text that is too long or cannot be printed, by a fixed list of characters.

    Readers of the log decide with this function what is void, so its result must not depend on the interpreter. Outside
    ASCII, `str.isprintable` depends on the Unicode version of the Python release.
    """
    if text.isascii() and text.isprintable() and 0 < len(text) <= max_bytes:
        return  # the usual case, judged without encoding
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadRequest(f"{name} is not valid Unicode text") from None
    if not 0 < size <= max_bytes:
        raise BadRequest(f"{name} has 1 to {max_bytes} bytes, not {size}")
    if _UNPRINTABLE.search(text):
        raise BadRequest(f"{name} has a character that cannot be printed")
