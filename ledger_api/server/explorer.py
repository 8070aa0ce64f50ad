"""The ledger explorer: a page that asks this API what its caller may see. It reads only."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from ledger_api.server.replies import Reply
from ledger_api.server.routes import About, Call, Right, Route

EXPLORER = "/v1/explorer"
_KINDS = {
    EXPLORER: ("explorer.html", "text/html; charset=utf-8", "The ledger explorer, a page for people"),
    f"{EXPLORER}.js": ("explorer.js", "text/javascript; charset=utf-8", "The ledger explorer's script"),
    f"{EXPLORER}.css": ("explorer.css", "text/css; charset=utf-8", "The ledger explorer's style sheet"),
}
_HEADERS = (
    b"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    b" frame-ancestors 'none'; base-uri 'none'; form-action 'none'\r\n"
    b"Referrer-Policy: no-referrer\r\n"
)


def explorer_routes() -> list[Route]:
    """The page and its two files. They have no data, so they need no token; what the page asks for does."""
    return [
        Route("GET", path, _answer, About(summary=summary, answers={200: kind}, right=Right.NONE))
        for path, (_, kind, summary) in _KINDS.items()
    ]


async def _answer(call: Call) -> Reply:
    name, kind, _ = _KINDS[call.request.path]
    return Reply(200, _content(name), call.request_id, kind=kind.encode(), more=_HEADERS)


@cache
def _content(name: str) -> bytes:
    return (files("ledger_api.server") / name).read_bytes()
