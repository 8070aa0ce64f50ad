"""The same jobs on a cluster of two workers: through a standalone master, and through Spark Connect."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pipeline.failures import meaning_of
from pipeline.tables.delta import View
from pipeline.tables.rows import SCHEMAS, VERDICTS
from replica.index.rocks import verify_index
from replica.index.summary import summarise
from replica.local.ports import PortReservation
from replica.notary.errors import ConfigError
from replica.notary.position import BEGIN
from tests.integration.conftest import MakeDatabase
from tests.pipeline.judged import by_replica, by_tables
from tests.pipeline.log_files import write_log
from tests.pipeline.maven_folder import CONNECTOR, maven_folder, spark_conf
from tests.pipeline.signed_log import BEGINNING, log_values, publish, request, signed
from tests.pipeline.spark_cluster import (
    SparkCluster,
    bare_python,
    connect_server,
    packed_python,
    run_job,
    spark_cluster,
    write_conf,
)
from tests.pipeline.test_commands import VALUES, Operator, operator  # noqa: F401
from tests.pipeline.test_packages import typed

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1_200)]

REQUESTS, SLICES = 1_200, 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, ports: PortReservation) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark"), ports) as running:
        yield running


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed environment of Python."""
    folder = tmp_path_factory.mktemp("packed")
    packed_python(folder / "environment", folder / "environment.tar.gz")
    return folder / "environment.tar.gz"


def _many() -> list[bytes]:
    """A log of many requests; every tenth wants a state that is consumed, and one is forged."""
    requests = [request(n, [n - 1 if n % 10 == 9 else n, REQUESTS + n]) for n in range(REQUESTS)]
    return [*BEGINNING, *[signed(one, n, forged=n == 800) for n, one in enumerate(requests)]]


def _tasks(events: Path) -> Counter[str]:
    """How many tasks each executor of the cluster ran to their end, of Spark's own event log."""
    lines = [json.loads(line) for file in events.rglob("events_*") for line in file.read_text().splitlines()]
    ends = [line for line in lines if line["Event"] == "SparkListenerTaskEnd"]
    return Counter(line["Task Info"]["Executor ID"] for line in ends if not line["Task Info"]["Failed"])


@pytest.mark.postgres
async def test_both_workers_judge_a_log_without_having_the_notary(
    cluster: SparkCluster, tmp_path: Path, make_database: MakeDatabase
) -> None:
    """Goal: each job uses all of a cluster, and brings our code along with the SQL that it reads. Method: workers'
    Python cannot import it; Spark's event log says who did how much; the index is a replica's, the tables are the other
    engine's, the audit compares a database that lacks a row; Spark says nothing on standard error."""
    alone = subprocess.run(
        [cluster.python, "-c", "import msgspec; import replica"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'replica'" in alone.stderr
    values = _many()
    write_log(tmp_path / "log", values, range(0, REQUESTS, REQUESTS // SLICES))
    database = await make_database()
    await publish(database, values)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE completion SET recorded_us = 1 WHERE log_offset = 1000")
    done = run_job(cluster.master, tmp_path, cluster.python, database=database)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["SIGNATURE_INVALID", "804", "COMPLETION_DIFFERS", "1000"]
    assert done.stderr == ""
    assert json.loads((tmp_path / "traced.json").read_text()) == [4, 5, 6]
    assert list((tmp_path / "report").rglob("*.html"))
    assert verify_index(tmp_path / "index").digest == summarise(None, by_replica(values).entries).digest
    rows = {name: View(tmp_path / "tables" / name).rows(SCHEMAS[name], BEGIN, len(values)) for name in SCHEMAS}
    expected = by_tables(values)
    assert {name: len(found) for name, found in rows.items()} == {name: len(of.rows) for name, of in expected.items()}
    told = [sorted(rows[VERDICTS].to_pylist(), key=str), sorted(expected[VERDICTS].rows, key=str)]
    assert told[0] == told[1]
    tasks = _tasks(tmp_path / "events")
    assert set(tasks) == {"0", "1"}
    assert min(tasks.values()) >= SLICES // 2, tasks


def test_a_python_comes_with_the_job(cluster: SparkCluster, packed: Path, tmp_path: Path) -> None:
    """Goal: workers need no installation. Method: a packed environment for workers whose own Python is not there;
    without it the job says so."""
    values = log_values(forged=2)
    write_log(tmp_path / "log", values, [3, 6])
    nowhere = tmp_path / "nowhere" / "python"
    done = run_job(cluster.master, tmp_path, nowhere, packed)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["SIGNATURE_INVALID", "6"]
    assert verify_index(tmp_path / "index").digest == summarise(None, by_replica(values).entries).digest
    shutil.rmtree(tmp_path / "events")
    failed = meaning_of(run_job(cluster.master, tmp_path, nowhere).stderr)
    assert isinstance(failed, ConfigError) and f"no Python {nowhere}" in failed.detail


@pytest.mark.kafka
@pytest.mark.postgres
def test_both_sources_are_read_by_workers_that_have_nothing(
    cluster: SparkCluster,
    packed: Path,
    operator: Operator,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Goal: jars by their coordinates and a Python as an archive reach the workers. Method: as operators type it, a log
    on a real broker through Spark's connector, and what came since through the Python source."""
    further = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.cores.max": "2"}
    conf = spark_conf(tmp_path / "conf", maven_folder(tmp_path / "repository"), **further)
    where = ("--master", cluster.master, "--python-archive", str(packed))
    words = ("archive", "run", "--engine", "spark", *where, "--json")
    jars = typed(operator, conf, *words, "--connector", "spark", "--packages", CONNECTOR)
    assert jars.returncode == 0, jars.stderr[-3000:]
    operator.produce(VALUES[:3])
    python = typed(operator, conf, *words, "--connector", "python")
    assert python.returncode == 0, python.stderr[-3000:]
    assert [json.loads(done.stdout)["archived_now"] for done in (jars, python)] == [len(VALUES), 3]
    assert operator.told("archive", "verify")["findings"] == []


def test_jobs_run_unchanged_through_connect(cluster: SparkCluster, ports: PortReservation, tmp_path: Path) -> None:
    """Goal: a rebuild and an audit need nothing but another address. Method: workers and server without the notary."""
    values = log_values(forged=2)
    write_log(tmp_path / "log", values, [3, 6])
    with connect_server(cluster, ports) as connect:
        done = run_job(connect, tmp_path, cluster.python)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["SIGNATURE_INVALID", "6"]
    assert verify_index(tmp_path / "index").digest == summarise(None, by_replica(values).entries).digest


def test_a_worker_that_lacks_a_package_is_told_of(cluster: SparkCluster, tmp_path: Path) -> None:
    """Goal: the operator hears which package is missing where. Method: a Python of workers that has PySpark's alone."""
    write_log(tmp_path / "log", log_values(), [3])
    python = bare_python(tmp_path / "python", without="msgspec")
    done = run_job(cluster.master, tmp_path, python)
    assert done.returncode != 0
    meant = meaning_of(done.stderr)
    assert "a Python of Spark's workers has no package msgspec" in str(meant)


def test_a_work_folder_that_workers_do_not_share_is_named(cluster: SparkCluster, tmp_path: Path) -> None:
    """Goal: one sentence before the job, in place of an obscure error in it. Method: a path that means another folder
    in each process, as one that is not mounted does on each machine; then one that is shared."""
    write_conf(tmp_path, {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.cores.max": "2"})
    program = f"""
from pathlib import Path
from pipeline import session
from replica.cli.log_source import Where
from replica.cli.pipeline import SparkChoice
session.EXECUTOR_MAX_S = 400.0
for work in ("/proc/self/cwd/work", "shared"):
    try:
        with Where("topic", SparkChoice({cluster.master!r}), Path(work)).job("work", Path()) as (_, made):
            print("began", [file.name for file in made.iterdir()])
    except session.ConfigError as error:
        print(error)
"""
    environment = os.environ | {"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_PYTHON": str(cluster.python)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False, env=environment,
    )  # fmt: skip
    refused, began = done.stdout.splitlines()
    assert refused.startswith("CONFIG_INVALID: Spark's workers cannot write in /proc/self/cwd/work/pipeline-")
    assert f"{socket.gethostname()}: No such file or directory; name with --work a folder" in refused
    assert (began, done.stderr) == ("began ['owner.lock']", "")


_DYNAMIC = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"spark.executor.memory": "64g"}, "SPARK_UNAVAILABLE"),
        ({"spark.cores.max": "1"}, "began"),
        (_DYNAMIC, "began"),
        (_DYNAMIC | {"spark.dynamicAllocation.initialExecutors": "0"}, "began"),
        (_DYNAMIC | {"spark.executor.memory": "64g"}, "SPARK_UNAVAILABLE"),
    ],
)
def test_a_job_that_no_worker_has_room_for_ends(
    cluster: SparkCluster, settings: dict[str, str], expected: str, tmp_path: Path
) -> None:
    """Goal: it does not wait for ever; and one worker is enough. Method: more memory than workers have; one core; a
    cluster that gives workers to jobs with tasks alone, unless it is asked for one. The settings are an operator's."""
    wait = {} if expected == "began" else {"spark.scheduler.maxRegisteredResourcesWaitingTime": "20s"}
    write_conf(tmp_path, {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"} | wait | settings)
    program = f"""
from pipeline import session
session.EXECUTOR_MAX_S = 400.0
try:
    session.spark_session("room", {cluster.master!r}).stop()
    print("began")
except session.SparkUnavailable as error:
    print(error)
"""
    environment = os.environ | {"SPARK_CONF_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert done.stdout.startswith(expected), done.stdout + done.stderr[-2000:]
    assert expected == "began" or "within 20 s" in done.stdout
    assert done.stderr == ""
