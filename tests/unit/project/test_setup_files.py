"""The files that the set-up installs from agree with one another, and say nothing of where they were made."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]


def locked_versions() -> dict[str, str]:
    pins = re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = (
        project["project"]["dependencies"],
        project["project"]["optional-dependencies"]["pipeline"],
        project["dependency-groups"]["dev"],
    )
    return [Requirement(text) for group in groups for text in group]


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_every_dependency_is_pinned_as_wanted(requirement: Requirement) -> None:
    """Goal: nobody forgets `make lock`. Method: look up each dependency of pyproject.toml in the lock file."""
    assert locked_versions()[canonicalize_name(requirement.name)] in requirement.specifier


def test_every_pin_has_a_checksum_and_no_address() -> None:
    """Goal: what is installed is what was reviewed, from whichever index. Method: read the lock file."""
    text = (ROOT / "requirements.lock").read_text()
    blocks = re.split(r"\n(?=\S)", text.rstrip())
    pins = [block for block in blocks if not block.startswith("#")]
    assert len(pins) == len(locked_versions())
    assert all("--hash=sha256:" in block for block in pins)
    assert "://" not in text


@pytest.mark.parametrize("jar_set", ["kafka", "spark", "delta", "hadoop"])
def test_the_checksums_are_those_of_the_pinned_jars(jar_set: str) -> None:
    """Goal: nobody forgets `make jar-checksums`. Method: look for the versions of the pom among the jars."""
    folder = ROOT / "scripts/jars" / jar_set
    dependencies = re.findall(
        r"<dependency>.*?<artifactId>(.*?)</artifactId>\s*<version>(.*?)</version>",
        (folder / "pom.xml").read_text(),
        re.DOTALL,
    )
    jars = {line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert dependencies
    assert {f"{artifact}-{version}.jar" for artifact, version in dependencies} <= jars


@pytest.mark.parametrize("pom", sorted((ROOT / "scripts/jars").glob("*/pom.xml")), ids=lambda path: path.parent.name)
def test_maven_can_read_what_is_pinned(pom: Path) -> None:
    """Goal: a machine without a cache of jars is set up too (a comment once held two dashes). Method: parse it."""
    assert ElementTree.parse(pom).getroot().tag.endswith("project")


def test_the_connector_is_that_of_the_pinned_spark() -> None:
    """Goal: Spark and its Kafka connector are raised together. Method: compare pom.xml and the lock."""
    pom = (ROOT / "scripts/jars/spark/pom.xml").read_text()
    assert f"<artifactId>spark-sql-kafka-0-10_2.13</artifactId>\n      <version>{locked_versions()['pyspark']}<" in pom


def test_an_unreleased_version_is_not_called_like_a_release() -> None:
    """Goal: nothing built between releases is taken for one. Method: version, changelog and table of releases agree."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    title = re.findall(r"^## (\S+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = re.findall(r"^\| (\d\S*) \| `\w+` \|", (ROOT / "docs" / "releases.md").read_text(), re.MULTILINE)
    (newest, when), older = title[0], [name for name, _ in title[1:]]
    assert set(older) <= set(released), "a released version that docs/releases.md does not name"
    assert version == (f"{newest}.dev0" if when == "not released yet" else newest)


def ill_formed(name: str, text: str) -> list[str]:
    """What is wrong with a note of a change, so that the release would leave it out or misplace it."""
    kinds = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    known = {kind["directory"] for kind in kinds}
    problems = [] if (form := re.fullmatch(r"\+[a-z0-9-]+\.(\w+)\.md", name)) else ["not called +NAME.KIND.md"]
    problems += [] if not form or form[1] in known else [f"no such kind: {form[1]}"]
    return problems + ([] if re.fullmatch(r"[^#\s][^\n]{19,399}\n", text) else ["not one line of text"])


def test_the_notes_of_changes_are_well_formed() -> None:
    """Goal: no change is lost at a release. Method: names and texts in changes/, and one of each mistake."""
    folder = ROOT / "changes"
    notes = {
        path.name: path.read_text() for path in folder.iterdir() if path.name not in {"README.md", "template.md.jinja"}
    }
    assert {name: problems for name, text in notes.items() if (problems := ill_formed(name, text))} == {}
    good = "`notary status` says who serves.\n"
    assert ill_formed("+status.added.md", good) == []
    assert ill_formed("status.added.md", good) and ill_formed("+status.new.md", good)
    assert ill_formed("+status.added.md", f"# Status\n{good}") and ill_formed("+status.added.md", "")
    newest = (ROOT / "CHANGELOG.md").read_text().partition("\n## ")[2]
    assert newest.partition(")\n")[2].startswith("\n<!-- changes -->\n"), (
        "changes are noted as files in changes/, not here"
    )
