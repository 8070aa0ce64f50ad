"""What `--master` names: which forms there are, and what is said where nothing answers."""

from __future__ import annotations

import socket
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from pipeline.failures import meaning_of, not_started
from pipeline.master import check_master
from pipeline.session import DEFAULT_MASTER, _begun_within, spark_session
from pipeline.shipped import SHIPPED_PYTHON, check_environment, environment_here, write_archive
from replica.cli import pipeline as cli
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, SparkUnavailable


def test_commands_have_the_default_of_a_session() -> None:
    """Goal: a command without --master and a session without one run alike. Method: both constants."""
    assert cli.DEFAULT_MASTER == DEFAULT_MASTER
    assert DEFAULT_MASTER in Code.SPARK_UNAVAILABLE.remedy


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


_RESOLVED = """\
:: problems summary ::
:::: WARNINGS
\t\tmodule not found: org.apache.spark#spark-sql-kafka-0-10_2.13;4.2.99
{}
\t\t:: org.apache.spark#spark-sql-kafka-0-10_2.13;4.2.99: not found
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: \
org.apache.spark#spark-sql-kafka-0-10_2.13;4.2.99: not found]
\tat org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:1)
"""


@pytest.mark.parametrize(
    ("said", "code", "named"),
    [
        ("", Code.CONFIG_INVALID, "no repository has org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.99"),
        (
            "\tServer access error at url https://x/y.pom (java.net.ConnectException: Connection refused)",
            Code.PACKAGES_UNAVAILABLE,
            "4.2.99; Server access error at url https://x/y.pom",
        ),
        ("\tHost x not found. url=https://x/y.pom", Code.PACKAGES_UNAVAILABLE, "4.2.99; Host x not found"),
    ],
)
def test_packages_that_spark_did_not_get(said: str, code: Code, named: str) -> None:
    """Goal: wrong coordinates are a person's matter, a repository that is away is not. Method: what Ivy says."""
    meant = not_started(_RESOLVED.format(said))
    assert meant.code is code
    assert named in meant.detail


@pytest.mark.parametrize("package", ["", "spark-sql-kafka", "org.apache.spark:spark-sql-kafka", "a:b:c:d", "a:b:c d"])
def test_what_is_no_package_is_refused_before_spark_starts(package: str) -> None:
    """Goal: a slip of the pen is named. Method: names that Spark refuses with a trace."""
    with pytest.raises(ConfigError, match="give GROUP:ARTIFACT:VERSION"):
        spark_session("test", packages=[package])


def test_packages_may_be_a_list() -> None:
    """Goal: what Spark's own commands take is taken. Method: one option with a comma, and a second one."""
    assert cli.spark_choice("yarn", ["a:b:1, c:d:2", "e:f:3"], None).packages == ("a:b:1", "c:d:2", "e:f:3")


@pytest.mark.parametrize(
    ("master", "name", "refused"),
    [
        ("spark://127.0.0.1:1", "environment.tar", "its name has to end with"),
        ("spark://127.0.0.1:1", "none.tar.gz", "there is no such file"),
        ("yarn", "empty.tar.gz", "cannot be read"),
        ("local[2]", "environment.tar.gz", "local ones run this process's Python"),
        ("sc://127.0.0.1:1", "environment.tar.gz", "settings of its server"),
    ],
)
def test_a_python_that_cannot_be_brought_along_is_refused(
    master: str, name: str, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no job starts whose workers would lack a Python. Method: another form, no file, masters without use."""
    pack(tmp_path / "environment.tar.gz", "bin/python")
    for other in ("environment.tar", "empty.tar.gz"):
        (tmp_path / other).touch()
    monkeypatch.setattr("pipeline.session.check_master", lambda master, environment: [])
    with pytest.raises(ConfigError, match=refused):
        spark_session("test", master, python_archive=tmp_path / name)


def pack(path: Path, *names: str) -> None:
    """An archive with empty files of these names."""
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))


@pytest.mark.parametrize("name", ["bin/python", "./bin/python", "environment/bin/python"])
def test_an_archive_without_a_python_in_its_place_is_refused(name: str, tmp_path: Path) -> None:
    """Goal: the person who packed it hears it, before a cluster does. Method: with and without `./`; too deep."""
    pack(tmp_path / "environment.tgz", "pyvenv.cfg", name)
    if name.startswith("environment"):
        with pytest.raises(ConfigError, match="it has no bin/python"):
            check_environment(tmp_path / "environment.tgz")
    else:
        check_environment(tmp_path / "environment.tgz")


def test_beside_the_driver_the_python_of_workers_is_its_own(tmp_path: Path) -> None:
    """Goal: a plan that a Python source makes there finds our packages. Method: run it by the workers' name for it."""
    told = [SHIPPED_PYTHON, "-c", "import sys; print(sys.prefix)"]
    done = subprocess.run(told, cwd=environment_here(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == sys.prefix


def test_a_python_that_workers_lack_is_named() -> None:
    """Goal: the operator is not told to repeat. Method: what Java says where there is no such file."""
    meant = meaning_of('java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory')
    assert isinstance(meant, ConfigError)
    assert (meant.code, "/opt/python" in meant.detail) == (Code.PIPELINE_MISSING, True)


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
    assert not [name for name in names if name.endswith(".pyc")]


def test_what_is_shipped_reads_its_sql_from_the_archive(tmp_path: Path) -> None:
    """Goal: a task on a worker, which has our code as one file, finds statements and migrations of each database.

    Method: a Python of its own that has the archive in the place of the checkout.
    """
    write_archive(tmp_path / "shipped.zip", Path(cli.__file__).parents[2])
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'shipped.zip')!r})\n"
        "from replica.store import schema\n"
        "assert '.zip' in schema.__file__, schema.__file__\n"
        "for dialect in ('postgres', 'oracle'):\n"
        "    print(bool(schema.read_statement(dialect, 'export_completions')), len(schema.read_migrations(dialect)))\n"
    )
    said = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert [line.split()[0] for line in said.stdout.splitlines()] == ["True", "True"]
