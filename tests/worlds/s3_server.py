"""A real S3 server for tests: versitygw on a local folder, at its pinned version (`make lake` builds it).

In front of it may stand one that fails as object stores do now and then.
"""

from __future__ import annotations

import hmac
import http.client
import os
import socket
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest

SERVER = Path(__file__).parents[2] / ".tools" / "versitygw"
ACCESS, SECRET, BUCKET, REGION = "lake", "lake-secret", "archive", "us-east-1"
START_MAX_S = 30.0
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": REGION,
    "AWS_ALLOW_HTTP": "true",
}


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def _answers(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def served(folder: Path, *options: str | Path) -> Iterator[str]:
    """The address of a server on a folder, with one bucket; skips the test where it is not built.

    `options`: further ones of its store on a file system; by default it keeps what belongs to objects beside them.
    """
    if not SERVER.exists():
        pytest.skip("no S3 server: make lake builds it")
    root, port = folder / "buckets", _free_port()
    (root / BUCKET).mkdir(parents=True, exist_ok=True)
    if not options:
        (folder / "metadata").mkdir(exist_ok=True)
        options = ("--sidecar", folder / "metadata")
    argv = [SERVER, "--port", f"127.0.0.1:{port}", "--access", ACCESS, "--secret", SECRET, "--quiet", "posix"]
    log_path = folder / "s3.log"
    with log_path.open("wb") as log, subprocess.Popen([*argv, *options, root], stdout=log, stderr=log) as server:
        try:
            until_s = time.monotonic() + START_MAX_S
            while not _answers(port):
                assert server.poll() is None and time.monotonic() < until_s, log_path.read_text()
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def environment(address: str) -> dict[str, str]:
    """The environment of a process that uses this server."""
    return {**os.environ, **ENVIRONMENT, "AWS_ENDPOINT_URL": address}


def put(address: str, path: str, query: str = "", body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
    """A signed PUT (AWS Signature Version 4), for what the client library has no call for. Raises AssertionError."""
    host, digest = address.removeprefix("http://"), sha256(body).hexdigest()
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{REGION}/s3/aws4_request"
    signed = {
        "content-md5": b64encode(md5(body).digest()).decode(),
        "host": host,
        "x-amz-content-sha256": digest,
        "x-amz-date": stamp,
        **(headers or {}),
    }
    names = ";".join(sorted(signed))
    lines = ["PUT", path, query, *(f"{name}:{signed[name]}" for name in sorted(signed)), "", names, digest]
    request_digest = sha256("\n".join(lines).encode()).hexdigest()
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, request_digest])
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"AWS4-HMAC-SHA256 Credential={ACCESS}/{scope}, SignedHeaders={names}, Signature={signature}"
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("PUT", f"{path}?{query}" if query else path, body, {**signed, "Authorization": credential})
    answer = connection.getresponse()
    text_back = answer.read().decode()
    connection.close()
    assert answer.status == 200, (answer.status, text_back)


def make_locked_bucket(address: str, name: str) -> None:
    """A bucket that keeps every object for a day, whatever its owner's key asks for."""
    put(address, f"/{name}", headers={"x-amz-bucket-object-lock-enabled": "true"})
    rule = (
        b'<ObjectLockConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><ObjectLockEnabled>Enabled'
        b"</ObjectLockEnabled><Rule><DefaultRetention><Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule>"
        b"</ObjectLockConfiguration>"
    )
    put(address, f"/{name}", "object-lock=", rule)


@dataclass
class Faults:
    """What a server in front of another does by chance, and how often it did it."""

    random: Random
    refused: float = 0.0  # the share of requests that are answered 503 and not passed on
    lost: float = 0.0  # the share that is passed on and not answered
    slow: float = 0.0  # the share whose answer comes late
    slow_s: float = 0.2
    keeps: bool = False  # every deletion is answered 403, as to a key without the right to delete
    seen: dict[str, int] = field(default_factory=lambda: {"refused": 0, "lost": 0, "slow": 0, "passed": 0, "denied": 0})
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self, command: str, path: str) -> str:
        """The fate of the next request."""
        with self._lock:
            if self.keeps and (command == "DELETE" or (command == "POST" and path.endswith("?delete"))):
                self.seen["denied"] += 1
                return "denied"
            drawn, fate = self.random.random(), "passed"
            for name in ("refused", "lost", "slow"):
                drawn -= getattr(self, name)
                if drawn < 0:
                    fate = name
                    break
            self.seen[fate] += 1
            return fate


@contextmanager
def failing(address: str, faults: Faults) -> Iterator[str]:
    """The address of a server that passes requests on to another, or not."""
    inner = address.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fate = faults.draw(self.command, self.path)
            if fate == "refused":
                self._answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
                return
            if fate == "denied":
                self._answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
                return
            connection = http.client.HTTPConnection(inner, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if fate == "lost":
                self.close_connection = True
                return
            if fate == "slow":
                time.sleep(faults.slow_s)
            self._answer(answer.status, dict(answer.getheaders()), content)

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response_only(status)
            length = headers.pop("Content-Length", str(len(content)))
            headers.pop("Transfer-Encoding", None)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", length)  # of a HEAD request: the object's
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
