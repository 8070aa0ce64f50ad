"""The Spark session of every job, with the settings that every job needs: Python, time zone, jars, partitions.

Jobs run unchanged on one machine and on a cluster: `master` is the only difference (`local[2]`, `spark://host:7077`,
`yarn`, or `sc://host:15002` for Spark Connect: master.py). Our code goes with the job to a cluster (shipped.py). Jars
are those that scripts/jars/fetch.sh has put in place, and none is fetched here, unless a job names packages.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pipeline.failures import not_started
from pipeline.master import CONNECT, YARN, Address, check_master
from pipeline.shipped import (
    ENVIRONMENT,
    SHIPPED_PYTHON,
    check_environment,
    check_packages,
    environment_here,
    package_archive,
)
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, SparkUnavailable
from replica.notary.own_process import SAFE_PATH, safe_children

DEFAULT_MASTER = "local[3]"  # work for two processors: one task of three waits for the disk
PARTITIONS_PER_CORE = 4
DRIVER_MEMORY = "2g"  # of Spark's JVM here
_ROOT = Path(__file__).parents[1]
_JARS = "spark.jars"
_REGISTERED_MAX = "spark.scheduler.maxRegisteredResourcesWaitingTime"  # an operator's own wait for workers
_AT_FIRST = "spark.dynamicAllocation.initialExecutors"
_PARTITIONS = "spark.sql.shuffle.partitions"
CONNECT_MAX_S = 5.0  # longest wait for a connection to a master
EXECUTOR_MAX_S = 60.0  # longest wait for the first worker, a JVM of its own, where Spark's setting names none
START_MAX_S = 180.0  # longest wait for a cluster to take the job: YARN would let it wait for room for ever
_SAID_MAX_BYTES = 100_000  # of what a JVM says at its start
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # by default 50 tasks look at a table's log, for every commit
}
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
    packages: Sequence[str] = (),
    python_archive: Path | None = None,
    shuffle_partitions: int | None = None,
    delta: bool = False,
    further: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session named `notary-<app>`, or the one that this process has already. Our code goes with it to a cluster.

    `packages`: jars that Spark fetches, GROUP:ARTIFACT:VERSION, instead of the pinned ones. `python_archive`: a packed
    Python environment, which workers unpack and run. `shuffle_partitions`: number of partitions after a shuffle; by
    default what spark-defaults.conf says, else four for each of this machine's cores. `delta`: tables of Delta Lake can
    be read and written; it counts in the first session of a process only.
    Raises ConfigError when master, Java, Hadoop's configuration or a package is not there, PackagesUnavailable when no
    repository of packages answers, and SparkUnavailable when the cluster does not answer or has no worker for the job.
    The caller stops the session.
    """
    addresses = check_master(master, os.environ)
    check_packages(packages)
    if python_archive is not None:
        check_environment(python_archive)
    if master.startswith(CONNECT):
        if packages or python_archive is not None:
            raise ConfigError(
                f"{CONNECT} takes neither --packages nor --python-archive: they are settings of its server"
            )
        _reach(master, addresses)
        return _connected(app, master)
    local = master.startswith("local")
    if local and python_archive is not None:
        raise ConfigError("--python-archive is for the workers of a cluster: local ones run this process's Python")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark looks the host name up, and may listen there
    check_spark_home(os.environ)
    _choose_python(local, python_archive)
    os.environ.setdefault("SPARK_DRIVER_MEMORY", DRIVER_MEMORY)  # Spark's own, which spark-defaults.conf overrides
    if not has_java():
        raise ConfigError(
            "no Java was found: install a Java 17 runtime, or set JAVA_HOME. These need none: archive run --engine"
            " process, archive verify, restore, tables, check, index rebuild --engine replay"
        )
    _reach(master, addresses)
    settings = _settings(shuffle_partitions, local) | _jars(packages, delta) | _archives(master, python_archive)
    folder = None if python_archive is None else environment_here()
    session = _started(app, master, settings | dict(further or {}), folder)
    session.sparkContext.setLogLevel(_log_level())
    if not local:
        _wait_for_executor(session, master)
        session.sparkContext.addPyFile(str(package_archive()))
    return session


def on_this_machine(path: Path) -> str:
    """An absolute local path as Spark takes one: HADOOP_CONF_DIR may make paths without a scheme those of HDFS."""
    return f"file://{path}"


def check_spark_home(environment: Mapping[str, str]) -> None:
    """Raise ConfigError where SPARK_HOME names a Spark of another release: Python and JVM would not understand each
    other, and say so in words of their own, if at all."""
    home = environment.get("SPARK_HOME")
    if not home:
        return
    found = {jar.stem.rpartition("-")[2] for jar in Path(home, "jars").glob("spark-core_*.jar")}
    if found != {pyspark.__version__}:
        has = f"Spark {', '.join(sorted(found))}" if found else "no Spark"
        raise ConfigError(
            f"SPARK_HOME={home} has {has}, and pyspark here is {pyspark.__version__}: unset SPARK_HOME, or let it name"
            " the same release"
        )


def _choose_python(local: bool, python_archive: Path | None) -> None:
    """Say which Python workers run: they would take the PATH's python3, and it has none of our packages."""
    if local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    elif python_archive is not None:
        os.environ["PYSPARK_PYTHON"] = SHIPPED_PYTHON
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # a path on the workers


def _reach(master: str, addresses: list[Address]) -> None:
    """Return once one of the addresses takes a connection: Spark itself would try for more than a minute."""
    problems: list[str] = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), CONNECT_MAX_S).close()
            return
        except OSError as error:
            problems.append(f"{host}:{port}: {error.strerror or error}")
    if problems:
        raise SparkUnavailable(f"--master {master} does not answer: {'; '.join(problems)}")


def _connected(app: str, master: str) -> SparkSession:
    missing = [name for name in ("grpc", "grpc_status", "zstandard") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"not installed: {', '.join(missing)}, for Spark Connect: pip install 'replicated-notary[connect]'",
            Code.PIPELINE_MISSING,
        )
    session = SparkSession.builder.remote(master).appName(f"notary-{app}").getOrCreate()
    session.addArtifacts(str(package_archive()), pyfile=True)
    return session


def _forget_dead_jvm() -> None:
    """Where this process's JVM has died, let a new session start another: pyspark would go on asking the old one."""
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc is None or gateway.proc.poll() is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _started(app: str, master: str, settings: Mapping[str, str], folder: Path | None) -> SparkSession:
    """The session of a JVM of ours, whose warnings at its start go nowhere: failures come back as our errors.

    `folder`: where it runs; else where this process does.
    """
    _forget_dead_jvm()
    builder = SparkSession.builder.master(master).appName(f"notary-{app}")
    conf = SparkConf().setMaster(master)
    for name, value in settings.items():
        conf = conf.set(name, value)
        if name != _JARS:  # Spark has added the packages' jars to them by then
            builder = builder.config(name, value)
    with tempfile.TemporaryFile() as said:
        try:
            if SparkContext._gateway is None:
                telling = sys.__stderr__ if "NOTARY_SPARK_LOG" in os.environ else said
                started = {"cwd": folder, "stdout": telling, "stderr": telling}  # our standard output is for answers
                with safe_children():  # local workers have the JVM's environment
                    gateway = launch_gateway(conf, started)  # type: ignore[no-untyped-call]
                SparkContext._ensure_initialized(gateway=gateway)
            for name, value in _defaults(SparkConf()).items():  # with what spark-defaults.conf has
                builder = builder.config(name, value)
            with _begun_within(START_MAX_S, master):
                return builder.getOrCreate()
        except SparkUnavailable:
            raise
        except Exception as error:  # what a JVM that does not start gives depends on where it failed
            said.seek(0)
            raise not_started(f"{said.read(_SAID_MAX_BYTES).decode(errors='replace')}\n{error}") from None


@contextmanager
def _begun_within(max_s: float, master: str) -> Iterator[None]:
    """End this process's JVM if the context lasts longer: Spark waits there for ever. Raises SparkUnavailable then."""
    gateway = SparkContext._gateway
    assert gateway is not None
    late = threading.Event()

    def end() -> None:
        late.set()
        gateway.proc.terminate()

    timer = threading.Timer(max_s, end)
    timer.start()
    try:
        yield
    except Exception:
        if late.is_set():
            raise SparkUnavailable(
                f"{master} did not begin the job within {max_s:.0f} s: no node is up, or the queue has no room"
            ) from None
        raise
    finally:
        timer.cancel()


def _defaults(chosen: SparkConf) -> dict[str, str]:
    """What counts where neither the caller nor the operator chose.

    Under dynamic allocation Spark asks for a worker once there are tasks, and we wait for one before.
    """
    partitions = {} if chosen.contains(_PARTITIONS) else {_PARTITIONS: str(PARTITIONS_PER_CORE * (os.cpu_count() or 1))}
    return partitions | ({_AT_FIRST: "1"} if chosen.get(_AT_FIRST, "0") == "0" else {})


def _wait_for_executor(session: SparkSession, master: str) -> None:
    """Return once a worker has begun to work for the job. Spark itself would wait for ever, and say so in its log."""
    context = session.sparkContext._jsc.sc()
    max_s = context.conf().getTimeAsSeconds(_REGISTERED_MAX, f"{EXECUTOR_MAX_S:.0f}s")
    deadline_s = time.monotonic() + max_s
    while context.getExecutorMemoryStatus().size() < 2:  # the driver is one of them
        if time.monotonic() > deadline_s:
            session.stop()
            raise SparkUnavailable(
                f"{master} gave the job no worker within {max_s} s ({_REGISTERED_MAX}): none is up, or none has the"
                " cores and the memory (spark.executor.memory) free"
            )
        time.sleep(0.1)


def has_java() -> bool:
    """Whether Spark's own script would find a Java."""
    home = os.environ.get("JAVA_HOME")
    return which("java") is not None if home is None else os.access(Path(home) / "bin" / "java", os.X_OK)


def _settings(shuffle_partitions: int | None, local: bool) -> dict[str, str]:
    python_path = os.pathsep.join(part for part in (str(_ROOT), os.environ.get("PYTHONPATH", "")) if part)
    return {
        **({"spark.executorEnv.PYTHONPATH": python_path} if local else {}),
        f"spark.executorEnv.{SAFE_PATH}": "1",
        **{f"spark.executorEnv.{name}": str(size_bytes) for name, size_bytes in _WORKER_HEAP.items()},
        "spark.sql.session.timeZone": "UTC",
        **({_PARTITIONS: str(shuffle_partitions)} if shuffle_partitions else {}),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": _log_level(),
    }


def _jars(packages: Sequence[str], delta: bool) -> dict[str, str]:
    """The jars of a job: packages that Spark fetches, else the pinned ones where they are."""
    settings = _DELTA if delta else {}
    if packages:
        return settings | {"spark.jars.packages": ",".join(packages)}
    jars = connector_jars() + (delta_jars() if delta else [])
    return settings | ({_JARS: ",".join(map(str, jars))} if jars else {})


def _archives(master: str, python_archive: Path | None) -> dict[str, str]:
    """What workers unpack in their folders: YARN's nodes do it themselves, elsewhere Spark does."""
    if python_archive is None:
        return {}
    name = "spark.yarn.dist.archives" if master == YARN else "spark.archives"
    return {name: f"{python_archive.absolute()}#{ENVIRONMENT}"}


def _log_level() -> str:
    """The level of Spark's own log on standard error: off by default, because failures come back as our errors."""
    return os.environ.get("NOTARY_SPARK_LOG", "FATAL")


def connector_jars() -> list[Path]:
    """The jars of Spark's own connector to the log; empty when they are missing and the Python source is used.

    In $NOTARY_SPARK_JARS, else in .tools/spark/libs beside the source.
    """
    return _jars_in("NOTARY_SPARK_JARS", "spark")


def delta_jars() -> list[Path]:
    """The jars of Delta Lake, without which Spark writes no tables. In $NOTARY_DELTA_JARS, else in .tools/delta/libs
    beside the source."""
    return _jars_in("NOTARY_DELTA_JARS", "delta")


def _jars_in(variable: str, tools: str) -> list[Path]:
    configured = os.environ.get(variable)
    return sorted((Path(configured) if configured else _ROOT / ".tools" / tools / "libs").glob("*.jar"))
