"""The tables on a real S3 server: each record once, whatever is killed, refused, lost or done by two at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipeline.places.open import open_store
from pipeline.tables import delta
from pipeline.tables.rows import COMPLETIONS, CONFLICTS, EPOCHS, REQUESTS, SCHEMAS, VERDICTS
from pipeline.tables.write import TablesWriter, open_writer
from replica.notary.codes import Code
from replica.notary.errors import ArchiveContended, ConfigError, PlaceAccessDenied, PlaceUnavailable
from replica.notary.places import Remote
from tests.pipeline.delta_tables import expiring
from tests.pipeline.judged import TOPIC, by_replica
from tests.pipeline.signed_log import longer_values
from tests.worlds.s3_server import BUCKET, ENVIRONMENT, Faults, failing, served

VALUES = list(enumerate(longer_values()))
ENDS_S = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server."""
    with served(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture
def place(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """A place of its own on it, which this process has the credentials for."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    open_store.cache_clear()
    yield Remote(f"s3a://{BUCKET}/{uuid4().hex}")
    open_store.cache_clear()


def append(place: Remote, index: Path, runs: int = 4) -> None:
    """Run the job once, in so many runs."""
    with open_writer(place, index, TOPIC) as writer:
        append_runs(writer, runs)


def append_runs(writer: TablesWriter, runs: int) -> None:
    size = -(-len(VALUES) // runs)
    while writer.position.offset + 1 < len(VALUES):
        start = writer.position.offset + 1
        writer.append(VALUES[start : start + size])


def rows(place: Remote, name: str) -> list[dict[str, Any]]:
    """A table's rows, by offset; any reader of Delta Lake with the same credentials finds them."""
    found = DeltaTable(f"{place}/{name}").to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["log_offset"], row.get("ledger_offset")))


def assert_each_once(place: Remote) -> None:
    """No row of the log's is missing, none is there twice."""
    decided = sorted(by_replica([value for _, value in VALUES]).verdicts)
    assert [row["log_offset"] for row in rows(place, REQUESTS)] == decided
    assert [row["log_offset"] for row in rows(place, VERDICTS)] == decided
    assert [row["log_offset"] for row in rows(place, CONFLICTS)] == [5, 7, 19]
    assert [row["log_offset"] for row in rows(place, EPOCHS)] == [1, 3, 14]
    completed = [row["ledger_offset"] for row in rows(place, COMPLETIONS)]
    assert completed == list(range(1, len(decided) + 1))


def test_tables_in_a_bucket_are_gone_on_with(place: Remote, tmp_path: Path) -> None:
    """Goal: as in a folder. Method: half of the log, the rest with the index lost; look at each table."""
    with open_writer(place, tmp_path / "index", TOPIC) as writer:
        writer.append(VALUES[:7])
    append(place, tmp_path / "another index")
    assert_each_once(place)
    assert delta.look(Remote(f"{place}/{REQUESTS}"))["offset"] == len(VALUES) - 1


@pytest.mark.thorough
def test_refused_lost_and_late_answers_cost_time_only(
    place: Remote, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no row is lost or doubled by a store that fails now and then. Method: a server that refuses with 503, drops
    answers after the work is done, and delays; the job is started again as the service does."""
    faults = Faults(Random(1), refused=0.1, lost=0.1, slow=0.05)
    with failing(server, faults) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        for _ in range(20):
            try:
                append(place, tmp_path / "index", runs=8)
                break
            except PlaceUnavailable:
                continue
        else:
            pytest.fail("no attempt came to its end")
    assert faults.seen["refused"] and faults.seen["lost"], faults.seen
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    assert_each_once(place)


def test_a_commit_whose_answer_is_lost_blames_nobody(
    place: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: our own commit, met again, is no other writer's. Method: appends that are done and told as refused."""
    write = delta.write_deltalake

    def lost(*given: Any, **named: Any) -> None:
        write(*given, **named)
        raise CommitFailedError("the name is taken")

    with monkeypatch.context() as changed:
        changed.setattr(delta, "write_deltalake", lost)
        append(place, tmp_path / "index")
    assert_each_once(place)


@pytest.mark.thorough
def test_a_job_needs_no_right_to_delete(
    place: Remote, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a key that may delete nothing will do. Method: a table with a checkpoint at every other commit and expired
    log entries, appended to through a server that refuses deletions; cleaned up by who may, it is opened again."""
    with open_writer(place, tmp_path / "index", TOPIC):
        expiring(f"{place}/{REQUESTS}")
    keeping = Faults(Random(0), keeps=True)
    with failing(server, keeping) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        append(place, tmp_path / "index", runs=5)
        assert keeping.seen["denied"] == 0
        with pytest.raises(OSError, match="403"):
            DeltaTable(f"{place}/{REQUESTS}").cleanup_metadata()
    assert keeping.seen["denied"] > 0
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    DeltaTable(f"{place}/{REQUESTS}").cleanup_metadata()
    append(place, tmp_path / "another index")
    assert_each_once(place)


def test_of_two_writers_one_is_refused(place: Remote, tmp_path: Path) -> None:
    """Goal: two machines add no row twice. Method: two jobs with indexes of their own, from the same state."""
    with open_writer(place, tmp_path / "ours", TOPIC) as ours, open_writer(place, tmp_path / "theirs", TOPIC) as theirs:
        theirs.append(VALUES[:5])
        with pytest.raises(ArchiveContended):
            append_runs(ours, 2)
    append(place, tmp_path / "ours")
    assert_each_once(place)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "point", [f"pipeline.tables.delta:Table.append{side}{number}" for side in "-+" for number in (1, 6)]
)
def test_a_writer_that_is_killed(place: Remote, tmp_path: Path, point: str) -> None:
    """Goal: a killed job leaves nothing half done. Method: SIGKILL in a process of its own, around an append; go on."""
    arguments = msgspec.json.encode({"place": str(place), "index": str(tmp_path / "index")}).decode()
    killed = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.killed_job", point, "tables", arguments], timeout=ENDS_S, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    append(place, tmp_path / "index")
    assert_each_once(place)


def test_refused_credentials_and_a_store_that_overwrites_have_codes(
    place: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what needs a person says so. Method: a wrong secret; a store that creates what is there."""
    append(place, tmp_path / "index")
    with monkeypatch.context() as changed:
        changed.setattr("pipeline.places.objects.ObjectsStore.create", lambda *given: None)
        with pytest.raises(ConfigError) as refused:
            append(place, tmp_path / "index")
        assert refused.value.code is Code.PLACE_UNSAFE
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "withdrawn")
    with pytest.raises(PlaceAccessDenied):
        delta.look(Remote(f"{place}/{sorted(SCHEMAS)[0]}"))
