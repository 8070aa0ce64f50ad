"""The published contract: made from the routes, the types and the codes, so that none of them can drift apart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import aiohttp
import msgspec
import pytest

from ledger_api.server.asyncapi import make_asyncapi
from ledger_api.server.contract import ASYNCAPI, DOCS, ERRORS, OPENAPI
from ledger_api.server.openapi import problems_of
from ledger_api.server.routes import RouteTable
from ledger_api.wire import stream_frames
from replica.notary.catalogue import CatalogueDocument, Category, catalogue, category
from replica.notary.codes import Code, Retry
from tests.tokens import AUDIENCE, Issuer
from tests.worlds.api_world import ApiWorld, StubParticipant


async def get(world: ApiWorld, path: str) -> tuple[str, bytes]:
    """Content type and body of a document that the API serves."""
    async with aiohttp.ClientSession() as session, session.get(world.endpoint + path) as answer:
        assert answer.status == 200
        return answer.headers["Content-Type"], await answer.read()


async def test_what_is_served_is_what_is_described(tmp_path: Path) -> None:
    """Goal: no route without its description. Method: each route of a running API, in what it serves."""
    async with ApiWorld(StubParticipant()).serve() as world:
        kind, body = await get(world, OPENAPI)
    document = msgspec.json.decode(body)
    assert kind == "application/json"
    assert document["openapi"] == "3.1.0"
    routes: RouteTable = world.api.routes
    assert {route.path: [route.method.lower()] for route in routes} == {
        path: list(methods) for path, methods in document["paths"].items()
    }
    assert all(route.path.startswith("/v1/") for route in routes)
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert references_of(document) <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    for route in routes:
        described = document["paths"][route.path][route.method.lower()]
        assert {str(code.status) for code in problems_of(route)} <= set(described["responses"])


@pytest.mark.parametrize("asks", [True, False])
async def test_a_replica_says_whether_it_asks_for_tokens(tmp_path: Path, asks: bool) -> None:
    """Goal: the document is of this replica. Method: with tokens and without; what describes the notary needs none."""
    tokens = {"keys_file": Issuer().write(tmp_path / "keys.json"), "audience": AUDIENCE} if asks else None
    async with ApiWorld(StubParticipant(), tokens=tokens).serve() as world:
        _, body = await get(world, OPENAPI)
    paths = msgspec.json.decode(body)["paths"]
    assert paths["/v1/notary"]["get"]["security"] == [{}]
    assert paths["/v1/submissions"]["post"]["security"] == ([] if asks else [{}]) + [{"token": []}]


async def test_every_code_is_of_some_call(tmp_path: Path) -> None:
    """Goal: no answer has a code that the specification denies. Method: all codes but those that are of no one call."""
    async with ApiWorld(StubParticipant()).serve() as world:
        described = {code for route in world.api.routes for code in problems_of(route)}
    in_streams = {Code.WINDOW_EXCEEDED, Code.READER_TOO_SLOW}
    of_no_call = {Code.ROUTE_NOT_FOUND, Code.METHOD_NOT_ALLOWED}
    assert {code for code in Code if code.status} - described == in_streams | of_no_call


async def test_the_served_catalogue_is_the_code(tmp_path: Path) -> None:
    """Goal: every code a client can meet is published, with what to do. Method: the served document, entry by entry."""
    async with ApiWorld(StubParticipant()).serve() as world:
        _, body = await get(world, ERRORS)
    entries = msgspec.json.decode(body, type=CatalogueDocument).codes
    assert [entry.code for entry in entries] == [code.name for code in Code if code.status]
    for entry in entries:
        code = Code[entry.code]
        assert (entry.status, entry.retry, entry.title, entry.remedy) == (
            code.status,
            code.retry,
            code.title,
            code.remedy,
        )


async def test_the_page_has_every_call_and_code_and_loads_nothing(tmp_path: Path) -> None:
    """Goal: a page that works without a network. Method: look for each call and code; one script
    of its own is loaded, and nothing else."""
    async with ApiWorld(StubParticipant()).serve() as world:
        kind, body = await get(world, DOCS)
        paths = [route.path for route in world.api.routes]
    page = body.decode()
    assert kind.startswith("text/html")
    assert all(f"<code>{path}</code>" in page for path in paths)
    assert all(f'id="{entry.code}"' in page for entry in catalogue().codes)
    assert re.findall(r"<script[^>]*>", page) == ['<script src="/v1/docs.js">']
    assert page.count("src=") == 1
    assert "http://" not in page
    assert "https://" not in page


async def test_streams_and_log_are_described(tmp_path: Path) -> None:
    """Goal: one document for streams and the log. Method: each message refers to a schema; each stream is a route."""
    async with ApiWorld(StubParticipant()).serve() as world:
        _, body = await get(world, ASYNCAPI)
        routes = list(world.api.routes)
        paths = {route.path for route in routes if route.about.lines is not None or 101 in route.about.answers}
    document = msgspec.json.decode(body)
    assert document == msgspec.json.decode(msgspec.json.encode(make_asyncapi("0.0.0")))
    streams = {channel["address"].partition("?")[0] for channel in document["channels"].values()} - {"{topic}"}
    assert streams == paths
    known = {f"#/components/{kind}/{name}" for kind, named in document["components"].items() for name in named}
    for name, channel in document["channels"].items():
        known |= {f"#/channels/{name}", *(f"#/channels/{name}/messages/{message}" for message in channel["messages"])}
    assert references_of(document) <= known


def test_the_frames_of_the_stream_are_those_that_are_described() -> None:
    """Goal: both ways of the stream of submissions are there. Method: its messages against the frames' own types."""
    document = make_asyncapi("0.0.0")
    messages = set(document["channels"]["submissions"]["messages"])
    assert messages == {kind.__name__ for kind in (stream_frames.Submissions, *get_args(stream_frames.FromServer))}
    ways = [document["operations"][name] for name in ("submit", "answer")]
    assert [way["action"] for way in ways] == ["receive", "send"]
    told = {reference["$ref"].rpartition("/")[2] for way in ways for reference in way["messages"]}
    assert told == messages


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_the_category_says_who_can_do_something(code: Code) -> None:
    """Goal: a client may act on the category alone. Method: it agrees with status and retry of each code."""
    match category(code):
        case Category.OPERATOR:
            assert code.status == 0
        case Category.NOT_NOW | Category.INTERNAL:
            assert code.retry is Retry.SAME
        case _:
            assert code.retry is Retry.NO


def references_of(document: Any) -> set[str]:
    """Every `$ref` in a document."""
    match document:
        case dict():
            own = {document["$ref"]} if isinstance(document.get("$ref"), str) else set()
            return own.union(*(references_of(value) for value in document.values()))
        case list():
            return set().union(*(references_of(value) for value in document))
        case _:
            return set()
