"""Stores of objects, and archives in them, on a real S3 server: versitygw on a local folder."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TypeVar
from uuid import uuid4

import pytest

from pipeline.archive.layout import layout_of
from pipeline.archive.lines import ObjectLines
from pipeline.archive.manifest import load_manifest
from pipeline.archive.verify import verify_archive
from pipeline.places import objects
from pipeline.places.open import open_store
from pipeline.places.store import ObjectExists, Store, digest_of, fetch, keep_file
from replica.notary.codes import Code
from replica.notary.errors import ArchiveContended, ConfigError, PlaceAccessDenied, PlaceUnavailable
from replica.notary.places import Remote
from tests.contracts.place_contract import PlaceContract
from tests.contracts.report_place_contract import ReportPlaceContract
from tests.contracts.shipping_contract import ShippingToObjects
from tests.worlds.archive_world import SIGNER, HeadsInMemory, fill_archive, some_log
from tests.worlds.s3_server import (
    BUCKET,
    ENVIRONMENT,
    SECRET,
    Faults,
    environment,
    failing,
    make_locked_bucket,
    served,
)

VALUES = some_log(35)
ResultT = TypeVar("ResultT")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server."""
    with served(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those of the tests' servers, in the environment of this process."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield
    open_store.cache_clear()


@pytest.fixture
def endpoint(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server, as the one that this process uses."""
    use(server, monkeypatch)
    return server


def use(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on stores are opened on this server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    open_store.cache_clear()


def new_place(bucket: str = BUCKET) -> Remote:
    """A place that nobody has used."""
    return Remote(f"s3a://{bucket}/place-{uuid4().hex}")


class TestS3(PlaceContract):
    @pytest.fixture
    def store(self, endpoint: str) -> Store:
        return open_store(new_place())


class TestS3InParts(PlaceContract):
    @pytest.fixture
    def store(self, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setattr(objects, "ONE_REQUEST_BYTES", 1 << 20)
        return open_store(new_place())


class TestS3Locked(PlaceContract):
    @pytest.fixture
    def store(self, endpoint: str) -> Store:
        name = f"locked-{uuid4().hex}"
        make_locked_bucket(endpoint, name)
        return open_store(new_place(name))


class TestShippingToS3(ShippingToObjects):
    @pytest.fixture
    def site(self, endpoint: str) -> Remote:
        return new_place()


class TestReportsInS3(ReportPlaceContract):
    @pytest.fixture
    def place(self, endpoint: str) -> Remote:
        return new_place()


def test_a_large_file_is_sent_in_parts(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no bound by memory or by one request. Method: a file of three parts, there and back."""
    monkeypatch.setattr(objects, "ONE_REQUEST_BYTES", 1 << 20)
    content = Random(1).randbytes(2 * objects.PART_BYTES + 12_345)
    (tmp_path / "file").write_bytes(content)
    store, digest = open_store(new_place()), sha256(content).hexdigest()
    keep_file(store, f"a/{digest}", tmp_path / "file", digest, _never)
    fetch(store, f"a/{digest}", tmp_path / "fetched", _never)
    assert (tmp_path / "fetched").read_bytes() == content


def test_a_large_file_under_a_name_that_is_taken_is_settled_at_once(endpoint: str, tmp_path: Path) -> None:
    """Goal: a refusal is understood, though its answer may be lost. Method: send a file as one request, again and
    again: the server refuses the name before it has read the file, and may close the connection meanwhile."""
    (tmp_path / "file").write_bytes(Random(3).randbytes(24 << 20))
    digest = sha256((tmp_path / "file").read_bytes()).hexdigest()
    store = open_store(new_place())
    store.create("a/other", [b"other content"])
    for _ in range(10):
        keep_file(store, f"a/{digest}", tmp_path / "file", digest, _never)
        with pytest.raises(ObjectExists):
            keep_file(store, "a/other", tmp_path / "file", digest, _never)


def test_a_writer_killed_between_two_slow_parts_leaves_nothing(
    server: str, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: whole or not at all, however many parts. Method: each answer is late; SIGKILL while the second of three
    parts is on its way; another writer keeps the same file."""
    content = Random(2).randbytes(2 * objects.PART_BYTES + 12_345)
    (tmp_path / "file").write_bytes(content)
    place, digest = new_place(), sha256(content).hexdigest()
    program = f"""
from pathlib import Path
from pipeline.places import objects
from pipeline.places.open import open_store
from replica.notary.places import Remote
objects.ONE_REQUEST_BYTES, objects.PARTS_AT_ONCE = 1 << 20, 1
open_store(Remote({str(place)!r})).send({f"a/{digest}"!r}, Path({str(tmp_path / "file")!r}))
"""
    faults = Faults(Random(1), slow=1.0, slow_s=1.0)
    with failing(server, faults) as address:
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, env=environment(address)) as writer:
            until_s = time.monotonic() + 60
            while faults.seen["slow"] < 4:  # does it exist, begin, first part, second part
                assert writer.poll() is None and time.monotonic() < until_s
                time.sleep(0.02)
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
    monkeypatch.setattr(objects, "ONE_REQUEST_BYTES", 1 << 20)
    store = open_store(place)
    assert store.names("") == []
    keep_file(store, f"a/{digest}", tmp_path / "file", digest, _never)
    assert digest_of(store, f"a/{digest}", _never) == digest


def test_object_lock_keeps_what_is_there(endpoint: str, tmp_path: Path) -> None:
    """Goal: an archiver's key cannot shorten an archive. Method: archive into a locked bucket, remove, go on."""
    make_locked_bucket(endpoint, "kept-for-good")
    place = new_place("kept-for-good")
    layout, store = layout_of(place), open_store(place)
    fill_archive(layout, VALUES[:20])
    names = store.names("")
    assert [store.remove(name) for name in names] == [False] * len(names)
    manifest, heads = fill_archive(layout, VALUES)
    layout.remove_orphans([segment.facts for segment in manifest.segments[1:]])
    assert set(names) < set(store.names(""))
    assert verify_archive(layout, SIGNER.public_key, heads.newest).findings == []


def test_wrong_credentials_are_an_error_of_their_own(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: refused is neither missing nor an outage. Method: another secret, for each call."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    store = open_store(new_place())
    for call in (lambda: store.names(""), lambda: store.read("a"), lambda: store.create("a", [b"one"])):
        with pytest.raises(PlaceAccessDenied) as failed:
            call()
        assert failed.value.code is Code.PLACE_ACCESS_DENIED
        assert SECRET not in failed.value.detail
    with pytest.raises(PlaceAccessDenied):
        load_manifest(layout_of(new_place()))


def test_a_server_that_ignores_the_condition_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody relies on what is not there. Method: the same server without metadata overwrites."""
    with served(tmp_path, "--nometa") as address:
        use(address, monkeypatch)
        lines = ObjectLines(open_store(new_place()), _never)
        lines.append(0, b"line\n")
        with pytest.raises(ConfigError) as refused:
            lines.refuse_unsafe()
        assert refused.value.code is Code.PLACE_UNSAFE
        assert lines.read() == b"line\n"


def _never(seconds: float) -> None:
    raise AssertionError(f"waited {seconds} s for a store that answers")


def test_a_server_that_is_gone_is_unavailable_and_what_it_kept_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an outage is neither an empty place nor a loss. Method: end the server, call, start one on its folder."""
    place = new_place()
    with served(tmp_path) as address:
        use(address, monkeypatch)
        store = open_store(place)
        store.create("a/1", [b"one"])
    for call in (lambda: store.names(""), lambda: store.read("a/1"), lambda: store.create("a/1", [b"one"])):
        with pytest.raises(PlaceUnavailable):
            call()
    with served(tmp_path) as address:
        use(address, monkeypatch)
        store = open_store(place)
        assert (store.names(""), store.read("a/1")) == (["a/1"], b"one")


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_an_archive_on_a_server_that_fails_has_each_record_once(
    server: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: 503s, lost answers and slow ones cost time only. Method: archive through a server that does each by chance.

    An archiver that gave up is followed by another one, as after a kill.
    """
    monkeypatch.setattr(objects, "ONE_REQUEST_BYTES", 1 << 10)  # segments are sent in parts
    faults = Faults(Random(seed), refused=0.15, lost=0.1, slow=0.05, slow_s=0.05)
    place = new_place()
    with failing(server, faults) as address:
        use(address, monkeypatch)
        heads = _given_up_and_begun_again(lambda: fill_archive(layout_of(place), VALUES)[1])
        _given_up_and_begun_again(lambda: _verify(place, heads))
    assert all(faults.seen[one] for one in ("refused", "lost", "slow")), faults.seen
    use(server, monkeypatch)
    manifest = load_manifest(layout_of(place), SIGNER.public_key)
    found = [record.value for segment in manifest.segments for record in manifest.records(segment.facts)]
    assert found == VALUES


def _verify(place: Remote, heads: HeadsInMemory) -> None:
    assert verify_archive(layout_of(place), SIGNER.public_key, heads.newest).findings == []


def _given_up_and_begun_again(call: Callable[[], ResultT]) -> ResultT:
    """What a call gives. A server that fails a quarter of all requests ends one call in some hundreds after all its
    attempts, and whoever made it begins again."""
    for _ in range(10):
        try:
            return call()
        except (PlaceUnavailable, ArchiveContended):
            continue
    raise AssertionError("ten gave up")
