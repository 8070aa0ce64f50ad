"""The Spark session of every job, with the settings that every job needs: Python, time zone, jars, partitions.

Jobs run unchanged on one machine and on a cluster: `master` is the only difference (`local[2]`, `spark://host:7077`,
or `sc://host:15002` for Spark Connect). Jars are never fetched here: scripts/jars/fetch.sh has put them in place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import which

from pyspark.sql import SparkSession

from replica.notary.errors import ConfigError

DEFAULT_MASTER = "local[2]"
PARTITIONS_PER_CORE = 4
_ROOT = Path(__file__).parents[1]
_CONNECT_PREFIX = "sc://"
_WORKER_HEAP = {
    # A worker makes and drops arrays of megabytes for each slice. glibc would hand their memory back to the kernel each
    # time, and get it zeroed again: a fifth of a rebuild's processor time. Other C libraries pass these names over.
    "MALLOC_MMAP_THRESHOLD_": 32 << 20,
    "MALLOC_TRIM_THRESHOLD_": 256 << 20,
}


def spark_session(
    app: str,
    master: str = DEFAULT_MASTER,
    *,
    shuffle_partitions: int | None = None,
    further: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session named `notary-<app>`, or the one that this process has already.

    `shuffle_partitions`: number of partitions after a shuffle; by default four for each of this machine's cores.
    Raises ConfigError when there is no Java that Spark starts with. The caller stops the session.
    """
    if master.startswith(_CONNECT_PREFIX):
        return SparkSession.builder.remote(master).appName(f"notary-{app}").getOrCreate()
    # The workers would take the PATH's python3, and it has none of our packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark looks the host name up, and may listen there
    if not _has_java():
        raise ConfigError(
            "no Java was found: install a Java 17 runtime, or set JAVA_HOME. These need none: archive run --engine"
            " process, archive verify, restore, tables, check, index rebuild --engine replay"
        )
    builder = SparkSession.builder.master(master).appName(f"notary-{app}")
    for name, value in (_settings(shuffle_partitions) | dict(further or {})).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # what a JVM that does not start gives depends on where it failed
        raise ConfigError(f"Spark does not start: {error}; it needs a Java 17 runtime") from None
    session.sparkContext.setLogLevel(_log_level())
    return session


def _has_java() -> bool:
    """Whether Spark's own script would find a Java."""
    home = os.environ.get("JAVA_HOME")
    return which("java") is not None if home is None else os.access(Path(home) / "bin" / "java", os.X_OK)


def _settings(shuffle_partitions: int | None) -> dict[str, str]:
    partitions = shuffle_partitions or PARTITIONS_PER_CORE * (os.cpu_count() or 1)
    python_path = os.pathsep.join(part for part in (str(_ROOT), os.environ.get("PYTHONPATH", "")) if part)
    return {
        "spark.jars": ",".join(str(jar) for jar in connector_jars()),
        "spark.executorEnv.PYTHONPATH": python_path,
        **{f"spark.executorEnv.{name}": str(size_bytes) for name, size_bytes in _WORKER_HEAP.items()},
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.driver.memory": os.environ.get("NOTARY_SPARK_MEMORY", "2g"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": _log_level(),
    }


def _log_level() -> str:
    """The level of Spark's own log on standard error: off by default, because failures come back as our errors."""
    return os.environ.get("NOTARY_SPARK_LOG", "FATAL")


def connector_jars() -> list[Path]:
    """The jars of Spark's own connector to the log; empty when they are missing and the Python source is used.

    In $NOTARY_SPARK_JARS, else in .tools/spark/libs beside the source.
    """
    configured = os.environ.get("NOTARY_SPARK_JARS")
    return sorted((Path(configured) if configured else _ROOT / ".tools" / "spark" / "libs").glob("*.jar"))
