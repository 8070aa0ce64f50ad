"""A whole job on a real YARN: a ResourceManager and a NodeManager on loopback."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from replica.index.rocks import verify_index
from replica.index.summary import summarise
from replica.local.ports import PortReservation
from tests.pipeline.judged import by_replica
from tests.pipeline.log_files import write_log
from tests.pipeline.signed_log import log_values
from tests.pipeline.spark_cluster import packed_python, run_job, write_conf
from tests.worlds.yarn_cluster import yarn

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]


def spark_conf(folder: Path) -> Path:
    """Settings of an operator's: Spark's jars are on the node, what is staged lies in the test's folder."""
    jars = Path(pyspark.__file__).parent / "jars"
    settings = {
        "spark.yarn.jars": f"local:{jars}/*",
        "spark.yarn.stagingDir": (folder / "staging").as_uri(),
        "spark.yarn.am.memory": "512m",
        "spark.executor.instances": "2",
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    }
    conf = folder / "conf"
    conf.mkdir()
    write_conf(conf, settings)
    return conf


def test_a_job_runs_on_yarn_with_a_python_that_it_brings(
    ports: PortReservation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: `--master yarn` gives what a replica has, on nodes without notary and without our packages. Method: rebuild
    and audit a log with a forged record; two executors in containers, a packed Python that YARN unpacks there."""
    values = log_values(forged=2)
    write_log(tmp_path / "log", values, [3, 6])
    packed = tmp_path / "environment.tar.gz"
    packed_python(tmp_path / "environment", packed)
    (tmp_path / "yarn").mkdir()
    with yarn(tmp_path / "yarn", ports) as configured:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(configured))
        monkeypatch.setenv("SPARK_CONF_DIR", str(spark_conf(tmp_path)))
        monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        done = run_job("yarn", tmp_path, tmp_path / "no-python", packed)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["SIGNATURE_INVALID", "6"]
    assert verify_index(tmp_path / "index").digest == summarise(None, by_replica(values).entries).digest
