"""Further codes as a person meets them: files, archives, a local cluster, and what does not answer. No server runs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pyspark.errors import PySparkException

from pipeline.archive.layout import FolderLayout
from pipeline.sources.topic import TopicView
from replica.active.signer import create_key
from replica.health import ReplicaHealth
from replica.index.rocks import RocksIndex
from replica.operators.admin import AdminListener, Steering
from tests.steering import NOBODY, Trail
from tests.unit.cli.test_codes_that_people_see import told
from tests.unit.cli.test_what_people_see import folder, free_port, see, write  # noqa: F401  (fixtures)
from tests.worlds.archive_world import make_archive, some_log
from tests.worlds.stores import MemoryStore
from tests.worlds.trails import kept_here

ARCHIVE_KEY = Ed25519PrivateKey.from_private_bytes(b"a" * 32)  # of the archives of the tests


@contextmanager
def web_server(body: bytes) -> Iterator[int]:
    """The port of a server that gives this answer to every question."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # who asks may have given up
                self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(5)


def test_a_program_of_another_kind_at_the_endpoint(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: it is not waited for. Method: a web page where the API was looked for."""
    with web_server(b"<html>welcome</html>") as port:
        seen = see("completions", "--endpoint", f"http://127.0.0.1:{port}")
    assert (seen.code, told(seen.err, "ANSWER_UNREADABLE"), "welcome" in seen.err) == (1, True, True)


def health_of(name: str, role: str) -> bytes:
    """What a replica in this role answers for its health."""
    active = role == "active"
    health = ReplicaHealth(
        replica=name, version="0.2.0", role=role, active=active, ready=True, epoch=7, applied_offset=3,
        lag_records=0, reaches_log=True, front_ends=2, lock_owner="r1", hold_down_s=0.0, ledger_end=1,
        activation_steps_s={}, lock_answer_age_s=0.1,
    )  # fmt: skip
    return msgspec.json.encode(health)


def test_an_active_replica_whose_admin_listener_is_elsewhere(folder: Path, see, monkeypatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: one learns where to type it. Method: replicas that answer for their health, and for nothing else."""
    kept_here(monkeypatch)
    create_key(folder / "notary.key")
    other = '[[replicas]]\nname = "r2"\nhost = "127.0.0.1"\napi_port = 15995\nhealth_port = {}\n'
    with web_server(health_of("r1", "active")) as first, web_server(health_of("r2", "passive")) as second:
        write(folder, "[database]", other.format(second) + "[database]", health=first)
        seen = see("switchover")
    assert (seen.code, told(seen.err, "REPLICA_UNREACHABLE"), "r1's admin listener" in seen.err) == (2, True, True)


@contextmanager
def admin_listener(steering: Steering, path: Path) -> Iterator[None]:
    """A replica's own admin listener, in a thread."""
    ready: Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Queue()

    async def serve() -> None:
        listener, over = AdminListener(steering, dict, (), path), asyncio.Event()
        await listener.start()
        ready.put((asyncio.get_running_loop(), over))
        await over.wait()
        await listener.stop()

    thread = Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    loop, over = ready.get(timeout=10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)


def test_a_switchover_to_a_replica_that_may_not_lead(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: the reason, and what to type instead. Method: the active replica refuses what the command's own copy of the
    configuration, an older one, would allow."""
    beside: dict[str, Any] = {"registrar": NOBODY, "book": NOBODY, "consent": Trail()}
    kept_here(monkeypatch)
    create_key(folder / "notary.key")
    (folder / "data" / "r1").mkdir(parents=True)
    steering = Steering("r1", ("r1", "r2"), NOBODY, lambda: False, NOBODY, **beside, barred={"r2"})
    other = '[[replicas]]\nname = "r2"\nhost = "127.0.0.1"\napi_port = 15995\nhealth_port = {}\n'
    with (
        web_server(health_of("r1", "active")) as first,
        web_server(health_of("r2", "passive")) as second,
        admin_listener(steering, folder / "data" / "r1" / "admin.sock"),
    ):
        write(folder, "[database]", other.format(second) + "[database]", health=first)
        seen = see("switchover", "--to", "r2")
    assert (seen.code, told(seen.err, "NOT_POSSIBLE_NOW")) == (2, True), seen.err
    assert "r2 may not hold the lock (replicas.may_lead = false): name another one, or none (MAY_NOT_LEAD)" in seen.err


def test_a_service_that_does_not_sign(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: one looks at the service, and may repeat. Method: the notary's key in a KMS, where nobody listens."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-the-tests")
    kms = f'[kms]\nkey_id = "alias/notary-1"\nregion = "eu-west-2"\nendpoint = "http://127.0.0.1:{free_port()}"\n'
    write(folder, 'notary_key_file = "notary.key"\n', "")
    (folder / "notary.toml").write_text((folder / "notary.toml").read_text() + kms)
    seen = see("keys", "show", "--kms")
    assert (seen.code, told(seen.err, "SIGNER_UNAVAILABLE"), "gave no answer" in seen.err) == (1, True, True), seen.err


def test_an_archive_that_this_account_may_not_read(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: nobody takes a missing right for damage. Method: a manifest that cannot be opened."""
    make_archive(folder / "archive", some_log(20))

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    seen = see("archive", "status")
    assert (seen.code, told(seen.err, "PLACE_ACCESS_DENIED"), "manifest.jsonl" in seen.err) == (1, True, True), seen.err


def test_an_archive_that_is_not_there_and_one_that_was_edited(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: an archive that nobody made yet is no damage. Method: none; whole; a letter of its manifest changed."""
    seen = see("archive", "status")
    assert (seen.code, told(seen.err, "NOT_POSSIBLE_NOW"), "notary archive run" in seen.err) == (2, True, True)
    make_archive(folder / "archive", some_log(20))
    assert json.loads(see("archive", "status", "--json").out)["last"] == 19
    manifest = folder / "archive" / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes().replace(b'"archive-1"', b'"archive-2"', 1))
    seen = see("archive", "status")
    assert (seen.code, told(seen.err, "ARCHIVE_DAMAGED"), "manifest.jsonl" in seen.err) == (1, True, True)


def test_a_checkpoint_where_something_lies(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: nobody takes a sound index for a damaged one. Method: into a folder that is there already."""
    RocksIndex(folder / "data" / "r1" / "index").close()
    (folder / "copy").mkdir()
    seen = see("index", "checkpoint", "copy", "--name", "r1")
    assert (seen.code, told(seen.err, "NOT_POSSIBLE_NOW"), "no checkpoint in copy" in seen.err) == (1, True, True)


def test_a_ledger_that_no_replica_has_made_yet(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: nobody looks for another database. Method: a notary without one, before its first start."""
    text = (folder / "notary.toml").read_text()
    shared = text[text.index("[database]") : text.index("[log]")]
    alone = '[election]\nkind = "lease"\n[database]\nconninfo = "sqlite:"\n'
    (folder / "notary.toml").write_text(text.replace(shared, alone))
    (folder / "none.jsonl").touch()
    create_key(folder / "notary.key")
    seen = see("check", "none.jsonl")
    assert (seen.code, told(seen.err, "NOT_POSSIBLE_NOW"), "start one" in seen.err) == (1, True, True), seen.err


def test_a_copy_of_another_archive(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: the second site's copy is never overwritten by another archive. Method: two archives that differ."""
    make_archive(folder / "archive", some_log(20))
    make_archive(folder / "second", some_log(10), segment_records=5)
    (folder / "archive.key").touch(mode=0o600)
    (folder / "archive.key").write_bytes(ARCHIVE_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    seen = see("recovery", "copy", "--to", "second")
    assert (seen.code, told(seen.err, "ARCHIVE_MISMATCH")) == (1, True)


def test_an_archiver_beside_another_one(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: nobody looks for a wrong setting, and the command may be repeated. Method: the archive's lock is held."""
    monkeypatch.setattr("pipeline.sources.topic.look_at", lambda settings: TopicView("a-topic", 0, 20))
    with FolderLayout(folder / "archive").alone():
        seen = see("archive", "run", "--engine", "process")
    assert (seen.code, told(seen.err, "ARCHIVE_CONTENDED"), str(folder / "archive") in seen.err) == (1, True, True)


def test_an_archive_in_a_store_that_overwrites(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: no archive is begun where two archivers could both append. Method: a store that ignores the condition."""

    class Overwriting(MemoryStore):
        def create(self, name: str, parts: Iterable[bytes]) -> None:
            self.objects[name] = b"".join(parts)

    store = Overwriting()
    monkeypatch.setattr("pipeline.sources.topic.look_at", lambda settings: TopicView("a-topic", 0, 20))
    monkeypatch.setattr("pipeline.archive.layout.open_store", lambda place: store)
    write(folder, "[api]", '[archive]\nfolder = "s3a://bucket/archive"\n[api]')
    seen = see("archive", "run", "--engine", "process")
    assert (seen.code, told(seen.err, "PLACE_UNSAFE"), "created a second time" in seen.err) == (2, True, True)
    assert len(store.objects) == 1, "only the manifest's first part was written"


def test_a_catalogue_without_its_client(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: one learns which extra it is before anything is appended. Method: its package is not there."""
    write(folder, "[api]", '[tables.catalogue]\nhost = "127.0.0.1"\n[api]')
    monkeypatch.setattr("replica.cli.tables.missing_packages", lambda *names: list(names))
    for words in (("run",), ("run", "--follow")):
        seen = see("tables", *words)
        assert (seen.code, told(seen.err, "PIPELINE_MISSING")) == (2, True), seen.err
        assert "pip install 'replicated-notary[hive]'" in seen.err and not (folder / "tables").exists()


def test_tables_that_are_not_there(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: nobody is told to try again for ever. Method: the status of tables that nobody made."""
    seen = see("tables", "status")
    assert (seen.code, told(seen.err, "NOT_POSSIBLE_NOW"), "notary tables run" in seen.err) == (2, True, True)


def test_a_store_of_files_that_does_not_answer(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: it may be repeated. Method: an address where nobody listens."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-the-tests")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("pipeline.places.store.ATTEMPTS", 1)
    seen = see("archive", "status", "--folder", "s3a://nobody/archive")
    assert (seen.code, told(seen.err, "PLACE_UNAVAILABLE")) == (1, True)


def test_a_salvage_that_was_changed(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: the file is named, and nothing of it is used. Method: bytes that are no salvage."""
    create_key(folder / "archive.key")
    (folder / "tail.salvage").write_bytes(b"no salvage")
    seen = see("index", "salvage", "tail.salvage", "--name", "r1")
    assert (seen.code, told(seen.err, "SALVAGE_DAMAGED"), "tail.salvage" in seen.err) == (1, True, True)
    assert not (folder / "data").exists()


def test_without_the_pipeline(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: one learns what to install. Method: a package of the extra that cannot be found."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    seen = see("audit")
    assert (seen.code, told(seen.err, "PIPELINE_MISSING"), "pyspark" in seen.err) == (2, True, True)


def test_a_job_that_fails_on_spark(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: the cause in one line, none of Java's trace, and it may be repeated. Method: a Spark without memory."""

    class WithoutMemory:
        stopped = False

        def stop(self) -> None:
            self.stopped = True

        def __getattr__(self, name: str) -> object:
            raise PySparkException(
                "Job aborted due to stage failure\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat X"
            )

    session = WithoutMemory()
    monkeypatch.setattr("pipeline.session.spark_session", lambda *place, **brought: session)
    make_archive(folder / "archive", some_log(20))
    key = ARCHIVE_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "archive.key").touch(mode=0o600)
    (folder / "archive.key").write_bytes(key)
    seen = see("audit", "--log", "archive", "--no-database")
    assert (seen.code, told(seen.err, "PIPELINE_FAILED"), session.stopped) == (1, True, True)
    assert ("Java heap space" in seen.err, "at X" in seen.err) == (True, False)


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_a_spark_cluster_that_does_not_answer(folder: Path, see, scheme: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: one code and one sentence at once, no trace. Method: an audit on a port where nobody listens."""
    master = f"{scheme}://127.0.0.1:{free_port()}"
    seen = see("audit", "--log", "archive", "--master", master)
    assert (seen.code, told(seen.err, "SPARK_UNAVAILABLE")) == (1, True), seen.err
    assert ("Connection refused" in seen.err, "Traceback" in seen.err, "Java" in seen.err) == (True, False, False)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder in which paths of sockets have room, whoever runs the tests."""
    with TemporaryDirectory(prefix="n") as made:
        yield Path(made)


def test_a_local_cluster_without_its_software(short: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: what fails while servers start together is told as what it is. Method: no broker; one that cannot run."""
    monkeypatch.chdir(short)
    libs = short / "libs"
    libs.mkdir()
    monkeypatch.setenv("NOTARY_KAFKA_LIBS", str(libs))
    seen = see("up", "--profile", "reference")
    assert (seen.code, told(seen.err, "LOCAL_SOFTWARE_MISSING"), str(libs) in seen.err) == (1, True, True)
    (libs / "kafka_2.jar").write_bytes(b"no archive of classes")
    seen = see("up", "again", "--profile", "reference")
    assert (seen.code, told(seen.err, "LOCAL_SERVER_FAILED"), "kafka-1" in seen.err) == (1, True, True)
