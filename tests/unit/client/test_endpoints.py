"""Connection strings, and which endpoint a client uses: no I/O."""

from __future__ import annotations

import random

import pytest

from ledger_api.client.endpoints import ENDPOINTS_MAX, Endpoints, parse_endpoints, turns, usable
from ledger_api.client.lookout import newest_active
from ledger_api.wire.answers import NotaryDocument
from ledger_api.wire.endpoints import EndpointDocument, EndpointsDocument
from replica.notary.errors import ConfigError

A, B, C = "https://a:8080", "https://b:8080", "https://c:8080"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("https://a:8080", (A,)),
        ("https://a:8080/", (A,)),
        ("https://a:8080,b:8080,c:8080/", (A, B, C)),
        ("https://a:8080,b:8080/notary/", (f"{A}/notary", f"{B}/notary")),
        ("http://127.0.0.1:1,[::1]:2", ("http://127.0.0.1:1", "http://[::1]:2")),
        ([A, f"{B}/"], (A, B)),
        ((A,), (A,)),
    ],
)
def test_a_connection_string_names_its_endpoints(given: str | list[str], found: tuple[str, ...]) -> None:
    """Goal: one documented form. Method: one, several, with a path, by number, as a list."""
    assert parse_endpoints(given) == found


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "is not like"),
        ([], "no endpoint is given"),
        ("a:8080,b:8080", "is not like"),
        ("https://a:8080,https://b:8080", "is not like|is no host"),
        ("https://a:8080,,b:8080", "is no host with a port"),
        ("https://a:8080,", "is no host with a port"),
        ("https://a:8080, b:8080", "is not like"),
        ("https://a:8080,b:", "is no host with a port"),
        ("https://a:8080,b:http", "is no host with a port"),
        ("https://a:8080,b:70000", "is no host with a port"),
        ("https://a:0", "is no host with a port"),
        (f"https://{64 * 'a'}.com:1", "is no host with a port"),
        ("https://a..b:1", "is no host with a port"),
        ("https://a%40b:1", "is no host with a port"),
        ("https://a\x00b:1", "is no host with a port"),
        ("https://a:8080,a:8080", "given twice"),
        ("https://a:8080?x=1", "is not like"),
        ("https://a:8080#x", "is not like"),
        ("https://a:8080\n", "is not like"),
        ("ftp://a:8080", "is not like"),
        ([A, "http://b:8080"], "all endpoints have http, or all of them https"),
        ([A, "https://b:8080,c:8080"], "each text is one endpoint"),
        ([f"https://h{n}:1" for n in range(ENDPOINTS_MAX + 1)], "at most 16"),
    ],
)
def test_a_mistake_is_named(given: str | list[str], why: str) -> None:
    """Goal: nothing is guessed. Method: each mistake alone."""
    with pytest.raises(ConfigError, match=why):
        parse_endpoints(given)


def test_no_error_repeats_a_password() -> None:
    """Goal: a secret in the wrong place does not get into logs. Method: user and password before a host."""
    with pytest.raises(ConfigError, match="no user and no password") as refused:
        parse_endpoints("https://a:8080,user:secret@b:8080")
    assert "secret" not in str(refused.value)


def test_one_stays_in_use_until_it_fails() -> None:
    """Goal: calls that fail together turn once. Method: two report the same failed endpoint."""
    endpoints = Endpoints([A, B, C])
    assert (endpoints.current, endpoints.several) == (A, True)
    endpoints.turn_from(A)
    endpoints.turn_from(A)
    assert endpoints.current == B
    assert endpoints.from_current == (B, C, A)
    endpoints.prefer("https://elsewhere")
    assert endpoints.current == B
    endpoints.prefer(A)
    assert endpoints.current == A
    assert not Endpoints(A).several


@pytest.mark.parametrize("seed", range(200))
def test_a_round_asks_each_once_and_ends(seed: int) -> None:
    """Goal: no endless turning without a pause, however calls and lists interleave. Method: several callers and lists
    in random order; each round of each caller is bounded by what is known."""
    drawn = random.Random(seed)
    endpoints = Endpoints([A, B, C])
    rounds: list[set[str]] = [set() for _ in range(4)]
    for _ in range(200):
        if drawn.random() < 0.1:
            endpoints.take_list(drawn.sample(["https://d:1", "https://e:1"], drawn.randrange(3)))
        asked = drawn.choice(rounds)
        failed, before = endpoints.current, set(asked)
        if endpoints.next_of_round(failed, asked):
            assert endpoints.current not in asked
            assert asked == before | {failed}
        else:
            assert not asked
        assert len(asked) <= 5
        assert endpoints.current in endpoints.known
        assert endpoints.known[:3] == (A, B, C)


def test_a_single_endpoint_is_never_new() -> None:
    """Goal: with one endpoint every failure is followed by the policy's pause. Method: two failures."""
    endpoints, asked = Endpoints(A), set[str]()
    assert not endpoints.next_of_round(A, asked)
    assert not endpoints.next_of_round(A, asked)


def listed(*urls: str, live: bool = True) -> EndpointsDocument:
    return EndpointsDocument(
        replica="r1", endpoints=[EndpointDocument(url=url, role="passive", live=live) for url in urls]
    )


def test_a_list_adds_live_endpoints_of_the_same_scheme() -> None:
    """Goal: nobody is led to plain HTTP, or to nonsense. Method: each kind of entry."""
    told = listed(
        "https://d:1", A, "http://d:1", "https://d:1", "https://user@d:1", "https://e:1/x?y", "", "https://f:1"
    )
    assert usable(told, [A, B], with_token=True) == ("https://d:1", "https://f:1")
    assert usable(listed("https://d:1", live=False), [A], with_token=False) == ()
    many = listed(*[f"https://h{n}:1" for n in range(100)])
    assert len(usable(many, [A], with_token=False)) == ENDPOINTS_MAX - 1  # with those that were given


def test_a_list_over_plain_http_gets_no_token() -> None:
    """Goal: whoever could write the list on its way does not get the token. Method: plain HTTP, with and without."""
    told = listed("http://127.0.0.1:2")
    assert usable(told, ["http://127.0.0.1:1"], with_token=True) == ()
    assert usable(told, ["http://127.0.0.1:1"], with_token=False) == ("http://127.0.0.1:2",)


@pytest.mark.parametrize(
    ("status", "body", "turn"),
    [
        (0, b"nobody takes connections", True),
        (503, b'{"code": "NOT_ACTIVE"}', False),  # no problem document of ours: checked below with a whole one
        (502, b"<html>bad gateway</html>", True),
        (200, b"{}", False),
        (400, b"no", False),
        (404, b"", False),
    ],
)
def test_what_turns(status: int, body: bytes, turn: bool) -> None:
    """Goal: an answer of the active is never taken elsewhere. Method: by status and body."""
    if status == 503:
        body = b'{"type":"t","title":"t","status":503,"detail":"d","code":"OVERLOADED","remedy":"r","retry":"same"}'
        assert turns(503, body.replace(b"OVERLOADED", b"NOT_ACTIVE"))
    assert turns(status, body) is turn


def about(epoch: int, *, active: bool) -> NotaryDocument:
    return NotaryDocument(
        notary_key="", version="", replica="", active=active, epoch=epoch, batch_max=1, body_max_bytes=1
    )


def test_the_newest_active_is_the_one_to_turn_to() -> None:
    """Goal: a deposed replica that has not noticed wins nobody. Method: two say so; one is silent; none."""
    found = {A: about(7, active=True), B: about(8, active=True), C: None}
    assert newest_active(found) == [B]
    assert newest_active({A: about(7, active=False), C: None}) == []


def test_a_balancer_and_the_active_behind_it_are_one() -> None:
    """Goal: what waits at a balancer is not sent again to the replica that it waits for. Method: both say the same."""
    found = {A: about(8, active=True), B: about(8, active=False), C: about(8, active=True)}
    assert newest_active(found) == [A, C]
