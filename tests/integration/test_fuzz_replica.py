"""Whatever comes to any socket of a running replica: no process ends, no epoch changes, and every answer is described.

The fields are found by the documents' types, so a new one is fuzzed by itself. Every hostile value goes into every
field; Hypothesis draws further ones, and several at once.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from hypothesis import strategies as st

from ledger_api.server.contract import OPENAPI
from ledger_api.server.submission_routes import ASYNCHRONOUS, ASYNCHRONOUS_BATCH, BATCH, STREAM, SUBMISSIONS
from ledger_api.wire.problems import ProblemDocument
from ledger_api.wire.stream_frames import PROTOCOL, Answers, Closing, FromServer, Rejected, Submissions, Welcome
from ledger_api.wire.submissions import BatchDocument, SubmissionDocument
from replica.config.load import make_config
from replica.config.model import Config
from replica.link.frames import AskLog, FromFrontEnd, Hello, LookUp, Report, Submit
from replica.link.interface import CommitQuestion, TxQuestion
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.operators.admin import (
    PARTIES_PATH,
    PARTY_LIST_PATH,
    PRUNE_PATH,
    STATUS_PATH,
    SWITCHOVER_PATH,
    NotesCall,
    PartyListCall,
    PruneCall,
    SwitchoverCall,
)
from replica.telemetry.counts import ApiCounts, Latency
from tests.drawing import drawn
from tests.integration.fuzz_fields import (
    JSON_VALUES,
    MSGPACK_VALUES,
    Place,
    changed,
    has,
    json_values,
    msgpack_values,
    placed,
    places,
    settings_places,
    twice,
    without,
)
from tests.integration.fuzz_world import FuzzedReplica, HttpAnswer, fuzzed_replica

pytestmark = [pytest.mark.thorough, pytest.mark.cluster]

FEW, MANY = 60, 3_000  # examples of Hypothesis for each document
MANY_MAX_S = 1_800  # for so many in one test
# No sender of nonsense gets the answer that the notary does not know, or is not there.
NEVER = {"INTERNAL", "NOT_ACTIVE", "OUTCOME_UNKNOWN", "FEED_UNAVAILABLE"}
REQUEST_IDS = (
    b"X-Request-Id",
    b"Last-Event-ID",
    b"Accept",
    b"Authorization",
    b"Content-Type",
    b"Expect",
    b"traceparent",
)
_from_server = msgspec.msgpack.Decoder(FromServer)
_problem = msgspec.json.Decoder(ProblemDocument)


@pytest.fixture(scope="module")
def replica(servers_folder: Path) -> Iterator[FuzzedReplica]:
    """A replica of its own, warmed up; it is checked again after the last test."""
    with fuzzed_replica(servers_folder / "fuzzed") as replica:
        for _ in range(200):
            assert replica.post(SUBMISSIONS, msgspec.json.encode(replica.document())).status == 200
        replica.warmed_up()
        yield replica
        replica.check("the end")


@pytest.fixture(
    params=[FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(MANY_MAX_S)])], ids=["few", "many"]
)
def examples(request: pytest.FixtureRequest) -> int:
    """How many documents Hypothesis makes, beside those that are tried always."""
    count: int = request.param
    return count


# ---- HTTP bodies ----


class Described:
    """What the replica reports about itself: which problems each call may answer with."""

    def __init__(self, replica: FuzzedReplica) -> None:
        self.document = msgspec.json.decode(replica.get(OPENAPI.encode()).body)
        self.operations: dict[tuple[str, str], Mapping[str, Any]] = {
            (method.upper(), path): operation
            for path, operations in self.document["paths"].items()
            for method, operation in operations.items()
        }

    def check(self, answer: HttpAnswer, method: str, path: str, case: object) -> None:
        """The answer is one that the specification has for this call."""
        responses = self.operations[method, path]["responses"]
        assert str(answer.status) in responses, (case, answer)
        if answer.status < 400:
            return
        problem = check_problem(answer, case)
        content = responses[str(answer.status)]["content"]["application/problem+json"]["schema"]
        assert problem.code in content["allOf"][1]["properties"]["code"]["enum"], (case, answer)


def check_problem(answer: HttpAnswer, case: object) -> ProblemDocument:
    """It is a problem document of the catalogue, and not one that stands for trouble of the replica's own."""
    assert answer.headers.get("content-type") == "application/problem+json", (case, answer)
    problem = _problem.decode(answer.body)
    assert Code[problem.code].status == problem.status == answer.status, (case, answer)
    assert problem.code not in NEVER, (case, answer)
    assert len(answer.body) < 20_000, (case, answer.body[:2_000])
    return problem


def in_batch(document: Any) -> dict[str, Any]:
    """A batch with a good neighbour on each side is distinguished from one without."""
    return {"submissions": [document]}


BODIES = {
    SUBMISSIONS: (SubmissionDocument, lambda document: document),
    ASYNCHRONOUS: (SubmissionDocument, lambda document: document),
    BATCH: (BatchDocument, in_batch),
    ASYNCHRONOUS_BATCH: (BatchDocument, in_batch),
}


@pytest.mark.parametrize("path", BODIES)
def test_json_bodies(replica: FuzzedReplica, path: str, examples: int) -> None:
    """Goal: no body harms anybody. Method: each hostile text in each field, fields twice, left out, and made up."""
    described = Described(replica)
    assert ("POST", path) in described.operations
    kind, wrap = BODIES[path]
    fields = places(kind)
    assert any(place[-1] == "duration_s" for place in fields)

    def send(case: object, document: Any) -> None:
        answer = replica.post(path, msgspec.json.encode(document))
        described.check(answer, "POST", path, case)
        if answer.status in (200, 202) and kind is BatchDocument:
            for result in msgspec.json.decode(answer.body)["results"]:
                assert result["code"] not in NEVER, (case, result)
                assert result["code"] in ("NOTARISED", "ACCEPTED") or Code[result["code"]], (case, result)
        replica.check_alive(case)

    def put(place: Place, raw: bytes) -> None:
        good = wrap(replica.document())
        bad = changed(good, place, raw)
        send((place, raw[:100]), bad)
        if kind is SubmissionDocument and (again := replica.signed(bad)) is not bad:
            send((place, raw[:100], "signed"), again)

    for place in fields:
        for raw in JSON_VALUES:
            put(place, raw)
        good = wrap(replica.document())
        send((place, "left out"), without(good, place))
        send((place, "made up"), changed(good, (*place[:-1], "made up"), b"1"))
        if has(good, place):
            for raw in (b"null", b"0", b'""', b"[" * 1_000):
                send((place, "twice"), twice(good, place, raw))
        replica.check(place)
    for raw in JSON_VALUES:
        send(raw[:100], msgspec.Raw(raw))

    def several(changes: list[tuple[Place, bytes]]) -> None:
        bad = wrap(replica.document())
        for place, raw in sorted(changes, key=lambda change: len(change[0]), reverse=True):
            bad = bad if isinstance(bad, msgspec.Raw) else changed(bad, place, raw)
        send(changes, bad)

    drawn(st.lists(st.tuples(st.sampled_from(fields), json_values()), min_size=1, max_size=3), examples, several)
    replica.check(path)


# ---- HTTP heads ----

QUERY_VALUES = [
    *(
        b"0",
        b"1",
        b"-1",
        b"1e9",
        b"9223372036854775807",
        b"9223372036854775808",
        5_000 * b"9",
        b"NaN",
        b"1.0",
        b"\xd9\xa1",
    ),
    *(
        b"",
        b" ",
        b"%00",
        b"%",
        b"%zz",
        b"%ff",
        b"%ed%a0%80",
        b"%e2%80%ae",
        b"+",
        b"true",
        b"TRUE",
        b"null",
        b"[]",
        b"{}",
    ),
    *(
        b"a" * 7_000,
        b"a" * 70_000,
        b"\x00",
        b"\x7f",
        b"\xff",
        b"\t",
        b"..%2f..%2f",
        b"a&after=1",
        b"a&a=1",
        b"a;b",
        b"a=b=c",
    ),
    *(
        b"0" * 64,
        b"f" * 64 + b":0",
        b"0" * 64 + b":4294967296",
        b"0" * 64 + b"%3A0",
        b"/" * 100,
        b"#",
        b"?",
        b"??after=0",
    ),
]


def test_paths_queries_and_headers(replica: FuzzedReplica, examples: int) -> None:
    """Goal: no head of a request harms anybody. Method: hostile bytes in each parameter, path and header of a GET."""
    described = Described(replica)

    def call(path: str, target: bytes, headers: bytes = b"") -> None:
        case = (target[:200], headers[:200])
        answer = replica.get(target, headers)
        if answer.status in (0, 101):
            raise AssertionError(f"closed or switched without a word: {case}")
        elsewhere = answer.status == 404 and target.partition(b"?")[0].count(b"/") != path.count("/")
        if elsewhere:
            assert check_problem(answer, case).code == "ROUTE_NOT_FOUND", (case, answer)
        else:
            described.check(answer, "GET", path, case)
        replica.check_alive(case)

    for (method, path), operation in described.operations.items():
        if method != "GET":
            continue
        parameters = operation["parameters"]
        argument = next((p["name"] for p in parameters if p["in"] == "path"), "")
        good = path.replace("{tx_id}", "0" * 64).replace("{state}", "0" * 64 + ":0").encode()
        for value in QUERY_VALUES:
            if argument:
                call(path, path.encode().replace(b"{%b}" % argument.encode(), value))
            for name in (p["name"] for p in parameters if p["in"] == "query"):
                if (name, value) != ("follow", b"true"):  # a stream has no end to wait for
                    call(path, good + b"?" + name.encode() + b"=" + value)
            call(path, good + b"?" + value)
        replica.check(path)
    for name, value in itertools.product(REQUEST_IDS, QUERY_VALUES):
        call("/v1/notary", b"/v1/notary", b"%b: %b\r\n" % (name, value))
        call("/v1/completions", b"/v1/completions", b"%b: %b\r\n" % (name, value))

    heads = st.binary(max_size=60) | st.text(max_size=60).map(lambda text: quote(text).encode())

    def noise(head: bytes) -> None:
        answer = replica.http(b"GET /v1/notary?" + head + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer.status in (0, 200, 400), answer
        answer = replica.http(head + b"\r\nConnection: close\r\n\r\n")
        assert answer.status == 0 or check_problem(answer, head)

    drawn(heads, examples, noise)
    replica.check("heads")


# ---- the stream of submissions ----


def test_stream_frames(replica: FuzzedReplica, examples: int) -> None:
    """Goal: no frame of a stream harms anybody. Method: hostile bytes in each part of a frame, canonical bytes too."""
    fields = places(Submissions)
    assert (3,) in fields  # deduplication_s

    def good() -> list[Any]:
        frame: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(Submissions([(7, replica.submission())])))
        return frame

    async def ask(session: aiohttp.ClientSession, raw: bytes, case: object) -> None:
        url = f"http://{replica.address.host}:{replica.address.api_port}{STREAM}"
        async with asyncio.timeout(20), session.ws_connect(url, protocols=(PROTOCOL,)) as socket:
            assert isinstance(_from_server.decode(await socket.receive_bytes()), Welcome)
            await socket.send_bytes(raw)
            message = await socket.receive()
            assert message.type is aiohttp.WSMsgType.BINARY, (case, message)
            told = _from_server.decode(message.data)
            if isinstance(told, Closing):
                codes = [told.code]
            else:
                assert isinstance(told, Answers), (case, told)
                codes = [getattr(answer, "code", "NOTARISED") for _, answer in told.batch]
                assert all(len(answer.detail) < 2_000 for _, answer in told.batch if isinstance(answer, Rejected))
            for code in codes:
                assert code not in NEVER, (case, told)
                assert code == "NOTARISED" or Code[code], (case, told)
        replica.check_alive(case)

    async def story() -> None:
        async with aiohttp.ClientSession() as session:
            for place in fields:
                for raw in MSGPACK_VALUES:
                    frame = msgspec.msgpack.encode(changed(good(), place, raw))
                    if not _is_empty(frame):
                        await ask(session, frame, (place, raw[:100]))
            for raw in MSGPACK_VALUES:
                await ask(session, raw, raw[:100])

    asyncio.run(story())

    def several(changes: list[tuple[Place, bytes]]) -> None:
        frame: Any = good()
        for place, raw in sorted(changes, key=lambda change: len(change[0]), reverse=True):
            frame = frame if isinstance(frame, msgspec.Raw) else changed(frame, place, raw)
        encoded = msgspec.msgpack.encode(frame)

        async def once() -> None:
            async with aiohttp.ClientSession() as session:
                await ask(session, encoded, changes)

        if not _is_empty(encoded):
            asyncio.run(once())

    drawn(st.lists(st.tuples(st.sampled_from(fields), msgpack_values()), min_size=1, max_size=3), examples, several)
    replica.check("stream")


def _is_empty(frame: bytes) -> bool:
    """A frame without submissions has no answer."""
    try:
        return not msgspec.msgpack.decode(frame, type=Submissions).batch
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def test_stream_handshakes(replica: FuzzedReplica) -> None:
    """Goal: a handshake that is none is a problem of the caller. Method: each header of it left out, and hostile."""
    described = Described(replica)
    headers = {
        b"Upgrade": b"websocket",
        b"Connection": b"Upgrade",
        b"Sec-WebSocket-Version": b"13",
        b"Sec-WebSocket-Key": b"dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Protocol": PROTOCOL.encode(),
        b"Sec-WebSocket-Extensions": b"permessage-deflate",
    }
    for name in headers:
        for value in (None, b"", b"x", b"websocket", b"8", b"99999999999999999999", b"\xff", b"a, " * 500, b"="):
            lines = {**headers, name: value}
            raw = b"".join(b"%b: %b\r\n" % (name, value) for name, value in lines.items() if value is not None)
            answer = replica.http(b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (STREAM.encode(), raw))
            if answer.status != 101:
                described.check(answer, "GET", STREAM, (name, value))
            replica.check_alive((name, value))
    replica.check("handshakes")


# ---- the link ----


def test_link_frames(replica: FuzzedReplica, examples: int) -> None:
    """Goal: a front end that went wrong is cut off, and takes nobody along. Method: hostile bytes in each part."""
    counts = ApiCounts(requests={"a": 1}, answers={"a": 1}, latency={"a": Latency()})

    def frames() -> list[object]:
        return [
            Submit([(1, replica.submission())]),
            LookUp([(1, bytes(32))]),
            Report(counts),
            Hello(1, "x" * 32, "another"),
            AskLog(1, TxQuestion(2, 3)),
            AskLog(1, CommitQuestion(1)),
        ]

    assert {type(frame) for frame in frames()} == set(FromFrontEnd.__args__)

    def ask(frame: object, changes: list[tuple[Place, bytes]]) -> None:
        good: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(frame))
        for place, raw in sorted(changes, key=lambda change: len(change[0]), reverse=True):
            good = good if isinstance(good, msgspec.Raw) else changed(good, place, raw)
        replica.link(msgspec.msgpack.encode(good), -1)
        replica.check_alive((type(frame).__name__, changes))

    for number, frame in enumerate(frames()):
        for place in places(type(frame)):
            for raw in MSGPACK_VALUES:
                ask(frames()[number], [(place, raw)])
            replica.check((type(frame).__name__, place))
        found = st.sampled_from(places(type(frame)))
        changes = st.lists(st.tuples(found, msgpack_values()), min_size=1, max_size=3)
        drawn(changes, examples, lambda drawn_changes, number=number: ask(frames()[number], drawn_changes))
    for raw in MSGPACK_VALUES:
        replica.link(raw, -1)
    replica.check("link")


# ---- operators ----


def test_the_admin_and_health_listeners(replica: FuzzedReplica, examples: int) -> None:
    """Goal: no call without an entry in the trail does anything. Method: hostile texts in each field, and heads."""
    at = replica.cluster.config.admin_socket(replica.replica.name)
    calls: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
        SWITCHOVER_PATH: (SwitchoverCall, {"replica": replica.replica.name, "to": "r9"}),
        PRUNE_PATH: (PruneCall, {"replica": replica.replica.name, "up_to": 0, "keep_s": 1e9}),
        PARTIES_PATH: (NotesCall, {"replica": replica.replica.name, "notes": ["00"], "act": "party-add"}),
        PARTY_LIST_PATH: (PartyListCall, {"replica": replica.replica.name, "after": -1}),
    }

    def send(path: str, body: bytes) -> None:
        answer = replica.post(path, body, at)
        assert answer.status in (200, 400, 409, 413), (body[:100], answer)
        if answer.status != 413:  # of the library
            found = msgspec.json.decode(answer.body)
            assert answer.status == 200 or set(found) == {"code", "detail"}, answer
            assert len(answer.body) < 5_000, answer.body[:1_000]
        replica.check_alive(body[:100])

    for path, (kind, good) in calls.items():
        fields = places(kind)
        for place, raw in itertools.product(fields, JSON_VALUES):
            send(path, msgspec.json.encode(changed(good, place, raw)))
        for place in fields:
            send(path, msgspec.json.encode(without(good, place)))
        for place, raw in itertools.product(
            (place for place in fields if isinstance(place[-1], str)), (b"null", b"0", b'""')
        ):
            send(path, msgspec.json.encode(twice(good, place, raw)))
        for raw in JSON_VALUES:
            send(path, raw)
        changes = st.tuples(st.sampled_from(fields), json_values())
        drawn(changes, examples, lambda c, path=path, good=good: send(path, msgspec.json.encode(changed(good, *c))))
        replica.check(path)
    for value in QUERY_VALUES:
        for target in (b"/page/data?after=" + value, STATUS_PATH.encode() + b"?" + value, b"/" + value):
            assert replica.get(target, at=at).status in (200, 400, 403, 404), target[:100]
    for value in QUERY_VALUES:
        for target in (b"/health?" + value, b"/metrics?" + value, b"/" + value):
            assert replica.get(target, at=replica.address.health_port).status in (200, 400, 404), target[:100]
    replica.check("admin and health")


# ---- files ----


HUGE = (math.nan, math.inf, -math.inf, 1e303, -1e303, 10**400, 2**63, -(2**63))
SETTINGS = [
    *HUGE,
    *(0, -1, 1, 0.1, 1e-320, -0.0, 2**31, 2**53, True, "", " ", "\0", "a\0b", "\ud800", "\u202e", "x" * 100_000, "NaN"),
    *("1e303", "../../x", "/dev/zero", "http://[", [], [[]], {}, {"a": 1}, [None], datetime.max, datetime.min.time()),
]


def test_configuration_files(replica: FuzzedReplica) -> None:
    """Goal: a configuration is taken or refused, by name of the setting; no number is without bounds. Method: each
    hostile value in each setting of the running replica's own file; the settings are found by their types."""
    path = replica.cluster.config_path
    good = tomllib.loads(path.read_text())
    make_config(good, path.parent, "good")
    found = list(settings_places(Config))
    assert ("core", "deduplication_max_s") in [place for place, _ in found]
    taken = []
    for place, _ in found:
        for value in SETTINGS:
            try:
                config = make_config(placed(good, place, value), path.parent, "hostile")
            except ConfigError as error:
                assert len(error.detail) < 200_000, (place, value)
                continue
            if not isinstance(value, str) and value in HUGE and not isinstance(_at(config, place), str):
                taken.append((place, value))
    assert taken == []


def _at(config: object, place: Place) -> object:
    for part in place:
        config = config[part] if isinstance(part, int) or isinstance(config, dict) else getattr(config, part)  # type: ignore[index]
    return config


def test_what_was_written_of_all_this(replica: FuzzedReplica) -> None:
    """Goal: a flood of nonsense is no flood of lines, and nothing in it surprised us. Method: the replica's own log."""
    replica.check_log()
