"""A real replica under a fuzzer: how to talk to every socket of it, byte by byte, and what must stay as it was."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import itertools
import json
import socket
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from ledger_api.client import Party
from ledger_api.wire.submissions import SubmissionDocument, submission_from_document, submission_to_document
from replica.link.frames import PROTOCOL, Answers, FromCore, Hello, Wait, Word
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.process import descendants
from replica.notary.errors import BadRequest
from replica.notary.requests import Submission
from tests.integration.fuzz_core import GENERATION
from tests.waiting import eventually

ANSWER_MAX_S = 20.0
LOG_LINES_PER_S = 5  # of each front end, for calls that are refused
GROWTH_MAX_BYTES = 96 * 2**20  # of one process, from the end of the warming up
MILD = ("info", "warning")
# What a front end should have refused fails in the core, alone; a registry that cannot be read is an operator's affair.
EXPECTED = ("submission_failed", "reload_refused")
Result = TypeVar("Result")
_from_core = msgspec.msgpack.Decoder(FromCore)


class HttpAnswer(NamedTuple):
    """What came back over HTTP. `status` is 0 when the connection was closed without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class Processes(NamedTuple):
    """The processes of the replica, each with when it started, so that a number used again is not taken for it."""

    core: tuple[int, str]
    front_ends: tuple[tuple[int, str], ...]

    def resident_bytes(self) -> dict[int, int]:
        """Memory of each, as it is now."""
        return {pid: _status_kib(pid, "VmRSS") * 1024 for pid, _ in (self.core, *self.front_ends)}

    def peak_bytes(self) -> dict[int, int]:
        """The most memory that each has ever had."""
        return {pid: _status_kib(pid, "VmHWM") * 1024 for pid, _ in (self.core, *self.front_ends)}


class FuzzedReplica:
    """One replica over real Postgres and Kafka, its only one: whatever ends it or deposes it shows in the epoch."""

    def __init__(self, cluster: LocalCluster, run: Any) -> None:
        self.cluster = cluster
        self._run = run
        self._numbers = itertools.count(1)
        (self.replica,) = cluster.replicas.values()
        self.party: Party = cluster.parties[0]
        self.address = self.replica.address
        self.before = self.processes()
        self.health_before = self.health()
        self.log_from = self.replica.log_path.stat().st_size
        self.resident_before: dict[int, int] = {}

    # ---- what must stay as it was ----

    def processes(self) -> Processes:
        core = self.replica.pid
        front_ends = [
            pid for pid in descendants(core) if b"ledger_api.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return Processes((core, _started(core)), tuple(sorted((pid, _started(pid)) for pid in front_ends)))

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(
            f"http://{self.address.host}:{self.address.health_port}/health", timeout=10
        ) as page:
            found: dict[str, Any] = json.loads(page.read())
            return found

    def warmed_up(self) -> None:
        """From now on memory may grow by GROWTH_MAX_BYTES at most."""
        self.resident_before = self.before.resident_bytes()

    def check_alive(self, case: object) -> None:
        """Every process is the one that it was: cheap enough for each example."""
        for pid, started in (self.before.core, *self.before.front_ends):
            assert _started(pid) == started, f"process {pid} ended at {case!r}; {self.replica.log_tail()[-1_500:]}"

    def check(self, case: object) -> None:
        """No process ended, no epoch changed, memory is bounded, and metrics can be read."""
        self.check_alive(case)
        assert self.processes() == self.before, case
        health = self.health()
        for name in ("epoch", "active", "role", "front_ends"):
            assert health[name] == self.health_before[name], (case, name, self.replica.log_tail()[-1_500:])
        with urllib.request.urlopen(
            f"http://{self.address.host}:{self.address.health_port}/metrics", timeout=10
        ) as page:
            assert page.status == 200
        if self.resident_before:
            grown = {pid: now - self.resident_before[pid] for pid, now in self.before.resident_bytes().items()}
            assert max(grown.values()) <= GROWTH_MAX_BYTES, (case, grown)

    def check_log(self) -> None:
        """Nothing was logged as an error or with a traceback, and refused calls within their bound."""
        with self.replica.log_path.open("rb") as log:
            log.seek(self.log_from)
            lines = [line for line in log if line.strip()]
        counts: Counter[tuple[str, str, str]] = Counter()
        for at, line in enumerate(lines):
            try:
                entry = json.loads(line)
            except ValueError:
                around = b"".join(lines[at : at + 30]).decode(errors="replace")
                raise AssertionError(f"a line that is not ours: {around}") from None
            if entry.get("front_end") == "fuzzer":
                continue  # front ends do not come and go by the hundred
            assert entry["event"] in EXPECTED or ("exception" not in entry and entry["level"] in MILD), entry
            assert len(line) <= 20_000, line[:500]
            counts[entry["timestamp"][:19], entry.get("front_end", ""), entry["event"]] += 1
        for where, count in counts.items():
            if where[2] in ("reload_refused", "reloaded", "pruned"):
                continue  # one for each thing that an operator did: nobody else sends signals, or calls this listener
            assert count <= 2 * LOG_LINES_PER_S, (where, count)  # two of its seconds may lie in one of ours

    # ---- good ones ----

    def submission(self, **more: Any) -> Submission:
        """A signed submission of a state of its own; ids are numbers, so that a run can be repeated."""
        number = next(self._numbers)
        tx_id, state = (hashlib.sha256(f"{what} {number}".encode()).digest() for what in ("transaction", "state"))
        return self.party.sign(tx_id, [state + bytes(4)], submission_id=f"submission {number}", **more)

    def document(self) -> dict[str, Any]:
        """A submission as JSON, with every field set."""
        document: dict[str, Any] = msgspec.to_builtins(submission_to_document(self.submission()))
        document["request"]["references"] = []
        document["request"]["time_window"] = {"from": "2020-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z"}
        document["deduplication"] = {"duration_s": 60.0}
        return self.signed(document)

    def signed(self, document: Any) -> Any:
        """The same with a signature that holds, where it can be read at all: bad fields go further then."""
        try:
            raw = msgspec.json.encode(document)
            submission = submission_from_document(msgspec.json.decode(raw, type=SubmissionDocument), lambda: "any")
        except (msgspec.DecodeError, UnicodeError, RecursionError, BadRequest):
            return document
        signature = self.party.key.sign(submission.request).signature.hex()
        return {**document, "request": {**document["request"], "signature": signature}}

    # ---- sockets ----

    def http(self, raw: bytes, at: int | Path | None = None) -> HttpAnswer:
        """One HTTP exchange at a port or a socket, whatever these bytes are; the request must end the connection."""
        with self._connected(self.address.api_port if at is None else at) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused in the middle: the answer may be there
                connection.sendall(raw)
            return _read_answer(connection)

    def _connected(self, at: int | Path) -> socket.socket:
        if isinstance(at, int):
            return socket.create_connection((self.address.host, at), ANSWER_MAX_S)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(ANSWER_MAX_S)
        connection.connect(str(at))
        return connection

    def post(self, path: str, body: bytes, at: int | Path | None = None) -> HttpAnswer:
        """POST of a JSON body."""
        return self.http(
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (path.encode(), len(body), body),
            at,
        )

    def get(self, target: bytes, headers: bytes = b"", at: int | Path | None = None) -> HttpAnswer:
        """GET of a target, with header lines."""
        head = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n%b\r\n" % (target, headers)
        return self.http(head, at)

    def link(self, frame: bytes, ticket: int) -> str:
        """Send one frame as a front end; "answered", "cut", or "taken" when the core has something else to say."""
        path = self.cluster.config.replica_dir(self.replica.name) / "link.sock"
        hello = msgspec.msgpack.encode(Hello(PROTOCOL, GENERATION, "fuzzer"))
        question = msgspec.msgpack.encode([2, [[2**40, bytes(32)]]])  # a look-up behind it: is anybody there?
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_MAX_S)
            connection.connect(str(path))
            try:
                connection.sendall(b"".join(len(part).to_bytes(4, "big") + part for part in (hello, frame, question)))
            except (BrokenPipeError, ConnectionResetError):
                return "cut"
            tickets: set[int] = set()
            for told in _frames(connection):
                if isinstance(told, Answers):
                    tickets.update(number for number, _ in told.batch)
                if {2**40, ticket} <= tickets:
                    return "answered"
                if 2**40 in tickets and not isinstance(told, Word | Wait | Hello) and ticket < 0:
                    return "taken"
            return "cut"

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do something on the cluster's event loop."""
        return self._run(work)


def _read_answer(connection: socket.socket) -> HttpAnswer:
    response = http.client.HTTPResponse(connection, method="GET")
    try:
        response.begin()
        return HttpAnswer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    except (http.client.HTTPException, ConnectionError):
        return HttpAnswer(0, {}, b"")


def _frames(connection: socket.socket) -> Iterator[FromCore]:
    stream = connection.makefile("rb")
    try:
        while head := stream.read(4):
            yield _from_core.decode(stream.read(int.from_bytes(head, "big")))
    except ConnectionError:
        return


def _status_kib(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise AssertionError(f"{name} of {pid} is not known")


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty when it is gone, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[19]


@contextmanager
def fuzzed_replica(folder: Path) -> Iterator[FuzzedReplica]:
    """A cluster of one replica, supervised by a thread of its own, so that a test may wait for a socket."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="cluster")
    thread.start()

    def run(work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, loop).result(120)

    api = {"problem_logs_per_s": LOG_LINES_PER_S, "rate_burst": 1_000_000, "rate_per_s": 1_000_000}
    cluster = LocalCluster(ClusterSettings(folder=folder, replicas=1, parties=2, further={"api": api}))
    try:
        run(_start(cluster))
        yield FuzzedReplica(cluster, run)
    finally:
        run(cluster.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _start(cluster: LocalCluster) -> None:
    await cluster.start()
    (replica,) = cluster.replicas.values()
    await replica.stop()
    replica.install(Path(sys.executable), cluster.config_path, {}, "tests.integration.fuzz_core")
    replica.start()
    await cluster.wait_for_active()

    async def all_serve() -> bool:
        health = (await cluster.healths())[replica.name]
        return health is not None and health.front_ends == cluster.config.api_workers

    await eventually(all_serve)
