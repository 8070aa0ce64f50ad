"""Logs with officers and registrations."""

from __future__ import annotations

from hypothesis import strategies as st

from replica.notary.parties import encode_officers
from tests.worlds.notary_logs import CLIENT_KEY, FOR_EVER, PARTY, Log, LogMaker, request_of, requests

OTHER_PARTY = "O=Bank B,L=Paris,C=FR"
OFFICER_KEYS = [bytes([number]) * 32 for number in (1, 2, 3)]


def told_log() -> Log:
    """A key is registered late, used and revoked; its registration is played again; a command is
    retried; a deposed active registers; the key is registered anew."""
    maker, officer = LogMaker(), OFFICER_KEYS[0]
    maker.genesis(officer)
    maker.barrier(1)
    maker.submit(request_of(1, (1,)), command="c1", stamp_us=2)  # not registered yet
    maker.register(PARTY, key=CLIENT_KEY, by=officer, period_us=(0, 50))
    maker.submit(request_of(2, (2,)), command="c2", stamp_us=3)
    maker.register(PARTY, key=CLIENT_KEY, by=officer, period_us=(4, 4))
    maker.submit(request_of(3, (3,)), command="c3", stamp_us=5)  # revoked
    maker.submit(request_of(2, (2,)), command="c2", stamp_us=6)  # a retry: its success
    maker.register(PARTY, key=CLIENT_KEY, by=officer, period_us=(0, 50), before=0)  # played again
    maker.submit(request_of(4, (4,)), command="c4", stamp_us=7)
    late = maker.activation_id
    maker.barrier(2)
    maker.register(PARTY, key=CLIENT_KEY, by=officer, period_us=(0, 49), activation_id=late)
    maker.submit(request_of(5, (5,)), command="c5", stamp_us=8)
    maker.register(PARTY, key=CLIENT_KEY, by=officer, period_us=(0, 40))
    maker.submit(request_of(6, (3,)), command="c6", stamp_us=9)  # what a refused one asked for is free
    return maker.log


@st.composite
def logs_with_parties(draw: st.DrawFn) -> Log:
    """A log with notes of all kinds, of several activations, that begins with a genesis or without one."""
    maker = LogMaker()
    if draw(st.integers(0, 7)):
        maker.genesis(*OFFICER_KEYS[:2])
    maker.barrier(1)
    if draw(st.booleans()):
        maker.register(PARTY, key=CLIENT_KEY, by=OFFICER_KEYS[0])
    for step in draw(st.lists(st.sampled_from(_STEPS), min_size=10, max_size=40)):
        step(draw, maker)
    return maker.log


def _request(draw: st.DrawFn, maker: LogMaker) -> None:
    period_us = draw(st.sampled_from([0, 3, FOR_EVER, FOR_EVER]))
    command = draw(st.sampled_from(["c0", "c1", "c2"]))
    maker.submit(draw(requests()), command=command, stamp_us=draw(st.integers(0, 12)), deduplication_us=period_us)


def _again(draw: st.DrawFn, maker: LogMaker) -> None:
    if maker.submitted:
        request, command = draw(st.sampled_from(maker.submitted[-6:]))
        maker.submit(request, command=command, stamp_us=draw(st.integers(0, 12)))


def _registration(draw: st.DrawFn, maker: LogMaker) -> None:
    ends = draw(
        st.sampled_from([(0, FOR_EVER), (0, FOR_EVER), (0, FOR_EVER), (3, 8), (5, FOR_EVER), (0, 6), (4, 4), (7, 2)])
    )
    key = draw(st.sampled_from([CLIENT_KEY, CLIENT_KEY, CLIENT_KEY, b"p" * 32]))
    party = draw(st.sampled_from([PARTY, PARTY, PARTY, OTHER_PARTY]))
    known = draw(st.sampled_from([None, None, None, 0, 1, 2]))
    maker.register(party, key=key, period_us=ends, by=draw(st.sampled_from(OFFICER_KEYS)), before=known)


def _officers(draw: st.DrawFn, maker: LogMaker) -> None:
    keys = draw(st.lists(st.sampled_from(OFFICER_KEYS), min_size=1, unique=True))
    body = encode_officers(keys)
    bodies = st.sampled_from([body, body, body, body + b"\0", b"", b"\x92\x01\x90", b"\x92\x02" + body[2:], body[:-1]])
    maker.act(
        draw(st.sampled_from(["officers", "officers", "officers", "Officers"])),
        body=draw(bodies),
        replaces=draw(st.integers(0, 4)),
        by=draw(st.sampled_from(OFFICER_KEYS)),
    )


def _genesis(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.genesis(draw(st.sampled_from(OFFICER_KEYS)))  # not the first record, so void


def _barrier(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.barrier(len(maker.values) + 6)


def _copy(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.raw(draw(st.sampled_from(maker.values[-6:])))


_STEPS = [*[_request] * 6, *[_again] * 4, *[_registration] * 4, *[_officers] * 2, _genesis, _barrier, _copy]
