"""What `--master` names: which forms there are, and what is said where nothing answers."""

from __future__ import annotations

import socket
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from pipeline.failures import meaning_of, not_started
from pipeline.master import check_master
from pipeline.session import _begun_within, spark_session
from pipeline.shipped import write_archive
from replica.cli import pipeline as cli
from replica.notary.errors import Code, ConfigError, SparkUnavailable


@pytest.mark.parametrize(
    ("master", "addresses"),
    [
        ("local", []),
        ("local[2]", []),
        ("local[*]", []),
        ("local[2,4]", []),
        ("k8s://https://host:6443", [("host", 6443)]),
        ("k8s://host", [("host", 443)]),
        ("k8s://http://[::1]", [("::1", 80)]),
        ("spark://one:7077", [("one", 7077)]),
        ("spark://one:7077,two:7078", [("one", 7077), ("two", 7078)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("sc://one", [("one", 15002)]),
        ("sc://one:15003/;use_ssl=true", [("one", 15003)]),
    ],
)
def test_the_addresses_of_a_master(master: str, addresses: list[tuple[str, int]]) -> None:
    """Goal: what Spark understands is understood. Method: each form."""
    assert check_master(master, {}) == addresses


@pytest.mark.parametrize(
    "master",
    ["", "nonsense", "spark://", "spark://x", "spark://x:y", "sc://", "local[two]", "http://h:1", "k8s://", "yarn://h"],
)
def test_another_form_is_refused_before_spark_starts(master: str) -> None:
    """Goal: no trace of Java for a slip of the pen. Method: forms that Spark refuses in its own ways."""
    with pytest.raises(ConfigError, match=r"give local\[2\], spark://HOST:PORT, yarn, k8s://https://HOST:PORT, or sc"):
        check_master(master, {})


@pytest.mark.parametrize(
    ("master", "meant"),
    [
        ("yran", "; did you mean yarn?"),
        ("YARN", "; did you mean yarn?"),
        ("sprk://one:7077", "; did you mean spark://HOST:PORT?"),
        ("local(2)", "; did you mean local[2]?"),
        ("mesos://one:5050", "for Spark Connect"),
    ],
)
def test_the_nearest_form_is_named(master: str, meant: str) -> None:
    """Goal: a slip of the pen is seen at once. Method: one near each form, and one near none."""
    with pytest.raises(ConfigError) as refused:
        check_master(master, {})
    assert refused.value.detail.endswith(meant)


def test_yarn_needs_hadoops_configuration(tmp_path: Path) -> None:
    """Goal: a missing Hadoop folder is not called a missing Java. Method: no variable, no folder, a folder."""
    with pytest.raises(ConfigError, match="set HADOOP_CONF_DIR to the folder"):
        check_master("yarn", {})
    with pytest.raises(ConfigError, match="there is no such folder"):
        check_master("yarn", {"HADOOP_CONF_DIR": str(tmp_path / "none")})
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    with pytest.raises(ConfigError, match=r"names no ResourceManager: yarn\.resourcemanager\.hostname"):
        check_master("yarn", {"YARN_CONF_DIR": str(tmp_path)})
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match=r"yarn-site\.xml cannot be read"):
        check_master("yarn", {"YARN_CONF_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("values", "addresses"),
    [
        ({"hostname": "one"}, [("one", 8032)]),
        ({"hostname": "one", "address": "two:8050"}, [("two", 8050)]),
        ({"ha.rm-ids": "a, b", "hostname.a": "one", "address.b": "two:1"}, [("one", 8032), ("two", 1)]),
        ({"address": "${yarn.resourcemanager.hostname}:8032"}, []),
    ],
)
def test_the_addresses_of_resource_managers(
    values: dict[str, str], addresses: list[tuple[str, int]], tmp_path: Path
) -> None:
    """Goal: one that is away is named at once. Method: each way to name them; a value for Hadoop alone."""
    rows = (
        f"<property><name>yarn.resourcemanager.{name}</name><value>{value}</value></property>"
        for name, value in values.items()
    )
    (tmp_path / "yarn-site.xml").write_text(f"<configuration>{''.join(rows)}</configuration>")
    assert check_master("yarn", {"HADOOP_CONF_DIR": str(tmp_path)}) == addresses


@pytest.mark.parametrize("form", ["spark://127.0.0.1:{}", "sc://127.0.0.1:{}", "k8s://https://127.0.0.1:{}", "yarn"])
def test_a_master_that_does_not_answer_is_named_at_once(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: seconds, not Spark's minutes, and the address. Method: a port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        address = f"<name>yarn.resourcemanager.address</name><value>127.0.0.1:{port}</value>"
        (tmp_path / "yarn-site.xml").write_text(f"<configuration><property>{address}</property></configuration>")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        with pytest.raises(SparkUnavailable) as refused:
            spark_session("test", form.format(port))
    assert f"127.0.0.1:{port}: Connection refused" in str(refused.value)


def test_a_cluster_without_room_ends_the_wait_and_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no job waits for ever in a queue. Method: a process in the JVM's place; one that is in time lives on."""
    with subprocess.Popen(["sleep", "60"]) as jvm:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
        with _begun_within(60, "yarn"):
            pass
        assert jvm.poll() is None
        with pytest.raises(SparkUnavailable, match="yarn did not begin the job within 0 s"), _begun_within(0.1, "yarn"):
            assert jvm.wait(30) != 0
            raise ConnectionError("as py4j says it")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("java.lang.UnsupportedClassVersionError: org/apache/spark/Main", "this Java is too old"),
        (
            'Exception in thread "main" org.apache.spark.SparkException: no room\n\tat org\n[JAVA_GATEWAY_EXITED]',
            "Spark does not start: no room; NOTARY_SPARK_LOG=WARN",
        ),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", r"Spark does not start: \[JAVA_GATEWAY_EXITED\]"),
    ],
)
def test_a_spark_that_does_not_start_says_why(said: str, meant: str) -> None:
    """Goal: one sentence of what is wrong. Method: what JVMs say as they end."""
    with pytest.raises(ConfigError, match=meant):
        raise not_started(said)


def test_a_package_that_workers_lack_is_named() -> None:
    """Goal: the remedy is on the workers. Method: the trace of a task's Python."""
    meant = meaning_of(
        "PythonException: Traceback\n  File x\nModuleNotFoundError: No module named 'msgspec'\n\n\tat org"
    )
    assert isinstance(meant, ConfigError)
    assert (meant.code, "msgspec" in meant.detail) == (Code.PIPELINE_MISSING, True)


def test_what_is_shipped_can_be_imported_and_is_the_same_each_time(tmp_path: Path) -> None:
    """Goal: workers get all modules, and the same bytes for the same code. Method: made twice; names of both ends."""
    root = Path(cli.__file__).parents[2]
    for name in ("a.zip", "b.zip"):
        write_archive(tmp_path / name, root)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    names = set(zipfile.ZipFile(tmp_path / "a.zip").namelist())
    assert {"pipeline/jobs/rebuild.py", "replica/notary/errors.py", "ha/invariant.py"} <= names
    assert not [name for name in names if not name.endswith(".py")]
