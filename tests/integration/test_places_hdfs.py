"""Stores of objects, and archives in them, on a real HDFS: a NameNode and a DataNode on loopback.

CI runs two of these tests, for which the servers start once; the others are slow ones (`make lake`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.archive.layout import layout_of
from pipeline.archive.lines import ObjectLines
from pipeline.archive.manifest import load_manifest
from pipeline.archive.verify import verify_archive
from pipeline.places import hdfs as adapter
from pipeline.places.hdfs import PARTIAL, HdfsStore
from pipeline.places.open import open_store
from pipeline.places.store import Store, keep
from replica.local.ports import PortReservation
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, PlaceAccessDenied, PlaceUnavailable
from replica.notary.places import Remote, place_of
from tests.contracts.place_contract import PlaceContract
from tests.contracts.report_place_contract import ReportPlaceContract
from tests.contracts.shipping_contract import ShippingToObjects
from tests.worlds.archive_world import SIGNER, fill_archive, some_log
from tests.worlds.hdfs_server import Hdfs, hdfs

pytestmark = pytest.mark.thorough

VALUES = some_log(35)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ports: PortReservation) -> Iterator[Hdfs]:
    """A file system that takes files."""
    with hdfs(tmp_path_factory.mktemp("hdfs"), ports) as running:
        yield running


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Stores are opened anew by each test, with what its environment says then."""
    yield
    open_store.cache_clear()


def new_place(server: Hdfs) -> Remote:
    """A place that nobody has used."""
    return Remote(f"{server.address}/lake/place-{uuid4().hex}")


@pytest.fixture
def place(server: Hdfs) -> Remote:
    """A place that nobody has used."""
    return new_place(server)


@pytest.mark.slow
class TestHdfs(PlaceContract):
    @pytest.fixture
    def store(self, place: Remote) -> Store:
        return open_store(place)


@pytest.mark.slow
class TestShippingToHdfs(ShippingToObjects):
    @pytest.fixture
    def site(self, place: Remote) -> Remote:
        return place


@pytest.mark.slow
class TestReportsInHdfs(ReportPlaceContract):
    pass


def test_an_archive_is_kept_and_damage_to_it_is_found(place: Remote) -> None:
    """Goal: whoever verifies does not ask where it was. Method: archive, go on, verify; lose an object, replace one."""
    layout, store = layout_of(place), open_store(place)
    fill_archive(layout, VALUES[:20])
    manifest, heads = fill_archive(layout, VALUES)
    layout.refuse_unsafe()
    assert verify_archive(layout, SIGNER.public_key, heads.newest).findings == []
    found = [record.value for segment in manifest.segments for record in manifest.records(segment.facts)]
    assert found == VALUES
    first, second, *_ = (name for name in store.names("segments/") if name.endswith(".parquet"))
    content = store.read(first)
    store.remove(first)
    assert verify_archive(layout, SIGNER.public_key, heads.newest).findings != []
    store.create(first, [store.read(second)])
    assert verify_archive(layout, SIGNER.public_key, heads.newest).findings != []
    store.remove(first)
    store.create(first, [content])
    assert verify_archive(layout, SIGNER.public_key, heads.newest).findings == []


def test_a_killed_writer_leaves_nothing_under_the_name(place: Remote) -> None:
    """Goal: whole or not at all, by SIGKILL, too. Method: a process is killed between two parts; another writes."""
    program = f"""
from pipeline.places.open import open_store
from replica.notary.places import Remote
def parts():
    yield b"half" * 100_000
    print("half", flush=True)
    input()
open_store(Remote({str(place)!r})).create("a/1", parts())
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        writer.send_signal(signal.SIGKILL)
    store = open_store(place)
    assert store.names("") == []
    store.create("a/1", [b"whole"])
    assert (store.names(""), store.read("a/1")) == (["a/1"], b"whole")
    store.remove("a/1")
    host, _, root = place.removeprefix("hdfs://").partition("/")
    assert len(HdfsStore(f"hdfs://{host}", f"/{root}/{PARTIAL}").names("")) == 1  # until somebody removes it


@pytest.mark.slow
def test_a_lost_answer_to_a_rename_is_not_taken_for_a_loss(place: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: our own object is ours. Method: the library asks again for a rename that was done, as it does by itself."""
    store = open_store(place)
    assert isinstance(store, HdfsStore)
    rename = store._client.rename
    told = []

    def twice(source: str, target: str, overwrite: bool) -> None:
        rename(source, target, overwrite)
        told.append(target)
        rename(source, target, overwrite)

    monkeypatch.setattr(store._client, "rename", twice)
    waits: list[float] = []
    keep(store, "a/1", b"ours", waits.append)
    assert (store.read("a/1"), waits, len(told)) == (b"ours", [], 1)


@pytest.mark.slow
def test_no_right_is_an_error_of_its_own(place: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: refused is neither missing nor an outage. Method: another user, in a folder that is closed to others."""
    open_store(place).create("a/1", [b"one"])
    open_store.cache_clear()
    monkeypatch.setenv("HADOOP_USER_NAME", "eve")
    store = open_store(place)
    for call in (lambda: store.names(""), lambda: store.read("a/1"), lambda: store.create("a/2", [b"two"])):
        with pytest.raises(PlaceAccessDenied, match="Permission denied: user=eve") as failed:
            call()
        assert failed.value.code is Code.PLACE_ACCESS_DENIED
    assert store.remove("a/1") is False
    with pytest.raises(PlaceAccessDenied):
        load_manifest(layout_of(place))


@pytest.mark.slow
def test_a_name_service_is_found_in_the_configuration(
    server: Hdfs, place: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: two NameNodes have one name. Method: with the folder of configuration, and without."""
    open_store(place).create("a/1", [b"one"])
    by_service = place_of(place.replace(server.address, f"hdfs://{server.service}"))
    assert isinstance(by_service, Remote)
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR"):
        open_store(by_service).names("")
    open_store.cache_clear()
    monkeypatch.setenv("HADOOP_CONF_DIR", str(server.configuration))
    assert open_store(by_service).names("") == ["a/1"]


@pytest.mark.slow
def test_a_frozen_name_node_is_unavailable_and_what_it_kept_is_there_again(
    server: Hdfs, place: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody waits for ever, and an outage is no loss. Method: stop the process, call, let it go on."""
    store = open_store(place)
    ObjectLines(store, time.sleep).append(0, b"line\n")
    server.name_node.send_signal(signal.SIGSTOP)
    try:
        monkeypatch.setattr(adapter, "CALL_MAX_S", 1.0)
        monkeypatch.setattr(adapter, "LIST_MAX_S", 1.0)
        for call in (lambda: store.names(""), lambda: store.read("a/1"), lambda: store.create("a/1", [b"one"])):
            with pytest.raises(PlaceUnavailable, match="did not answer"):
                call()
    finally:
        server.name_node.send_signal(signal.SIGCONT)
        monkeypatch.undo()
    assert ObjectLines(store, time.sleep).read() == b"line\n"


@pytest.mark.slow
def test_where_nobody_listens_it_is_unavailable_at_once(tmp_path: Path, ports: PortReservation) -> None:
    """Goal: seconds, not the library's three minutes. Method: a port that nobody listens on."""
    began_s = time.monotonic()
    with pytest.raises(PlaceUnavailable, match="Connection refused"):
        open_store(Remote(f"hdfs://127.0.0.1:{ports.take()}/a")).names("")
    assert time.monotonic() - began_s < 10
