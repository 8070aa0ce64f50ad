"""What a call is, what answers it, and what the published specification says of it.

A route cannot be made without its `About`: what is served is what is described.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

import msgspec
from aiohttp import web

from ledger_api.server.entitlement import Caller, holder_of
from ledger_api.server.http import Reply
from ledger_api.server.interim import Estimates
from replica.notary.errors import Code


class Right(Enum):
    """What a token must grant; without tokens everybody has every right."""

    NONE = "none"  # anybody who may connect
    ACT = "act"  # submit for the parties that the call names
    READ = "read"  # see what concerns the caller and its parties


class Parameter(NamedTuple):
    """A parameter of the query, or what the path names. `schema` is JSON Schema; `repeated`: may be given often."""

    name: str
    description: str
    schema: Mapping[str, object]
    repeated: bool = False


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What the specification says of a route.

    `answers` has the type of each success by HTTP status (None: no JSON), `codes` the problems beyond those that every
    route may have, `body` the type of a POST's JSON, `lines` the type of a line when the answer may be a stream.
    `interim`: a caller that accepts lines is told estimates before its answer.
    """

    summary: str
    answers: Mapping[int, object]
    right: Right
    codes: tuple[Code, ...] = ()
    body: object = None
    argument: Parameter | None = None
    parameters: tuple[Parameter, ...] = ()
    lines: object = None
    interim: bool = False


class Call(NamedTuple):
    """One HTTP request, read: its correlation id, what the path names, its query, its body, who calls, and what the
    caller is told before the answer."""

    request_id: str
    argument: str
    query: str
    body: bytes
    request: web.BaseRequest
    caller: Caller
    estimates: Estimates

    @property
    def holder(self) -> Hashable:
        """Who answers for what is held for this call: a user, or the connection of whoever has no name."""
        return holder_of(self.caller, self.request.protocol)


class Route(NamedTuple):
    """One path of the API, which may have one `{argument}`. The path is its name in the metrics, too."""

    method: str
    path: str
    answer: Callable[[Call], Awaitable[Reply]]
    about: About


class RouteTable:
    """All routes of the API, found by path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)
        self._exact = {route.path: route for route in self._routes if route.about.argument is None}
        self._named: dict[str, dict[str, Route]] = {}  # by what is before the argument, and by what is behind it
        for route in self._routes:
            if route.about.argument is not None:
                before, _, behind = route.path.partition("{" + route.about.argument.name + "}")
                self._named.setdefault(before, {})[behind] = route

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def find(self, raw_path: str) -> tuple[Route | None, str, str]:
        """The route, what the path names (all of it without a route), and the query."""
        route = self._exact.get(raw_path)
        if route is not None:
            return route, "", ""
        path, _, query = raw_path.partition("?")
        for before, routes in self._named.items():
            if path.startswith(before):
                argument, slash, rest = path[len(before) :].partition("/")
                route = routes.get(slash + rest)
                return route, path if route is None else argument, query
        return self._exact.get(path), path, query
