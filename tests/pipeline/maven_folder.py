"""A Maven repository in a folder, made of the pinned jars of Spark's Kafka connector, and Spark's settings for it."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.session import connector_jars
from tests.pipeline.spark_cluster import write_conf

_COORDINATES = Path(__file__).parents[2] / "scripts" / "jars" / "spark" / "coordinates.txt"
CONNECTOR = next(line for line in _COORDINATES.read_text().split() if ":spark-sql-kafka" in line)
_IVY = """\
<ivysettings>
  <settings defaultResolver="folder"/>
  <resolvers><ibiblio name="folder" m2compatible="true" root="{}"/></resolvers>
</ivysettings>
"""


def maven_folder(folder: Path) -> str:
    """Make the repository; returns its address. The connector's own pom names the other jars, as the real one does."""
    jars = {jar.name: jar for jar in connector_jars()}
    others = [line for line in _COORDINATES.read_text().split() if line != CONNECTOR]
    for line in (CONNECTOR, *others):
        group, artifact, version = line.split(":")
        place = folder / group.replace(".", "/") / artifact / version
        place.mkdir(parents=True)
        name = f"{artifact}-{version}"
        shutil.copy(jars[f"{name}.jar"], place)
        needed = "".join(map(_dependency, others)) if line == CONNECTOR else ""
        (place / f"{name}.pom").write_text(
            f"<project><modelVersion>4.0.0</modelVersion>{_named(line)}<dependencies>{needed}</dependencies></project>"
        )
    return folder.as_uri()


def spark_conf(folder: Path, repository: str, **further: str) -> Path:
    """A folder as SPARK_CONF_DIR names one: Spark asks this repository alone, and keeps what it fetched there."""
    folder.mkdir()
    (folder / "ivy.xml").write_text(_IVY.format(repository))
    settings = {"spark.jars.ivySettings": str(folder / "ivy.xml"), "spark.jars.ivy": str(folder / "ivy")} | further
    write_conf(folder, settings)
    return folder


def _dependency(line: str) -> str:
    return f"<dependency>{_named(line)}</dependency>"


def _named(line: str) -> str:
    group, artifact, version = line.split(":")
    return f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
