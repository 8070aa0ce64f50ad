"""Shared by the commands of the data pipeline: the extra that they need, the archive's key, and progress."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from replica.cli.common import err, quiet_libraries, show_error
from replica.failure import in_a_line
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, NotaryError
from replica.notary.exit_codes import EXIT_CONFIGURATION
from replica.notary.loopback import socket_host
from replica.notary.places import Place, place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.registry import Collector
    from pyspark.sql import SparkSession

    from haproxy.render import Endpoint
    from pipeline.metrics import FollowerMetrics
    from pipeline.sources.log import Connector
    from replica.active.signer import FileSigner
    from replica.config.model import Config
    from replica.log.settings import LogSettings

DEFAULT_MASTER = "local[3]"  # as pipeline.session has it, which needs PySpark
AUTO, SPARK, IN_PROCESS = "auto", "spark", "process"  # what writes the archive's segments
MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        help="Where Spark runs: local[2], spark://HOST:PORT, yarn, k8s://https://HOST:PORT, or sc://HOST:PORT for"
        " Connect.",
    ),
]
PackagesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--packages",
        metavar="GROUP:ARTIFACT:VERSION",
        help="Jars that Spark fetches from its repositories, instead of the pinned ones; may be given several times."
        " They matter to `archive run` and `tables run` on Spark, which read the log by Spark's connector; `tables run`"
        " needs those of Delta Lake as well.",
    ),
]
PythonArchiveOption = Annotated[
    Path | None,
    typer.Option(
        "--python-archive",
        metavar="FILE",
        help="A packed Python environment that a cluster's workers unpack and run: .tar.gz or .tgz.",
    ),
]
ConnectorOption = Annotated[
    str, typer.Option("--connector", help="What reads the log: spark, python, or auto, which is spark if it is there.")
]
FolderOption = Annotated[
    Any,  # Place | None, of which the parser makes one
    typer.Option(
        "--folder", parser=place_of, metavar="PLACE", help="Place of the archive; else the configuration's is used."
    ),
]
ArchiveKeyOption = Annotated[
    str | None,
    typer.Option("--archive-key", help="The archive's public key, 64 hexadecimal digits; else the key file's is used."),
]


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """Where Spark runs, and what a job brings along to it."""

    master: str
    packages: tuple[str, ...] = ()
    python_archive: Path | None = None


def spark_choice(master: str, packages: list[str] | None, python_archive: Path | None) -> SparkChoice:
    """What the options say. `--packages` takes a list with commas as well, as Spark does."""
    named = [one.strip() for given in packages or () for one in given.split(",")]
    return SparkChoice(master, tuple(named), python_archive)


def require_archive(*further: str) -> None:
    """Raise ConfigError (PIPELINE_MISSING) when what reads and writes archives is not installed; `further`: other
    packages. It needs no Spark."""
    _require("pyarrow", "numpy", *further)


def require_pipeline(*further: str) -> None:
    """Raise ConfigError (PIPELINE_MISSING) when packages of the extra are not installed; `further`: other ones."""
    _require("pyspark", "pyarrow", "pandas", *further)


def _require(*names: str) -> None:
    quiet_libraries()
    if missing := missing_packages(*names):
        raise ConfigError(f"not installed: {', '.join(missing)}", Code.PIPELINE_MISSING)


def missing_packages(*names: str) -> list[str]:
    """Those of these packages that are not installed."""
    return [name for name in names if find_spec(name) is None]


def connector_named(name: str) -> Connector:
    """What reads the log, of the option. Raises ConfigError."""
    from pipeline.sources.log import Connector

    known: tuple[Connector, ...] = get_args(Connector)
    for connector in known:
        if connector == name:
            return connector
    raise ConfigError(f"--connector is one of {', '.join(known)}, not {name!r}")


@contextmanager
def spark(app: str, where: SparkChoice, *, delta: bool = False) -> Iterator[SparkSession]:
    """A Spark session while the context lasts; `delta`: it reads and writes tables of Delta Lake. Raises ConfigError,
    and Spark's failures as our own errors."""
    require_pipeline()
    from pipeline.failures import explained
    from pipeline.session import spark_session

    session = spark_session(
        app, where.master, packages=where.packages, python_archive=where.python_archive, delta=delta
    )
    try:
        with explained():
            yield session
    finally:
        with suppress(Exception):  # Spark may be what died
            session.stop()


def archive_signer(config: Config) -> FileSigner:
    """The archive's key; made when there is neither a key nor an archive yet. Raises ConfigError."""
    from pipeline.archive.layout import layout_of
    from replica.active.signer import create_key, load_signer

    path = config.archive.key_file
    if not path.exists() and layout_of(config.archive.folder).read_lines() is None:
        public_key = create_key(path)
        err.print(f"made the archive's key {path}; keep its public key elsewhere: {public_key.hex()}")
    return load_signer(path)


def archive_public_key(config: Config, given: str | None) -> bytes:
    """The key that an archive is verified with. Raises ConfigError and BadRequest."""
    from replica.active.signer import load_signer
    from replica.notary.texts import bytes_from_hex

    return (
        load_signer(config.archive.key_file).public_key if given is None else bytes_from_hex("--archive-key", given, 32)
    )


def archive_folder(config: Config, given: Place | None) -> Place:
    """The named archive, else the configured one."""
    return config.archive.folder if given is None else given


@contextmanager
def progress(what: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal's standard error. Call the context's value with the number of records done."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=err, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    with bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda now: bar.update(task, completed=now)


def follower_metrics(
    job: str,
    where: Endpoint | None,
    log: LogSettings,
    lag_s: Callable[[int], float] | None = None,
    *,
    hosts: Sequence[str] = (),
    further: Sequence[Collector] = (),
) -> FollowerMetrics:
    """The metrics of a job that follows the log, served at /metrics where its table of the configuration says so.

    Raises ConfigError when the port is taken. The lag is that of the log's end now, whatever became of the job.
    `hosts`: names by which this machine is asked for. `further`: served with them.
    """
    from pipeline.metrics import metrics_of, serve_metrics
    from pipeline.sources.topic import look_at

    metrics = metrics_of(job, lambda: look_at(log).end, lag_s)
    if where is not None:
        try:
            serve_metrics(metrics, "" if where.host == "*" else socket_host(where.host), where.port, hosts, further)
        except OSError as error:
            raise ConfigError(f"{job}.metrics: {where.host}:{where.port}: {error.strerror}") from None
    return metrics


def tell_failure(error: NotaryError, delay_s: float) -> None:
    """Say on standard error what failed, and when a job that follows the log tries again."""
    err.print(f"{in_a_line(error)}; next attempt in {delay_s:g} s", markup=False)


@contextmanager
def ending_for_good() -> Iterator[None]:
    """What needs a person ends a job that follows the log with a code after which no supervisor starts it again."""
    try:
        yield
    except NotaryError as error:
        show_error(error)
        raise typer.Exit(EXIT_CONFIGURATION) from None
