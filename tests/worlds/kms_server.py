"""A real server of AWS KMS' protocol for tests: local-kms, at its pinned version (`make kms` builds it).

It checks no credentials, and knows no rights. It keeps its keys in a folder, so it can be restarted.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from replica.settings import KmsSettings
from tests.lossy_disk import freeze

SERVER = Path(__file__).parents[2] / ".tools" / "local-kms"
REGION = "eu-west-2"
START_MAX_S = 30.0
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "notary", "AWS_SECRET_ACCESS_KEY": "kms-secret-of-a-test"}


class KmsServer:
    """One server, of its own folder and port; it can be frozen, killed and started again."""

    def __init__(self, folder: Path) -> None:
        """Start it. Skips the test where it is not built."""
        if not SERVER.exists():
            pytest.skip("NOT CHECKED: no KMS server: make kms builds it")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = int(free.getsockname()[1])
        self.start()

    def start(self, restored: Mapping[str, EllipticCurvePrivateKey] | None = None) -> None:
        """Start it on the keys that it had, or on these, by id, alone: as after a restore from elsewhere."""
        keys = []
        if restored is not None:
            shutil.rmtree(self._folder / "data")
        for key_id, key in (restored or {}).items():
            file = self._folder / f"{key_id}.pem"
            file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
            keys.append(f"{key_id}={file}")
        argv = [SERVER, f"127.0.0.1:{self.port}", self._folder / "data", REGION, *keys]
        log = (self._folder / "kms.log").open("ab")
        with log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        until_s = time.monotonic() + START_MAX_S
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < until_s, (self._folder / "kms.log").read_text()
            time.sleep(0.05)
        assert self._process.poll() is None, "another program has the port"

    def _answers(self) -> bool:
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def freeze(self) -> None:
        """It answers nothing, and its connections stay."""
        freeze([self._process.pid])

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it. May be repeated."""
        self._process.kill()
        self._process.wait()

    def settings(self, **changes: Any) -> KmsSettings:
        given = {"key_id": "alias/notary-1", "region": REGION, "endpoint": f"http://127.0.0.1:{self.port}"}
        return KmsSettings.model_validate(given | changes)

    def asked(self, operation: str, **parameters: object) -> dict[str, Any]:
        """What an administrator of the service does with AWS' own client library."""
        import botocore.session

        client = botocore.session.Session().create_client(
            "kms", region_name=REGION, endpoint_url=f"http://127.0.0.1:{self.port}"
        )
        with closing(client):
            return dict(getattr(client, operation)(**parameters))

    def create(self, alias: str = "alias/notary-1", spec: str = "ECC_NIST_P256") -> str:
        """A key for signatures under an alias; its id."""
        made = self.asked("create_key", KeySpec=spec, KeyUsage="SIGN_VERIFY")["KeyMetadata"]["KeyId"]
        self.asked("create_alias", AliasName=alias, TargetKeyId=made)
        return str(made)
