"""Calls, the routes that answer them, and their description in the published specification.

A route cannot be made without its `About`, so every route that is served is described.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple, cast

import msgspec
from aiohttp import web

from ledger_api.server.authorisation import Caller, holder_of
from ledger_api.server.progress import Progress
from ledger_api.server.replies import Reply
from replica.notary.codes import Code


class Right(Enum):
    """What a token must grant. In an API without tokens every caller has every right."""

    NONE = "none"  # anybody who may connect
    ACT = "act"  # submit for the parties that the call names
    READ = "read"  # see what concerns the caller and its parties


class Parameter(NamedTuple):
    """A parameter of the query or of the path. `schema` is JSON Schema; `repeated`: may be given several times."""

    name: str
    description: str
    schema: Mapping[str, object]
    repeated: bool = False


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a route in the specification.

    `answers` has the type of each success by HTTP status (None: no JSON), `codes` the problems beyond those that every
    route may have, `body` the type of a POST's JSON, `lines` the type of a line when the answer may be a stream.
    `progress`: a caller that accepts lines gets estimates before its answer.
    """

    summary: str
    answers: Mapping[int, object]
    right: Right
    codes: tuple[Code, ...] = ()
    body: object = None
    argument: Parameter | None = None
    parameters: tuple[Parameter, ...] = ()
    lines: object = None
    progress: bool = False


class Call(NamedTuple):
    """One HTTP request that was read: correlation id, path argument, query, body, caller, and interim estimates."""

    request_id: str
    argument: str
    query: str
    body: bytes
    request: web.BaseRequest
    caller: Caller
    progress: Progress

    @property
    def holder(self) -> Hashable:
        """The holder that is charged for the bytes of this call: see `holder_of`."""
        return holder_of(self.caller, self.request.protocol)


class Route(NamedTuple):
    """One path of the API, which may have one `{argument}`. The path is its name in the metrics, too."""

    method: str
    path: str
    answer: Callable[[Call], Awaitable[Reply]]
    about: About


class Found(NamedTuple):
    """The route of a request, and what the path names."""

    route: Route
    argument: str = ""


class RouteTable:
    """All routes of the API, found by path. Whether the method fits is for the caller to check."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_path = {route.path: route for route in routes}
        self._posts = {route.path: Found(route) for route in self if route.method == "POST"}
        self._router = web.UrlDispatcher()
        for route in self:
            self._router.add_route("*", _pattern(route), _answered_by_api)

    def __iter__(self) -> Iterator[Route]:
        return iter(self._by_path.values())

    async def find(self, request: web.BaseRequest) -> Found | None:
        """The route of a request; None when there is none at its path.

        A submission is found by one look-up of its path as it came; aiohttp's router would cost some µs.
        """
        post = self._posts.get(request.raw_path)
        if post is not None:
            return post
        match = await self._router.resolve(cast(web.Request, request))  # of a request it reads method and URL only
        if match.http_exception is not None or match.route.resource is None:
            return None
        route = self._by_path[match.route.resource.canonical]
        argument = route.about.argument
        return Found(route, "" if argument is None else match[argument.name])


def _pattern(route: Route) -> str:
    """The path as the router takes it. An argument may be empty: the call itself refuses it, with a better error."""
    argument = route.about.argument
    return route.path if argument is None else route.path.replace(f"{{{argument.name}}}", f"{{{argument.name}:[^/]*}}")


async def _answered_by_api(_: web.Request) -> web.StreamResponse:
    raise NotImplementedError("the router only finds routes; `Api` answers them")
