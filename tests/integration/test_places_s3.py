"""The contract of a store of objects against a real S3 server: versitygw on a local folder (`make s3-server`)."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from obstore.store import S3Store

from pipeline.places.objects import ObjectsStore
from pipeline.places.store import PlaceUnavailable, Store
from replica.notary.errors import Code
from tests.contracts.place_contract import PlaceContract

SERVER = Path(__file__).parents[2] / ".tools" / "versitygw"
ACCESS, SECRET, BUCKET = "lake", "lake-secret", "archive"
START_MAX_S = 30.0


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def _answers(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with one empty bucket."""
    if not SERVER.exists():
        pytest.skip("no S3 server: make s3-server builds it")
    root, port = tmp_path_factory.mktemp("s3"), _free_port()
    (root / BUCKET).mkdir()
    argv = [
        SERVER,
        "--port",
        f"127.0.0.1:{port}",
        "--access",
        ACCESS,
        "--secret",
        SECRET,
        "--quiet",
        "posix",
        "--nometa",
        root,
    ]
    with (root.parent / "s3.log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as server:
        try:
            until_s = time.monotonic() + START_MAX_S
            while not _answers(port):
                assert server.poll() is None and time.monotonic() < until_s, (root.parent / "s3.log").read_text()
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def bucket(endpoint: str, prefix: str, secret: str = SECRET) -> Store:
    """A place in the bucket."""
    return ObjectsStore(
        S3Store(
            BUCKET,
            prefix=prefix,
            endpoint=endpoint,
            region="us-east-1",
            access_key_id=ACCESS,
            secret_access_key=secret,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
    )


class TestS3(PlaceContract):
    @pytest.fixture
    def store(self, endpoint: str) -> Store:
        return bucket(endpoint, f"place-{uuid4().hex}")


def test_wrong_credentials_are_an_error_of_the_place(endpoint: str) -> None:
    """Goal: refused is not missing. Method: another secret, for each call."""
    store = bucket(endpoint, "place", secret="another")
    for call in (lambda: store.names(""), lambda: store.read("a"), lambda: store.create("a", [b"one"])):
        with pytest.raises(PlaceUnavailable) as failed:
            call()
        assert failed.value.code is Code.PLACE_UNAVAILABLE
        assert SECRET not in failed.value.detail
