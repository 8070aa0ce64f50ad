"""The API's description, served by the API itself: OpenAPI, streams, error catalogue, and a page of all of them."""

from __future__ import annotations

from functools import cached_property
from importlib.resources import files

import msgspec

from ledger_api.server.asyncapi import make_asyncapi
from ledger_api.server.openapi import Schema, make_openapi
from ledger_api.server.replies import Reply
from ledger_api.server.routes import About, Call, Right, Route, RouteTable
from ledger_api.server.submission_routes import BATCH, STREAM, SUBMISSIONS
from replica.notary.catalogue import CatalogueDocument, catalogue

OPENAPI, ASYNCAPI = "/v1/openapi.json", "/v1/asyncapi.json"
ERRORS, DOCS, DOCS_SCRIPT = "/v1/errors", "/v1/docs", "/v1/docs.js"
_HTML = "text/html; charset=utf-8"
_SCRIPT = "text/javascript; charset=utf-8"
# The page loads its one script, and calls this API; nothing else.
_PAGE_HEADERS = (
    b"Content-Security-Policy: default-src 'none'; script-src 'self'; connect-src 'self';"
    b" style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'\r\n"
    b"Referrer-Policy: no-referrer\r\n"
)


def _about(summary: str, answer: object) -> About:
    return About(summary=summary, answers={200: answer}, right=Right.NONE)


class Contract:
    """Answers the calls that describe the API. Each document is made when it is first asked for."""

    def __init__(self, version: str, *, asks_for_tokens: bool) -> None:
        self._version = version
        self._asks_for_tokens = asks_for_tokens
        self._described = RouteTable([])

    def describe(self, routes: RouteTable) -> None:
        """Set the routes to describe."""
        self._described = routes

    def routes(self) -> list[Route]:
        """The calls."""
        return [
            Route("GET", OPENAPI, self._answer_openapi, _about("This API as OpenAPI 3.1", "application/json")),
            Route("GET", ASYNCAPI, self._answer_asyncapi, _about("Streams and request log", "application/json")),
            Route("GET", ERRORS, self._answer_errors, _about("The error catalogue", CatalogueDocument)),
            Route("GET", DOCS, self._answer_page, _about("All of this, as a page to read, and to try", _HTML)),
            Route("GET", DOCS_SCRIPT, _answer_script, _about("That page's script", _SCRIPT)),
        ]

    async def _answer_openapi(self, call: Call) -> Reply:
        return Reply(200, self._openapi_json, call.request_id)

    async def _answer_asyncapi(self, call: Call) -> Reply:
        return Reply(200, self._asyncapi_json, call.request_id)

    async def _answer_errors(self, call: Call) -> Reply:
        return Reply(200, self._errors_json, call.request_id)

    async def _answer_page(self, call: Call) -> Reply:
        return Reply(200, self._page, call.request_id, kind=_HTML.encode(), more=_PAGE_HEADERS)

    @cached_property
    def _openapi(self) -> Schema:
        return make_openapi(self._described, self._version, asks_for_tokens=self._asks_for_tokens)

    @cached_property
    def _openapi_json(self) -> bytes:
        return msgspec.json.encode(self._openapi)

    @cached_property
    def _asyncapi_json(self) -> bytes:
        return msgspec.json.encode(make_asyncapi(self._version))

    @cached_property
    def _errors_json(self) -> bytes:
        return msgspec.json.encode(catalogue())

    @cached_property
    def _page(self) -> bytes:
        from jinja2 import Environment  # needed for this one page only

        environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        template = environment.from_string(_file("page.html.j2"))
        api, streams = self._openapi, make_asyncapi(self._version)
        schemas = api["components"]["schemas"] | streams["components"]["schemas"]
        example = _file("example.json")
        return template.render(
            api=api,
            asyncapi=streams,
            schemas=schemas,
            codes=catalogue().codes,
            tried=[route.path for route in self._described if _can_be_tried(route)],
            examples=_examples(example),
            bodies=_bodies(example),
        ).encode()


def _can_be_tried(route: Route) -> bool:
    """Whether a form on the page can make the call: no page, and no WebSocket."""
    pages = [kind for kind in route.about.answers.values() if isinstance(kind, str) and kind.startswith("text/")]
    return not pages and route.path != STREAM


def _bodies(example: str) -> dict[str, str]:
    """A body for each call that takes one."""
    batch = msgspec.json.format(msgspec.json.encode({"submissions": [msgspec.json.decode(example)]}), indent=2).decode()
    paths = {SUBMISSIONS: example, BATCH: batch}
    return paths | {f"{path}/async": body for path, body in paths.items()}


def _examples(example: str) -> dict[str, str]:
    """A value for each argument of a path."""
    request = msgspec.json.decode(example)["request"]
    return {"tx_id": request["tx_id"], "state": request["inputs"][0], "transaction_id": "2.17"}


def _file(name: str) -> str:
    return (files("ledger_api.server") / name).read_text(encoding="utf-8")


async def _answer_script(call: Call) -> Reply:
    return Reply(200, _file("docs.js").encode(), call.request_id, kind=_SCRIPT.encode(), more=_PAGE_HEADERS)
