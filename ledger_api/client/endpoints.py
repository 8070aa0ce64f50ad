"""The addresses of one notary, and which of them is used now. No I/O: `lookout` and `connection` ask.

A connection string names one endpoint, or several with one scheme: `https://a:8080,b:8080,c:8080/`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus

from yarl import URL

from ledger_api.client.answers import problem_in
from ledger_api.wire.endpoints import EndpointsDocument
from replica.notary.codes import Code
from replica.notary.errors import ConfigError

ENDPOINTS_MAX = 16
_FORM = re.compile(r"(?P<scheme>https?)://(?P<hosts>[^/?#\s]+)(?P<path>(?:/[^/?#\s,]+)*)/?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?)(:\d+)?")
_EXAMPLE = "https://notary.example:8080 or https://a.example:8080,b.example:8080"

Given = str | Sequence[str]
"""A connection string, or a list of them with one endpoint each."""


def parse_endpoints(given: Given) -> tuple[str, ...]:
    """The endpoints as URLs without a final slash, in their order. Raises ConfigError."""
    found = _parse(given) if isinstance(given, str) else tuple([_parse_one(one) for one in given])
    if not found:
        raise ConfigError(f"no endpoint is given; one is like {_EXAMPLE}")
    if len(found) > ENDPOINTS_MAX:
        raise ConfigError(f"{len(found)} endpoints are given, at most {ENDPOINTS_MAX} may be")
    if len(set(found)) != len(found):
        raise ConfigError(f"an endpoint is given twice: {', '.join(found)}")
    if len({URL(one).scheme for one in found}) != 1:
        raise ConfigError(f"all endpoints have http, or all of them https: {', '.join(found)}")
    return found


def _parse_one(given: str) -> str:
    found = _parse(given)
    if len(found) != 1:
        raise ConfigError(f"in a list each text is one endpoint, not {given!r}")
    return found[0]


def _parse(text: str) -> tuple[str, ...]:
    """The endpoints of a connection string. No error repeats a password."""
    if "@" in text:
        raise ConfigError(f"an endpoint has no user and no password; it is like {_EXAMPLE}")
    form = _FORM.fullmatch(text)
    if form is None:
        raise ConfigError(f"the endpoint {text[:300]!r} is not like {_EXAMPLE}: the scheme once, no query")
    return tuple([_url(form["scheme"], host, form["path"]) for host in form["hosts"].split(",")])


def _url(scheme: str, host: str, path: str) -> str:
    text = f"{scheme}://{host}{path}"
    try:
        url = URL(text)
        good = (
            _HOST.fullmatch(host) is not None
            and bool(url.host)
            and url.port not in (None, 0)
            and not host.endswith(":")
        )
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{host[:300]!r} is no host with a port; an endpoint is like {_EXAMPLE}")
    return text


def usable(listed: EndpointsDocument, configured: Sequence[str], *, with_token: bool) -> tuple[str, ...]:
    """The live endpoints of a list that a client may use beside those that it was given.

    Only those of the same scheme; and none over plain HTTP for a client with a token, because anybody on the way could
    have written the list, and would be sent the token.
    """
    scheme = URL(configured[0]).scheme
    if scheme == "http" and with_token:
        return ()
    found: list[str] = []
    for entry in listed.endpoints:
        try:
            (url,) = parse_endpoints([entry.url])
        except ConfigError:
            continue
        if entry.live and URL(url).scheme == scheme and url not in configured and url not in found:
            found.append(url)
    return tuple(found[: ENDPOINTS_MAX - len(configured)])


def turns(status: int, body: bytes) -> bool:
    """Whether to ask the next endpoint at once: there was no answer, none of a notary's, or the replica is passive."""
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return status == 0
    problem = problem_in(body)
    return problem is None or problem.code == Code.NOT_ACTIVE.name


class Endpoints:
    """One stays in use until a call to it fails. Shared by all calls of a client."""

    def __init__(self, given: Given) -> None:
        """Raises ConfigError."""
        self.configured = parse_endpoints(given)
        self._listed: tuple[str, ...] = ()
        self.current = self.configured[0]

    @property
    def several(self) -> bool:
        """Whether there is another one to turn to. One alone is taken as a balanced endpoint, and used alone."""
        return len(self.configured) > 1

    @property
    def known(self) -> tuple[str, ...]:
        """Those that were given, and those that a replica listed."""
        return self.configured + self._listed

    @property
    def from_current(self) -> tuple[str, ...]:
        """All that are known, the one in use first."""
        known = self.known
        place = known.index(self.current)
        return known[place:] + known[:place]

    def turn_from(self, failed: str) -> None:
        """Use the next one. Nothing when another call has turned away from the failed one already."""
        if failed == self.current:
            known = self.known
            self.current = known[(known.index(failed) + 1) % len(known)]

    def next_of_round(self, failed: str, asked: set[str]) -> bool:
        """Turn away from one; whether the next one is new in this round, so that it may be asked without a pause.

        `asked`: those of this round, kept by the caller; empty again once the round is over.
        """
        asked.add(failed)
        self.turn_from(failed)
        if self.current not in asked:
            return True
        asked.clear()
        return False

    def prefer(self, endpoint: str) -> None:
        """Use the endpoint of the replica that is active."""
        if endpoint in self.known:
            self.current = endpoint

    def take_list(self, listed: Sequence[str]) -> None:
        """Replace what was listed before. What was given stays for ever."""
        self._listed = tuple(listed)
        if self.current not in self.known:
            self.current = self.configured[0]
