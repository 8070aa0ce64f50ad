"""Which engine writes the tables: Spark where everything is there that it needs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")
from pipeline import session
from replica.cli import tables, tables_on_spark
from replica.notary.errors import ConfigError
from replica.notary.places import Remote


def config(folder: Path | Remote) -> Any:
    return SimpleNamespace(tables=SimpleNamespace(folder=folder))


def chosen(engine: str, folder: Path | Remote) -> bool:
    return tables._is_spark(engine, config(folder))


@pytest.fixture(autouse=True)
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "has_java", lambda: True)
    monkeypatch.setattr(session, "delta_jars", lambda: [Path("delta.jar")])
    monkeypatch.setattr(tables_on_spark, "missing_packages", lambda *names: [])


def test_spark_writes_where_it_is_there() -> None:
    """Goal: the default is Spark, and each engine can be named. Method: everything is there."""
    assert chosen("auto", Path("tables")) and chosen("spark", Path("tables"))
    assert not chosen("process", Path("tables"))
    with pytest.raises(ConfigError, match="not 'sparc'"):
        chosen("sparc", Path("tables"))


@pytest.mark.parametrize("lacking", ["Java", "jars", "PySpark", "folder"])
def test_one_process_writes_where_anything_is_missing(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a machine without Java goes on as before. Method: leave out one thing at a time."""
    if lacking == "Java":
        monkeypatch.setattr(session, "has_java", lambda: False)
    elif lacking == "jars":
        monkeypatch.setattr(session, "delta_jars", list)
    elif lacking == "PySpark":
        monkeypatch.setattr(tables_on_spark, "missing_packages", lambda *names: ["pyspark"])
    assert not chosen("auto", Remote("s3a://bucket/tables") if lacking == "folder" else Path("tables"))
