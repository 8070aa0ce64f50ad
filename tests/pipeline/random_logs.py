"""Random request logs, dense with everything that makes judging hard: few ids and states, so that they collide."""

from __future__ import annotations

from hypothesis import strategies as st

from replica.notary.genesis import NO_LEDGER
from replica.notary.records import RegistrationRecord, SignOfLifeRecord, encode_record, request_record
from replica.notary.requests import TIME_MAX_US, Submission, TimeWindow, make_request, state_ref
from replica.notary.terms import FOR_EVER_US, Terms, encode_canonical
from tests.worlds.beginning import LEDGER, OFFICER, OTHER_LEDGER, beginning, next_barrier
from tests.worlds.notary_logs import strange_bytes

ACTIVATIONS = [bytes([number]) * 16 for number in (0, 1, 2)] + [bytes(15) + b"\1", b"\1" + bytes(15)]
IDS = st.sampled_from([ACTIVATIONS[1]] * 10 + ACTIVATIONS)  # so that most of what comes counts
TX_IDS = [bytes([number]) * 32 for number in range(5)] + [b"\7" * 24 + bytes(8)]
STATES = [state_ref(tx_id, index) for tx_id in TX_IDS[:4] for index in (0, 1, 256)]
PARTIES = ["O=Bank A,L=London,C=GB", "O=Bänk,L=Zürich,C=CH", "O=A"]
KEY, OTHER_KEY = b"k" * 32, b"q" * 32  # nearly all requests are signed with the first
PERIODS = st.sampled_from([(0, TIME_MAX_US)] * 9 + [(3, 8), (5, TIME_MAX_US), (0, 6), (4, 4)])
TIMES = st.integers(0, 12)
SEQUENCES = st.one_of(st.integers(0, 6), st.integers(0, 2**63 - 1))
TEXTS = st.sampled_from(["alice", "x" * 31, "y" * 255, "Ünïcode", "tilde~", "two words"])


def barriers() -> st.SearchStrategy[bytes]:
    """A few epochs and activation ids: some are in force, some void, some repeats."""
    return st.builds(next_barrier, st.integers(1, 5), IDS)


@st.composite
def beginnings(draw: st.DrawFn) -> list[bytes]:
    """As ledgers begin, with the keys of all parties or of some, for ever or a while; then an activation, mostly."""
    parties = draw(st.sampled_from([PARTIES, PARTIES, PARTIES[:1], PARTIES[1:], []]))
    keys = [(party, KEY, *draw(PERIODS)) for party in parties]
    return [*beginning(OFFICER, *keys), *draw(st.lists(barriers(), min_size=1, max_size=2))]


@st.composite
def registrations(draw: st.DrawFn) -> bytes:
    """Of a key late, of another one, or a revocation; by an officer or a stranger; what was signed before, or not."""
    by = draw(st.sampled_from([OFFICER.public_key] * 3 + [b"stranger" * 4]))
    of = (draw(st.sampled_from(PARTIES)), draw(st.sampled_from([KEY, KEY, OTHER_KEY])), draw(st.integers(0, 2)))
    return encode_record(
        RegistrationRecord(2, *draw(_head()), draw(TIMES), *of, *draw(PERIODS), "officer", by, b"s" * 64)
    )


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A submission, more often than not in conflict with others, outside its window or repeated."""
    states = draw(st.lists(st.sampled_from(STATES), unique=True, max_size=5))
    inputs_n = draw(st.integers(0, len(states)))
    window = draw(st.sampled_from([None, None, None, "from", "until", "both"]))
    start, length = draw(TIMES), draw(st.integers(1, 6))
    windows = {
        None: None,
        "from": TimeWindow(start, None),
        "until": TimeWindow(None, start),
        "both": TimeWindow(start, start + length),
    }
    request = make_request(
        draw(st.sampled_from(TX_IDS)),
        states[:inputs_n],
        states[inputs_n:],
        windows[window],
        draw(st.sampled_from(PARTIES)),
        ledger_id=draw(st.sampled_from([LEDGER] * 11 + [OTHER_LEDGER, NO_LEDGER])),
    )
    acting = draw(st.sampled_from([(PARTIES[0],), (PARTIES[1],), (PARTIES[0], PARTIES[2]), tuple("abcdefghijklmnop")]))
    user, command = draw(TEXTS), draw(TEXTS)
    period_us, signed = draw(_terms())
    canonical = encode_canonical(request, Terms(user, command, tuple(sorted(acting)), **signed))
    if draw(st.integers(0, 15)) == 0:  # a byte that is wrong makes it another request, or none at all
        at = draw(st.integers(0, len(canonical) - 1))
        canonical = canonical[:at] + draw(st.binary(min_size=1, max_size=1)) + canonical[at + 1 :]
    key = draw(st.sampled_from([KEY] * 7 + [OTHER_KEY]))
    submission = Submission(canonical, key, b"s" * 64, user, command, acting, draw(TEXTS))
    return encode_record(
        request_record(
            draw(st.sampled_from([2, 2, 2, 2, 2, 2, 2, 1])),
            *draw(_head()),
            draw(TIMES),
            submission,
            period_us,
        )
    )


@st.composite
def _terms(draw: st.DrawFn) -> tuple[int, dict[str, int]]:
    """A record's period, and what was signed of it; nearly all agree."""
    period_us = draw(st.sampled_from([0, 1, 3, FOR_EVER_US]))
    named: dict[str, int] = draw(
        st.sampled_from([{}, {"deduplication_us": period_us}, {"ledger_offset": draw(st.integers(0, 40))}])
    )
    if ("ledger_offset" in named) == (draw(st.integers(0, 15)) > 0):
        period_us = FOR_EVER_US
    return period_us, named


@st.composite
def signs_of_life(draw: st.DrawFn) -> bytes:
    """Only the sequence number matters."""
    return encode_record(SignOfLifeRecord(2, *draw(_head()), draw(TIMES)))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Bytes that are no record, or only nearly."""
    value = draw(st.one_of(requests(), barriers(), registrations(), signs_of_life()))
    match draw(st.sampled_from(["cut", "longer", "flip", "empty", "noise"])):
        case "cut":
            return value[: draw(st.integers(0, len(value) - 1))]
        case "longer":
            return value + b"\0"
        case "flip":
            at = draw(st.integers(0, len(value) - 1))
            return value[:at] + bytes([value[at] ^ draw(st.integers(1, 255))]) + value[at + 1 :]
        case "empty":
            return b""
    return draw(strange_bytes(80))


@st.composite
def logs(draw: st.DrawFn, max_size: int = 40) -> list[bytes]:
    """The values of a log, from offset 0; it nearly always begins as a ledger does."""
    values = draw(beginnings()) if draw(st.integers(0, 9)) else []
    length = draw(st.sampled_from([0, 5, max_size // 2, max_size]))
    of = draw(st.lists(st.sampled_from(_KINDS), min_size=length, max_size=length))
    return values + [draw(kind()) for kind in of]


_KINDS = [*[requests] * 7, *[registrations] * 2, barriers, signs_of_life, damaged]


def _head() -> st.SearchStrategy[tuple[bytes, int]]:
    return st.tuples(IDS, SEQUENCES)


def chain() -> list[bytes]:
    """A{x} B{x,y} C{y}: B loses x to A, so y is C's."""
    states = [[STATES[0]], STATES[:2], [STATES[1]]]
    values = [*beginning(OFFICER, (PARTIES[0], KEY)), next_barrier(2, ACTIVATIONS[1])]
    for number, inputs in enumerate(states):
        request = make_request(TX_IDS[number], inputs, [], None, PARTIES[0], ledger_id=LEDGER)
        canonical = encode_canonical(request, Terms("alice", f"c{number}", (PARTIES[0],)))
        submission = Submission(canonical, KEY, b"s" * 64, "alice", f"c{number}", (PARTIES[0],), "s")
        values.append(encode_record(request_record(2, ACTIVATIONS[1], number, number, submission, 0)))
    return values
