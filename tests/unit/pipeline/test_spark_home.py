"""A SPARK_HOME of another release is named before a JVM is started."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from pipeline.session import check_spark_home
from replica.notary.errors import ConfigError


def spark(folder: Path, version: str) -> dict[str, str]:
    (folder / "jars").mkdir()
    (folder / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return {"SPARK_HOME": str(folder)}


def test_none_and_the_same_release_are_fine(tmp_path: Path) -> None:
    check_spark_home({})
    check_spark_home(spark(tmp_path, pyspark.__version__))


def test_another_release_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"has Spark 2\.4\.8, and pyspark here is {pyspark.__version__}: unset"):
        check_spark_home(spark(tmp_path, "2.4.8"))


def test_a_folder_without_spark_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no Spark"):
        check_spark_home({"SPARK_HOME": str(tmp_path)})
