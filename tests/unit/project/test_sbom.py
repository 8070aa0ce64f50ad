"""The software bill of materials has everything that is installed from the lock and from the sets of jars."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.project.test_setup_files import ROOT, locked_versions


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `make sbom` writes, and writes again."""
    texts = set()
    for name in ("one.json", "two.json"):
        path = tmp_path_factory.mktemp("sbom") / name
        subprocess.run([sys.executable, "scripts/sbom.py", str(path)], cwd=ROOT, check=True)
        texts.add(path.read_text())
    (text,) = texts  # the same files, the same bytes
    return json.loads(text)


def test_it_is_cyclonedx_of_this_release(sbom: dict[str, Any]) -> None:
    """Goal: tools can read it. Method: format, version, serial number; references are unique."""
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", sbom["serialNumber"])
    assert sbom["metadata"]["component"]["name"] == "replicated-notary"
    references = [component["bom-ref"] for component in sbom["components"]]
    assert len(set(references)) == len(references)


def test_every_locked_package_is_in_it_with_all_its_checksums(sbom: dict[str, Any]) -> None:
    """Goal: complete. Method: names, versions and the number of checksums, against requirements.lock."""
    packages = [component for component in sbom["components"] if component["purl"].startswith("pkg:pypi/")]
    assert {component["name"]: component["version"] for component in packages} == locked_versions()
    lock = (ROOT / "requirements.lock").read_text()
    assert sum(len(component["hashes"]) for component in packages) == lock.count("--hash=sha256:")


def test_every_jar_is_in_it_with_its_checksum(sbom: dict[str, Any]) -> None:
    """Goal: complete, and what was verified. Method: against SHA256SUMS of every set."""
    found = {
        (component["properties"][0]["value"], f"{component['name']}-{component['version']}.jar"): component["hashes"]
        for component in sbom["components"]
        if component["purl"].startswith("pkg:maven/")
    }
    wanted = {
        (sums.parent.name, line.split()[1]): [{"alg": "SHA-256", "content": line.split()[0]}]
        for sums in Path(ROOT, "scripts/jars").glob("*/SHA256SUMS")
        for line in sums.read_text().splitlines()
    }
    assert found == wanted


def test_what_serves_is_told_from_what_only_develops(sbom: dict[str, Any]) -> None:
    """Goal: an auditor sees what runs in production. Method: the scope of some of each kind; licences are named."""
    scopes = {component["name"]: component["scope"] for component in sbom["components"]}
    wanted = {"aiohttp": "required", "multidict": "required", "pyspark": "optional", "python-pkcs11": "optional"}
    wanted |= {"kafka-clients": "optional", "pytest": "excluded", "hypothesis": "excluded"}
    assert {name: scopes[name] for name in wanted} == wanted
    unnamed = [c["name"] for c in sbom["components"] if c["scope"] == "required" and not c.get("licenses")]
    assert unnamed == []
