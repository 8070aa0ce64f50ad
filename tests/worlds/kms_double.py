"""A service in this process that speaks AWS KMS' protocol over HTTP or TLS, and refuses as it is told.

What the open-source server of `kms_server` cannot do: it knows no credentials, no rights, and no TLS.
"""

from __future__ import annotations

import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ARN = "arn:aws:kms:eu-west-2:111122223333:key/1"


@dataclass
class KmsDouble:
    """What the service answers. `refusals`: by operation, status, code and the service's words."""

    port: int = 0
    key: Any = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    usage: str = "SIGN_VERIFY"
    refusals: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    access_keys: list[str] = field(default_factory=list)  # of each request, in order

    def refuse(self, code: str, words: str, *operations: str, status: int = 400) -> None:
        """Refuse these operations, else all."""
        self.refusals.update(dict.fromkeys(operations or ("GetPublicKey", "Sign"), (status, code, words)))

    def answer(self, operation: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        if operation in self.refusals:
            status, code, words = self.refusals[operation]
            return status, {"__type": code, "message": words}
        if operation == "GetPublicKey":
            public = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            return 200, {"KeyId": ARN, "PublicKey": b64encode(public).decode(), "KeyUsage": self.usage}
        signature = self.key.sign(b64decode(asked["Message"]), ec.ECDSA(Prehashed(SHA256())))
        return 200, {"KeyId": ARN, "Signature": b64encode(signature).decode(), "SigningAlgorithm": "ECDSA_SHA_256"}


@contextmanager
def kms_double(certificate: tuple[Path, Path] | None = None) -> Iterator[KmsDouble]:
    """Serves until the block ends; over TLS with a certificate and its key."""
    double = KmsDouble()

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            credential = self.headers.get("Authorization", "").partition("Credential=")[2]
            double.access_keys.append(credential.partition("/")[0])
            status, document = double.answer(self.headers["X-Amz-Target"].partition(".")[2], asked)
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            """Say nothing."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *given: object) -> None:
            """A client that does not trust the certificate goes away; it is the one that says so."""

    with Quiet(("127.0.0.1", 0), Answering) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        double.port = int(server.server_address[1])
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield double
        finally:
            server.shutdown()
            thread.join(5)
