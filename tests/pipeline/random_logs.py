"""Random request logs, dense with everything that makes judging hard: few ids and states, so that they collide."""

from __future__ import annotations

from hypothesis import strategies as st

from replica.notary.records import (
    BarrierRecord,
    RequestRecord,
    SignOfLifeRecord,
    encode_record,
)
from replica.notary.requests import Submission, TimeWindow, make_request, state_ref
from replica.notary.terms import Terms, encode_canonical
from tests.worlds.notary_logs import strange_bytes

ACTIVATIONS = [bytes([number]) * 16 for number in (0, 1, 2)] + [bytes(15) + b"\1", b"\1" + bytes(15)]
TX_IDS = [bytes([number]) * 32 for number in range(5)] + [b"\7" * 24 + bytes(8)]
STATES = [state_ref(tx_id, index) for tx_id in TX_IDS[:4] for index in (0, 1, 256)]
PARTIES = ["O=Bank A,L=London,C=GB", "O=Bänk,L=Zürich,C=CH", "O=A"]
TIMES = st.integers(0, 12)
SEQUENCES = st.one_of(st.integers(0, 6), st.integers(0, 2**63 - 1))
TEXTS = st.sampled_from(["alice", "x" * 31, "y" * 255, "Ünïcode", "tilde~", "two words"])


def barriers() -> st.SearchStrategy[bytes]:
    """A few epochs and activation ids: some are in force, some void, some repeats."""
    return st.builds(
        BarrierRecord,
        st.integers(1, 5),
        st.sampled_from(ACTIVATIONS),
        st.just("r1"),
        st.just("postgres:1:1"),
        st.just(2),
        st.just(2),
    ).map(encode_record)


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
    )
    acting = draw(st.sampled_from([(PARTIES[0],), (PARTIES[1],), (PARTIES[0], PARTIES[2]), tuple("abcdefghijklmnop")]))
    user, command = draw(TEXTS), draw(TEXTS)
    canonical = encode_canonical(request, Terms(user, command, tuple(sorted(acting))))
    if draw(st.integers(0, 15)) == 0:  # a byte that is wrong makes it another request, or none at all
        at = draw(st.integers(0, len(canonical) - 1))
        canonical = canonical[:at] + draw(st.binary(min_size=1, max_size=1)) + canonical[at + 1 :]
    submission = Submission(canonical, b"k" * 32, b"s" * 64, user, command, acting, draw(TEXTS))
    return encode_record(
        RequestRecord(
            draw(st.sampled_from([2, 2, 2, 2, 2, 2, 2, 1])),
            *draw(_head()),
            draw(TIMES),
            submission,
            draw(st.sampled_from([0, 1, 3, 2**63 - 1])),
            draw(st.integers(-1, 40)),
        )
    )


@st.composite
def signs_of_life(draw: st.DrawFn) -> bytes:
    """Only the sequence number matters."""
    return encode_record(SignOfLifeRecord(2, *draw(_head()), draw(TIMES)))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Bytes that are no record, or only nearly."""
    value = draw(st.one_of(requests(), barriers(), signs_of_life()))
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


def logs(max_size: int = 40) -> st.SearchStrategy[list[bytes]]:
    """The values of a log, from offset 0; it nearly always begins with a barrier."""
    record = st.one_of(requests(), requests(), requests(), requests(), barriers(), signs_of_life(), damaged())
    rest = st.lists(record, max_size=max_size)
    return st.tuples(st.lists(barriers(), max_size=1), rest).map(lambda parts: parts[0] + parts[1])


def _head() -> st.SearchStrategy[tuple[bytes, int]]:
    return st.tuples(st.sampled_from(ACTIVATIONS), SEQUENCES)


def chain() -> list[bytes]:
    """A{x} B{x,y} C{y}: B loses x to A, so y is C's."""
    states = [[STATES[0]], STATES[:2], [STATES[1]]]
    barrier = BarrierRecord(1, ACTIVATIONS[1], "r1", "postgres:1:1", 2, 2)
    values = [encode_record(barrier)]
    for number, inputs in enumerate(states):
        request = make_request(TX_IDS[number], inputs, [], None, PARTIES[0])
        canonical = encode_canonical(request, Terms("alice", f"c{number}", (PARTIES[0],)))
        submission = Submission(canonical, b"k" * 32, b"s" * 64, "alice", f"c{number}", (PARTIES[0],), "s")
        values.append(encode_record(RequestRecord(2, ACTIVATIONS[1], number, number, submission, 0, -1)))
    return values
