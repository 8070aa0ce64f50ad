"""Pages in browsers: by which names they may ask, and from where they may open WebSockets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.notary.web_hosts import WebHosts

HERE = WebHosts()
HEALTH = WebHosts(("R1.example", "notary"), addresses=True)
REBOUND = [
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "",
    ":80",
    "notary.evil",
]


@pytest.mark.parametrize(
    "host", [None, "localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1:1", "127.9.9.9", "[::1]:8080", "[::1]"]
)
def test_loopback_names_are_taken(host: str | None) -> None:
    assert HERE.takes_host(host)
    assert HEALTH.takes_host(host)


@pytest.mark.parametrize("host", REBOUND)
def test_names_of_others_are_not(host: str) -> None:
    assert not HERE.takes_host(host)
    assert not HEALTH.takes_host(host)


def test_configured_names_are_taken_and_addresses_where_they_may() -> None:
    for host in ("r1.example", "r1.EXAMPLE.:8082", "notary", "10.0.0.1:8082", "[2001:db8::1]:8082"):
        assert HEALTH.takes_host(host), host
        assert not HERE.takes_host(host), host


@pytest.mark.parametrize(
    ("origin", "taken"),
    [
        (None, True),
        ("http://localhost:3000", True),
        ("https://r1.example", True),
        ("http://api.example:8080", True),  # the page is the API's own
        ("http://evil.example", False),
        ("http://203.0.113.9", False),  # an address is somebody's as well
        ("null", False),
        ("", False),
    ],
)
def test_websockets_are_opened_by_pages_of_ours(origin: str | None, taken: bool) -> None:
    assert HEALTH.takes_origin(origin, "api.example:8080") == taken


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_has_an_answer(host: str, origin: str) -> None:
    assert HERE.takes_host(host) in (True, False)
    assert HERE.takes_origin(origin, host) in (True, False)
