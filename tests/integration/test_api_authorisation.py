"""Every call of the API by every kind of caller, against one table. A new call without a row here fails.

The server is a real one with TLS, client certificates and tokens. The listeners for health and for operators
authenticate no caller: what they are, and from where they may be called, has a table of its own.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from ha.clock import SystemClock
from ha.health import HealthListener, Probes
from ledger_api.wire.stream_frames import Answers, FromServer, Rejected, Submissions, encoder
from ledger_api.wire.submissions import submission_to_document
from replica.notary.answers import StateStatus
from replica.notary.requests import format_state_ref
from replica.operators.admin import AdminListener
from replica.status_page.routes import Epoch, StatusPage
from replica.status_page.samples import Reading
from replica.store.interface import NOTARISED, Completion
from tests.certificates import Authority
from tests.steering import steering_of_nobody
from tests.tokens import AUDIENCE, Issuer
from tests.worlds.api_world import BANK, OFFSET, ApiWorld, StubParticipant, make_submission, notarise

USER = "treasury"
SUBMISSION = make_submission()
TX_ID, STATE = b"t" * 32, b"s" * 36
DENIED, SHOWN, HIDDEN = "403 PERMISSION_DENIED", "200 shown", "200 hidden"
MISSING, INVALID = "401 TOKEN_MISSING", "401 TOKEN_INVALID"
NO_CONNECTION = "no connection"

# Who has a token that counts, and what it grants.
GRANTED: dict[str, dict[str, object]] = {
    "the bank's user": {"sub": USER, "notary": {"act_as": [BANK.name]}},
    "another user of the bank": {"sub": "desk", "notary": {"act_as": [BANK.name]}},
    "another bank": {"sub": USER, "notary": {"act_as": ["O=Bank B,L=Paris,C=FR"]}},
    "a reader": {"sub": "auditor", "notary": {"read_as": [BANK.name]}},
    "an operator": {"sub": "operator", "notary": {"admin": True}},
    "a token that grants nothing": {"sub": "guest"},
}
TABLE: dict[str, tuple[str, ...]] = {
    #                                    the bank's user    its other user   another bank  reader  operator  nothing
    "POST /v1/submissions": ("200 NOTARISED", "200 NOTARISED", DENIED, DENIED, DENIED, DENIED),
    "POST /v1/submissions/async": ("202 ACCEPTED", "202 ACCEPTED", DENIED, DENIED, DENIED, DENIED),
    "POST /v1/submissions/batch": (
        "200 NOTARISED",
        "200 NOTARISED",
        *["200 PERMISSION_DENIED"] * 4,  # of the one item in it
    ),
    "POST /v1/submissions/batch/async": ("202 ACCEPTED", "202 ACCEPTED", *["202 PERMISSION_DENIED"] * 4),
    "GET /v1/submissions/stream": ("101 NOTARISED", "101 NOTARISED", *["101 PERMISSION_DENIED"] * 4),
    # A receipt reveals nothing that its transaction id, which has to be known, does not stand for.
    "GET /v1/transactions/{tx_id}": ("200 NOTARISED",) * 6,
    "GET /v1/transactions/{tx_id}/receipt": ("200",) * 6,
    "GET /v1/transactions/{tx_id}/status": (SHOWN, HIDDEN, HIDDEN, HIDDEN, SHOWN, HIDDEN),  # who asked for it
    "GET /v1/states/{state}": (SHOWN, SHOWN, HIDDEN, SHOWN, SHOWN, HIDDEN),  # which transaction consumed it
    "GET /v1/states/{state}/attempts": (SHOWN, HIDDEN, HIDDEN, HIDDEN, SHOWN, HIDDEN),
    "GET /v1/completions": (SHOWN, HIDDEN, HIDDEN, HIDDEN, SHOWN, HIDDEN),
    "GET /v1/updates": (SHOWN, SHOWN, HIDDEN, SHOWN, SHOWN, HIDDEN),
    "GET /v1/ledger-end": ("200",) * 6,
    # Numbers of the request log that name nobody: whether an entry is committed, and where views began.
    "GET /v1/log/{transaction_id}": ("200",) * 6,
    "GET /v1/commit": ("200",) * 6,
    "GET /v1/endpoints": ("200",) * 6,  # addresses that every application of this notary may be given
}
EXPLORER = ("explorer", "explorer.css", "explorer.js")  # a page without data: its script asks with the reader's token
PUBLIC = {
    f"GET /v1/{name}" for name in ("notary", "errors", "openapi.json", "asyncapi.json", "docs", "docs.js", *EXPLORER)
}

# What of an answer only some may see.
SEEN: dict[str, str] = {
    "GET /v1/transactions/{tx_id}/status": "requested_by",
    "GET /v1/states/{state}": "consumed_by",
    "GET /v1/states/{state}/attempts": "attempts",
    "GET /v1/completions": "completions",
    "GET /v1/updates": "updates",
}


class World:
    """An API with something in its ledger, and every kind of caller of it."""

    def __init__(self, folder: Path, *, tokens: bool = True) -> None:
        self.authority, self.stranger = Authority(folder / "pki"), Authority(folder / "elsewhere")
        self.issuer = Issuer()
        participant = StubParticipant()
        answer = notarise(msgspec.structs.replace(SUBMISSION))
        participant.found[TX_ID] = answer
        participant.consumed[STATE] = StateStatus(STATE, TX_ID, OFFSET)
        row = Completion(OFFSET, TX_ID, USER, "c1", (BANK.name,), "s1", TX_ID, TX_ID, NOTARISED, OFFSET, 1)
        participant.database.completions.append((1, row))
        participant.standing = msgspec.structs.replace(participant.standing, ledger_end=1)
        certificate_file, key_file = self.authority.issue("api")
        tls = {"certificate_file": certificate_file, "key_file": key_file, "client_ca_file": self.authority.ca_file}
        keys = {"keys_file": self.issuer.write(folder / "keys.json"), "audience": AUDIENCE, "leeway_s": 0.0}
        self.api = ApiWorld(participant, log_nodes=True, tls=tls, tokens=keys if tokens else None)

    def token(self, **claims: object) -> str:
        return self.issuer.token(**{"expires_at_s": time.time() + 600} | claims)  # type: ignore[arg-type]

    def refused(self) -> dict[str, tuple[str | None, str]]:
        """Every Authorization header that grants nothing, and the answer to it."""
        claims = {"sub": USER, "aud": AUDIENCE, "exp": int(time.time()) + 600, "notary": {"act_as": [BANK.name]}}
        shared = jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(b"k" * 32))
        return {
            "a certificate without a token": (None, MISSING),
            "a password": ("Basic dHJlYXN1cnk6eA==", MISSING),
            "no token's text": ("Bearer garbage", INVALID),
            "another issuer": (f"Bearer {Issuer().token(expires_at_s=time.time() + 600)}", INVALID),
            "a shared secret": (f"Bearer {shared}", INVALID),
            "an expired token": (f"Bearer {self.token(expires_at_s=time.time() - 1)}", INVALID),
            "another audience": (f"Bearer {self.token(aud='elsewhere')}", INVALID),
            "no end": (f"Bearer {self.token(exp=None)}", INVALID),
            "no user": (f"Bearer {self.token(sub=None)}", INVALID),
        }

    @asynccontextmanager
    async def client(
        self, header: str | None = None, certificate: str = "ours", user_id: str = USER
    ) -> AsyncIterator[Client]:
        context = ssl.create_default_context(cafile=str(self.authority.ca_file))
        if certificate != "none":
            issuer = self.authority if certificate == "ours" else self.stranger
            context.load_cert_chain(*issuer.issue("client"))
        headers = {} if header is None else {"Authorization": header}
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            yield Client(self.api.endpoint, session, user_id)


class Client:
    """Makes one call of each kind, and returns in a few words how it was answered."""

    def __init__(self, endpoint: str, session: aiohttp.ClientSession, user_id: str) -> None:
        self._endpoint = endpoint
        self.session = session
        self._submission = make_submission(user_id=user_id)
        one = msgspec.json.encode(submission_to_document(self._submission))
        batch = b'{"submissions":[%b]}' % one
        self._bodies = {
            "/v1/submissions": one,
            "/v1/submissions/async": one,
            "/v1/submissions/batch": batch,
            "/v1/submissions/batch/async": batch,
        }

    async def ask(self, call: str) -> str:
        """Status, and code or whether what only some may see was there."""
        method, path = call.split()
        url = self._endpoint + path.format(tx_id=TX_ID.hex(), state=format_state_ref(STATE), transaction_id="2.17")
        try:
            if path.endswith("/stream"):
                return await self._stream(url)
            body = self._bodies[path] if method == "POST" else None
            headers = {"Content-Type": "application/json"} if body else {}
            async with self.session.request(method, url, data=body, headers=headers) as response:
                return _in_words(call, response.status, await response.read())
        except (aiohttp.ClientConnectionError, ConnectionError):
            return NO_CONNECTION

    async def _stream(self, url: str) -> str:
        try:
            async with self.session.ws_connect(url) as socket, asyncio.timeout(10):
                await socket.receive_bytes()
                await socket.send_bytes(encoder.encode(Submissions([(1, self._submission)])))
                answers = msgspec.msgpack.decode(await socket.receive_bytes(), type=FromServer)
        except aiohttp.WSServerHandshakeError as refused:
            async with self.session.get(url) as response:
                assert response.status == refused.status
                return _in_words("", response.status, await response.read())
        assert isinstance(answers, Answers)
        ((_, answer),) = answers.batch
        return f"101 {answer.code}" if isinstance(answer, Rejected) else "101 NOTARISED"


def _in_words(call: str, status: int, body: bytes) -> str:
    if call in PUBLIC:
        return str(status)
    document: dict[str, Any] = msgspec.json.decode(body)
    if status == 200 and call in SEEN:
        return SHOWN if document[SEEN[call]] else HIDDEN
    (document,) = document.get("results", [document])
    return f"{status} {document['code']}" if "code" in document else str(status)


async def everything(client: Client) -> dict[str, str]:
    """How every call is answered."""
    return {call: await client.ask(call) for call in (*TABLE, *PUBLIC)}


async def test_every_call_has_a_row(tmp_path: Path) -> None:
    """Goal: nothing is served that this table forgot. Method: the served specification, whose `security` must fit."""
    world = World(tmp_path)
    async with (
        world.api.serve(),
        world.client() as client,
        client.session.get(world.api.endpoint + "/v1/openapi.json") as response,
    ):
        paths = (await response.json())["paths"]
    needs_token = {
        f"{method.upper()} {path}": {"token": []} in operation["security"]
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    assert needs_token == dict.fromkeys(TABLE, True) | dict.fromkeys(PUBLIC, False)


@pytest.mark.parametrize("column", range(len(GRANTED)), ids=list(GRANTED))
async def test_a_token_grants_what_its_column_says(tmp_path: Path, column: int) -> None:
    """Goal: rights per party hold on every call. Method: one kind of caller, every call, the column of the table."""
    world = World(tmp_path)
    claims = list(GRANTED.values())[column]
    header, user_id = f"Bearer {world.token(**claims)}", str(claims.get("sub", USER))
    async with world.api.serve(), world.client(header, user_id=user_id) as client:
        found = await everything(client)
    assert found == {call: row[column] for call, row in TABLE.items()} | dict.fromkeys(PUBLIC, "200")


async def test_who_shows_no_good_token_is_turned_away_everywhere(tmp_path: Path) -> None:
    """Goal: no call forgets to ask, and none gets to the notary. Method: every bad header on every call."""
    world = World(tmp_path)
    async with world.api.serve():
        for name, (header, told) in world.refused().items():
            async with world.client(header) as client:
                found = await everything(client)
            assert (name, found) == (name, dict.fromkeys(TABLE, told) | dict.fromkeys(PUBLIC, "200"))
    assert world.api.participant.reached == 0


@pytest.mark.parametrize("certificate", ["none", "a stranger's"])
async def test_no_token_helps_without_a_certificate(tmp_path: Path, certificate: str) -> None:
    """Goal: mutual TLS stands before everything, public calls too. Method: the bank's own token, no certificate."""
    world = World(tmp_path)
    claims = GRANTED["the bank's user"]
    header = f"Bearer {world.token(**claims)}"
    async with world.api.serve(), world.client(header, certificate) as client:
        assert set((await everything(client)).values()) == {NO_CONNECTION}
    assert world.api.participant.reached == 0


async def test_where_certificates_alone_are_asked_for_one_is_enough(tmp_path: Path) -> None:
    """Goal: the other way to run it, as documented. Method: no tokens configured; every call by certificate."""
    world = World(tmp_path, tokens=False)
    async with world.api.serve(), world.client() as client, world.client(certificate="none") as stranger:
        found = await everything(client)
        assert set((await everything(stranger)).values()) == {NO_CONNECTION}
    assert found == {call: row[0] for call, row in TABLE.items()} | dict.fromkeys(PUBLIC, "200")


# ---- the listeners beside the API ----


STEERS = {f"POST /admin/v1/{call}" for call in ("switchover", "prune", "parties", "parties/list")}
TELLS = {"GET /admin/v1/status", "GET /", "GET /page.js", "GET /page.css", "GET /page/data"}
CONSENSUS = {"GET /node/consensus", "GET /node/network/removable_nodes", "GET /v1/log/{transaction}"}
HEALTH = {f"GET {path}" for path in ("/health", "/health/live", "/health/ready", "/health/active", "/metrics")}
CALL = b'{"replica": "r1"}'
Ask = Callable[..., Awaitable[int]]


def some_page() -> StatusPage:
    """A status page that knows of nothing."""

    async def history() -> list[Epoch]:
        return []

    def read() -> Reading:
        raise AssertionError("nobody takes samples here")

    return StatusPage(name="r1", version="1", peers={}, clock=SystemClock(), read=read, detail=dict, history=history)


@asynccontextmanager
async def listening(listener: AdminListener | HealthListener, at: Path | None = None) -> AsyncIterator[Ask]:
    """`at`: its socket; None: it has a port."""
    port = await listener.start()
    connector = None if at is None else aiohttp.UnixConnector(str(at))
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(call: str, body: bytes = b"", **headers: str) -> int:
            method, path = call.split()
            url = f"http://127.0.0.1:{port or 80}{path}"
            async with session.request(method, url, data=body or None, headers=headers) as response:
                return response.status

        yield ask
    await listener.stop()


def served(listener: AdminListener | HealthListener) -> set[str]:
    return {f"{route.method} {route.resource.canonical}" for route in listener._runner.app.router.routes()}  # type: ignore[union-attr]


async def test_operators_calls_do_what_they_say_and_no_more(tmp_path: Path) -> None:
    """Goal: what watches changes nothing, what steers takes one form. Method: each call in another method and form."""
    path = tmp_path / "admin.sock"
    listener = AdminListener(steering_of_nobody(), dict, some_page().routes(), path)
    assert {call for call in served(listener) if not call.startswith("HEAD")} == STEERS | TELLS | CONSENSUS
    async with listening(listener, path) as ask:
        for call in TELLS:
            assert await ask(call) == 200, call
            assert await ask(call.replace("GET", "POST"), CALL) == 405, call
        for call in CONSENSUS:  # this log is not on log nodes
            assert await ask(call) == 404, call
            assert await ask(call.replace("GET", "POST"), CALL) in {404, 405}, call
        for call in STEERS:
            assert await ask(call, CALL, **{"Content-Type": "text/plain"}) == 415, call
            assert await ask(call, b"x" * 300_000, **{"Content-Type": "application/json"}) == 413, call
        assert await ask("POST /admin/v1/switchover", CALL, **{"Content-Type": "application/json"}) == 409
    assert not path.exists()


async def test_the_health_listener_changes_nothing() -> None:
    """Goal: what any caller may call only reads. Method: its routes; every other method on each."""
    probes = Probes(lambda: True, lambda: True, lambda: True, dict)
    listener = HealthListener(probes, host="127.0.0.1", port=0, metrics=lambda: b"")
    assert {call for call in served(listener) if not call.startswith("HEAD")} == HEALTH
    async with listening(listener) as ask:
        for call in HEALTH:
            assert await ask(call) == 200
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                assert await ask(call.replace("GET", method), CALL) == 405
        for call in TELLS:
            assert await ask(call) == 404, call
