"""The tables in a real Hive metastore: registered once, found by name, and appended to whatever becomes of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate
from deltalake import DeltaTable

from pipeline.tables.catalogue import hive
from pipeline.tables.catalogue.hive import Hive
from pipeline.tables.catalogue.rules import registrations
from pipeline.tables.delta import Table, look
from pipeline.tables.rows import COMPLETIONS, REQUESTS, SCHEMAS, VERDICTS
from replica.active.signer import create_key
from replica.config.file import render_config
from replica.local.ports import PortReservation
from replica.log.in_memory.server import TimedTopic
from replica.notary.errors import CatalogueRefused, CatalogueUnavailable, ConfigError
from tests.certificates import Authority
from tests.pipeline.judged import TOPIC
from tests.pipeline.read_delta import JARS
from tests.pipeline.signed_log import longer_values
from tests.worlds.metastore import Metastore
from tests.worlds.served_log import served_log

ENDS_S = 240.0  # for a command, a Spark's start included
PASSWORD = "of-the-tests"
VALUES = longer_values()
NAMES = [f"notary.{name}" for name in sorted(SCHEMAS)]


@dataclass
class Job:
    """A notary's configuration with a log of its own, and who runs the tables' job with it."""

    folder: Path
    topic: TimedTopic
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def append(self, values: list[bytes]) -> None:
        for value in values:
            self.topic.store(value)

    def argv(self, *words: str) -> list[str]:
        words = (*words, "--engine", "process") if words[0] == "run" else words  # either registers tables alike
        return [sys.executable, "-m", "replica.cli", "tables", *words, "--config", str(self.folder / "notary.toml")]

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words), capture_output=True, text=True, timeout=ENDS_S, check=False, env=self.environment
        )

    def told(self, *words: str) -> dict[str, Any]:
        done = self.types(*words, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def standings(self) -> dict[str, str]:
        return {name: table.get("catalogue", "") for name, table in self.told("status")["tables"].items()}

    @contextmanager
    def following(self) -> Iterator[Path]:
        """The job with --follow, as a process of its own; its standard error as a file."""
        said = self.folder / "said"
        with said.open("wb") as err, subprocess.Popen(self.argv("run", "--follow"), stderr=err) as process:
            try:
                yield said
                assert process.poll() is None, said.read_text()
            finally:
                process.send_signal(signal.SIGKILL)

    def reached(self) -> int:
        """The log offset that the tables reached, -1 before there are any."""
        with suppress(ConfigError):
            return int(look(self.folder / "tables" / REQUESTS)["offset"])
        return -1


def until(holds: Callable[[], object], said: Path, most_s: float = 60.0) -> None:
    """Wait until something holds."""
    end_s = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < end_s, said.read_text()
        time.sleep(0.1)


@contextmanager
def a_job(folder: Path, port: int, **catalogue: object) -> Iterator[Job]:
    """A job whose tables are registered in a metastore at this port."""
    folder.mkdir(exist_ok=True)
    create_key(folder / "notary.key")
    with served_log(TOPIC) as (topic, log):
        values = {
            "data_dir": "data",
            "notary_key_file": "notary.key",
            "endpoint": {"host": "127.0.0.1", "port": 1},
            "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
            "database": {"conninfo": "host=127.0.0.1 dbname=nobody", "scope": "nobody"},
            "log": {"kind": "memory", "memory": {"socket_path": str(log.socket_path)}},
            "tables": {
                "interval_s": 1.0,
                "catalogue": {"host": "127.0.0.1", "port": port, "look_s": 1.0} | catalogue,
            },
        }
        (folder / "notary.toml").write_text(render_config(values, "test"))
        yield Job(folder, topic)


@pytest.fixture
def metastore(tmp_path: Path) -> Iterator[Metastore]:
    """A metastore that runs."""
    with PortReservation() as ports:
        server = Metastore(tmp_path, ports.take())
        server.start()
        yield server
        server.kill()


@pytest.fixture
def job(metastore: Metastore, tmp_path: Path) -> Iterator[Job]:
    """A job with a log that has not all of its records yet."""
    with a_job(tmp_path / "job", metastore.port) as job:
        job.append(VALUES[:9])
        yield job


def asked(metastore: Metastore, ask: Callable[[Any], Any]) -> Any:
    """What the metastore answers to somebody else."""
    with Hive("127.0.0.1", metastore.port, "notary")._connected() as call:
        return ask(call)


def drop(metastore: Metastore, name: str) -> None:
    asked(metastore, lambda call: call.drop_table("notary", name, False))


def test_tables_are_registered_once_and_again_when_they_were_dropped(metastore: Metastore, job: Job) -> None:
    """Goal: each table has its name, and keeps it. Method: run, run again, drop one, run; nothing is lost by it."""
    assert job.told("run") == {"offset": 8, "appended_records": 9, "registered": NAMES}
    assert set(job.standings().values()) == {"registered"}
    job.append(VALUES[9:])
    assert job.told("run")["registered"] == []
    drop(metastore, VERDICTS)
    assert job.standings() == dict.fromkeys(SCHEMAS, "registered") | {VERDICTS: "not registered"}
    reached = job.reached()
    assert job.told("run")["registered"] == [f"notary.{VERDICTS}"]
    assert set(job.standings().values()) == {"registered"} and job.reached() == reached


@pytest.mark.slow
def test_a_name_that_is_taken_stays_whose_it_is(metastore: Metastore, job: Job, tmp_path: Path) -> None:
    """Goal: no reader of one notary's tables gets another's. Method: a second notary with the same schema, while the
    first of the names is free: its rows are appended, nothing is registered."""
    job.told("run")
    drop(metastore, COMPLETIONS)
    with a_job(tmp_path / "other", metastore.port) as other:
        other.append(VALUES)
        refused = other.types("run")
        assert (refused.returncode, "CATALOGUE_NAME_TAKEN" in refused.stderr) == (1, True), refused.stderr
        assert f"{tmp_path}/job/tables" in refused.stderr and f"{tmp_path}/other/tables" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert other.reached() == len(VALUES) - 1
        assert other.standings() == dict.fromkeys(SCHEMAS, "the name is taken") | {COMPLETIONS: "not registered"}
    assert job.standings() == dict.fromkeys(SCHEMAS, "registered") | {COMPLETIONS: "not registered"}


@pytest.mark.thorough
def test_columns_follow_those_of_the_table(metastore: Metastore, job: Job) -> None:
    """Goal: the catalogue shows what the table has, and keeps what others noted. Method: a table of an older release,
    with a column of a user's, registered, and noted upon; the job adds the column of ours."""
    older = pa.schema([one for one in SCHEMAS[VERDICTS] if one.name != "notarised_offset"])
    folder = job.folder / "tables"
    table = Table(folder / VERDICTS, older.append(pa.field("theirs", pa.list_(pa.float64()))), TOPIC)
    catalogue = Hive("127.0.0.1", metastore.port, "notary")
    assert catalogue.register(registrations(folder, {VERDICTS: table.schema})) == [f"notary.{VERDICTS}"]

    def note(call: Any) -> None:
        found = call.get_table_req(hive._thrift.GetTableRequest("notary", VERDICTS)).table
        found.parameters["comment"] = "ours since Monday"
        call.alter_table("notary", VERDICTS, found)

    asked(metastore, note)
    assert job.told("run")["registered"] == NAMES
    found = asked(metastore, lambda call: call.get_table_req(hive._thrift.GetTableRequest("notary", VERDICTS)).table)
    types = {column.name: column.type for column in found.sd.cols}
    assert types.items() >= {"theirs": "array<double>", "notarised_offset": "bigint", "judged_at": "timestamp"}.items()
    assert found.parameters["comment"] == "ours since Monday"
    assert job.told("run")["registered"] == []


@pytest.mark.slow
def test_what_a_metastore_does_not_take_is_told_in_its_words(metastore: Metastore, job: Job) -> None:
    """Goal: a person sees what stands in the way, and rows are appended. Method: the table is registered with another
    type for a column, which a metastore does not change."""
    other = json.dumps({"fields": [{"name": "log_offset", "type": "string"}]})
    Hive("127.0.0.1", metastore.port, "notary").register(registrations(job.folder / "tables", {REQUESTS: other}))
    refused = job.types("run")
    assert (refused.returncode, "CATALOGUE_REFUSED: " in refused.stderr) == (1, True), refused.stderr
    assert "types incompatible" in refused.stderr and "log_offset" in refused.stderr
    assert job.reached() == 8 and job.standings()[REQUESTS] == "registered, with other columns"


@pytest.mark.slow
def test_a_user_without_the_right_is_told_so(tmp_path: Path) -> None:
    """Goal: one knows that it is a right, not an outage; rows are appended. Method: a metastore that looks at the
    rights in the store of files, and a user who has none."""
    security = "org.apache.hadoop.hive.ql.security"
    settings = {
        "hive.metastore.pre.event.listeners": f"{security}.authorization.AuthorizationPreEventListener",
        "hive.security.metastore.authorization.manager": f"{security}.authorization.StorageBasedAuthorizationProvider",
        "hive.security.metastore.authenticator.manager": f"{security}.HadoopDefaultMetastoreAuthenticator",
    }
    with PortReservation() as ports, a_job(tmp_path / "job", port := ports.take()) as job:
        server = Metastore(tmp_path, port, settings)
        server.start()
        try:
            job.append(VALUES)
            job.environment["HADOOP_USER_NAME"] = "stranger"
            refused = job.types("run")
            assert (refused.returncode, "CATALOGUE_ACCESS_DENIED" in refused.stderr) == (1, True), refused.stderr
            assert job.reached() == len(VALUES) - 1
            del job.environment["HADOOP_USER_NAME"]
            assert job.told("run")["registered"] == NAMES
        finally:
            server.kill()


@pytest.mark.slow
def test_a_metastore_with_tls_is_trusted_by_its_authorities_alone(tmp_path: Path) -> None:
    """Goal: beyond this machine nobody else is told who keeps what where. Method: a metastore with a certificate; its
    authority, another one, and none."""
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    keys = keystore(tmp_path, *ours.issue("metastore"))
    settings = {
        "hive.metastore.use.SSL": "true",
        "hive.metastore.keystore.path": str(keys),
        "hive.metastore.keystore.password": PASSWORD,
    }
    with PortReservation() as ports:
        server = Metastore(tmp_path, ports.take(), settings)
        server.start()
        try:
            wanted = registrations(tmp_path, {})
            assert Hive("127.0.0.1", server.port, "notary", ours.ca_file).register(wanted) == []
            with pytest.raises(CatalogueUnavailable, match="no trusted connection"):
                Hive("127.0.0.1", server.port, "notary", other.ca_file).register(wanted)
            with pytest.raises(CatalogueRefused, match="it wants TLS"):
                Hive("127.0.0.1", server.port, "notary").register(wanted)
        finally:
            server.kill()


def keystore(folder: Path, certificate: Path, key: Path) -> Path:
    """Certificate and key as Java reads them."""
    held = pkcs12.serialize_key_and_certificates(
        b"metastore",
        load_pem_private_key(key.read_bytes(), None),  # type: ignore[arg-type]
        load_pem_x509_certificate(certificate.read_bytes()),
        None,
        BestAvailableEncryption(PASSWORD.encode()),
    )
    (folder / "metastore.p12").write_bytes(held)
    return folder / "metastore.p12"


@pytest.mark.slow
def test_a_metastore_that_comes_and_goes_stops_no_append(metastore: Metastore, job: Job) -> None:
    """Goal: rows come in time whatever becomes of the catalogue, and registrations come back by themselves. Method:
    follow while it is killed, started, killed again, and a registration dropped; the log grows meanwhile."""
    metastore.kill()
    with job.following() as said:
        until(lambda: job.reached() == 8, said)
        until(lambda: "CATALOGUE_UNAVAILABLE" in said.read_text(), said)
        job.append(VALUES[9:12])
        until(lambda: job.reached() == 11, said)
        metastore.start()
        until(lambda: set(job.standings().values()) == {"registered"}, said)
        metastore.kill()
        failures = said.read_text().count("CATALOGUE_UNAVAILABLE")
        job.append(VALUES[12:])
        until(lambda: job.reached() == len(VALUES) - 1, said)
        until(lambda: said.read_text().count("CATALOGUE_UNAVAILABLE") > failures, said)
        status = job.told("status")
        assert status["catalogue"].startswith("CATALOGUE_UNAVAILABLE: ") and status["offset"] == len(VALUES) - 1
        metastore.start()
        drop(metastore, COMPLETIONS)
        until(lambda: set(job.standings().values()) == {"registered"}, said, 120.0)
        assert "Traceback" not in said.read_text()


@pytest.mark.thorough
def test_a_catalogue_that_never_answers_stops_no_append(tmp_path: Path) -> None:
    """Goal: the same for one that hangs. Method: follow with a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent, a_job(tmp_path / "job", silent.getsockname()[1]) as job:
        job.append(VALUES[:9])
        with job.following() as said:
            until(lambda: job.reached() == 8, said)
            began_s = time.monotonic()
            job.append(VALUES[9:])
            until(lambda: job.reached() == len(VALUES) - 1, said)
            assert time.monotonic() - began_s < hive.ANSWER_MAX_S


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not JARS.exists(), reason="no jars of Delta: `make lake` fetches them")
def test_spark_finds_the_tables_by_name(metastore: Metastore, job: Job, tmp_path: Path) -> None:
    """Goal: a reader needs names alone. Method: SQL on Spark with the metastore as its catalogue."""
    job.append(VALUES[9:])
    job.told("run")
    command = [
        *(sys.executable, "-m", "tests.pipeline.read_delta", "notary", str(tmp_path / "found")),
        f"thrift://127.0.0.1:{metastore.port}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found").read_text())
    assert [row["log_offset"] for row in found["decided"]] == sorted(
        DeltaTable(str(job.folder / "tables" / REQUESTS))
        .to_pyarrow_table(columns=["log_offset"])["log_offset"]
        .to_pylist()
    )
    assert (found["conflicts"], found["days"]) == ([5, 7, 19], 1)
