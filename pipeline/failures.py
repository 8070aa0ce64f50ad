"""Translates a failure on Spark for operators: the error that a task raised, without the Python and Java traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from replica.log.kafka.pointers import POINTERS
from replica.notary import errors
from replica.notary.codes import Code
from replica.notary.errors import (
    ConfigError,
    InvariantBroken,
    LogTruncated,
    LogUnavailable,
    NotaryError,
    PackagesUnavailable,
    PipelineFailed,
    SparkUnavailable,
)

_OURS = re.compile(r"^(?:replica\.notary\.errors|ha\.invariant)\.(\w+): ([A-Z_]+): (.*)$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:Caused by: )?((?:\w+\.)*\w*(?:Error|Exception)): (.*)$", re.MULTILINE)
_LOST = ("OffsetOutOfRangeException", "KAFKA_DATA_LOSS", "Some data may have been lost")  # Spark's own connector
_SILENT = ("org.apache.kafka.common.errors.TimeoutException", "org.apache.kafka.common.errors.DisconnectException")
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)  # on a worker
_CAUSE_AT_START = re.compile(r"(?:\w+\.)+\w*(?:Error|Exception): (.*)")
_NO_PACKAGE = re.compile(r"(?:unresolved dependency|download failed): ([^#\s]+)#([^;\s]+);([^:!\]\s]+)")
_NO_REPOSITORY = re.compile(r"Server access error|Host \S+ not found|SERVER ERROR|timed out|Connection refused")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_NO_MASTER = ("All masters are unresponsive", "Cannot call methods on a stopped SparkContext")
_DETAIL_CHARS = 400
REPOSITORIES = "spark.jars.repositories or spark.jars.ivySettings (spark-defaults.conf)"


def not_started(text: str) -> NotaryError:
    """The error of a Spark that did not start, of all that it said meanwhile."""
    if "UnsupportedClassVersionError" in text:
        return ConfigError("this Java is too old for Spark: install a Java 17 runtime, or set JAVA_HOME to one")
    if any(mark in text for mark in _NO_MASTER):
        return SparkUnavailable("Spark's master took the connection and then not the job; is it a master of Spark 4?")
    if missing := _NO_PACKAGE.findall(text):
        return _not_fetched(sorted({":".join(package) for package in missing}), text)
    causes = _CAUSE_AT_START.findall(text)
    detail = causes[0].strip() if causes else text.strip().rpartition("\n")[2]
    return ConfigError(f"Spark does not start: {detail[:_DETAIL_CHARS]}; NOTARY_SPARK_LOG=WARN shows all that it says")


def _not_fetched(packages: list[str], text: str) -> NotaryError:
    """The error of packages that Spark did not get, of what its resolver says of the repositories."""
    named = ", ".join(packages)
    if (silent := _NO_REPOSITORY.search(text)) is not None:
        line = next(line for line in text.splitlines() if silent[0] in line)
        return PackagesUnavailable(f"not fetched: {named}; {line.strip()[:_DETAIL_CHARS]}")
    return ConfigError(f"no repository has {named}: correct --packages, or name another repository in {REPOSITORIES}")


@contextmanager
def explained() -> Iterator[None]:
    """Translate failures on Spark into errors of ours; the traces stay as their cause."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise meaning_of(str(error)) from error
    except ConnectionError as error:
        raise PipelineFailed(f"Spark's JVM has ended, or does not answer: {error}") from error


def meaning_of(text: str) -> NotaryError | InvariantBroken:
    """The error in Spark's text of a failure: the one that our code raised in a task, else the nearest match."""
    for name, code, detail in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if kind is InvariantBroken:
            return InvariantBroken(detail)
        if isinstance(kind, type) and issubclass(kind, NotaryError) and code in Code.__members__:
            return kind(detail, Code[code])
    if (unusable := _unusable(text)) is not None:
        return unusable
    causes = _CAUSE.findall(text)
    detail = ": ".join(causes[-1]) if causes else text.strip().partition("\n")[0]
    if any(mark in text for mark in _LOST):
        return LogTruncated(f"records that were asked for are not in the log: {detail[:_DETAIL_CHARS]}")
    if any(mark in text for mark in _SILENT):
        return LogUnavailable(f"Spark's connector had no answer: {detail[:_DETAIL_CHARS]}")
    return PipelineFailed(detail[:_DETAIL_CHARS])


def _unusable(text: str) -> ConfigError | None:
    """What a person must change before the job can run at all; None if the text names nothing of that kind."""
    if POINTERS in text:
        return ConfigError(POINTERS)
    if missing := _MISSING.findall(text):
        return ConfigError(
            f"a Python of Spark's workers has no package {missing[-1]}: install requirements.lock there, and name that"
            " Python in PYSPARK_PYTHON; or bring it along with --python-archive",
            Code.PIPELINE_MISSING,
        )
    if (absent := _NO_PYTHON.search(text)) is not None:
        return ConfigError(
            f"Spark's workers have no Python {absent[1]}: name theirs in PYSPARK_PYTHON, or bring one along with"
            " --python-archive, an archive that has bin/python",
            Code.PIPELINE_MISSING,
        )
    return None
