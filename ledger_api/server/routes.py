"""What a call is, and what answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import web

from ledger_api.server.http import Reply


class Call(NamedTuple):
    """One HTTP request, read: its correlation id, what the path names behind the route, its query, and its body."""

    request_id: str
    argument: str
    query: str
    body: bytes
    request: web.BaseRequest


class Route(NamedTuple):
    """One path of the API. `label` is its name in the metrics; a POST has a JSON body."""

    method: str
    label: str
    answer: Callable[[Call], Awaitable[Reply]]
