"""The contract of a store of objects against a real S3 server: versitygw on a local folder (`make s3-server`)."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from obstore.store import S3Store

from pipeline.archive.lines import ObjectLines
from pipeline.places.objects import ObjectsStore
from pipeline.places.store import PlaceUnavailable, Store
from replica.notary.errors import Code, ConfigError
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
    root = tmp_path_factory.mktemp("s3")
    (root / "metadata").mkdir()
    with served(root, "--sidecar", root / "metadata") as address:
        yield address


@contextmanager
def served(folder: Path, *metadata: str | Path) -> Iterator[str]:
    """A server on a folder while the context lasts; `metadata`: where it keeps what belongs to objects."""
    if not SERVER.exists():
        pytest.skip("no S3 server: make s3-server builds it")
    root, port = folder / "buckets", _free_port()
    (root / BUCKET).mkdir(parents=True, exist_ok=True)
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
        *metadata,
    ]
    argv.append(root)
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


def test_a_server_that_ignores_the_condition_is_refused(tmp_path: Path) -> None:
    """Goal: nobody relies on what is not there. Method: the same server without metadata overwrites."""
    with served(tmp_path, "--nometa") as address:
        store = bucket(address, "archive")
        lines = ObjectLines(store, _never)
        lines.append(0, b"line\n")
        with pytest.raises(ConfigError) as refused:
            lines.refuse_unsafe()
        assert refused.value.code is Code.PLACE_UNSAFE
        assert lines.read() == b"line\n"


def _never(seconds: float) -> None:
    raise AssertionError(f"waited {seconds} s for a store that answers")


def test_a_server_that_is_gone_is_unavailable_and_what_it_kept_is_there_again(tmp_path: Path) -> None:
    """Goal: an outage is neither an empty place nor a loss. Method: end the server, call, start one on its folder."""
    (tmp_path / "metadata").mkdir()
    with served(tmp_path, "--sidecar", tmp_path / "metadata") as address:
        bucket(address, "place").create("a/1", [b"one"])
    store = bucket(address, "place")
    for call in (lambda: store.names(""), lambda: store.read("a/1"), lambda: store.create("a/1", [b"one"])):
        with pytest.raises(PlaceUnavailable):
            call()
    with served(tmp_path, "--sidecar", tmp_path / "metadata") as address:
        store = bucket(address, "place")
        assert (store.names(""), store.read("a/1")) == (["a/1"], b"one")
