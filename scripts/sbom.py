"""Writes a software bill of materials, CycloneDX 1.6: every Python package and every jar, with version and checksums.

It is made from what the set-up installs from: requirements.lock, pyproject.toml, and SHA256SUMS and coordinates.txt of
each set of jars. The same files give the same bytes. Licences are those that the installed packages name.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
import uuid
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
Component = dict[str, Any]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)


def make_sbom(root: Path) -> dict[str, Any]:
    """The document for the project in a folder."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    name, version = project["project"]["name"], project["project"]["version"]
    components = [*python_components(root, project), *jar_components(root)]
    content = json.dumps([name, version, components])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "project",
                "name": name,
                "version": version,
                "licenses": [{"license": {"id": project["project"]["license"]}}],
                "purl": f"pkg:pypi/{name}@{version}",
            }
        },
        "components": components,
    }


def python_components(root: Path, project: dict[str, Any]) -> Iterator[Component]:
    """What requirements.lock pins. `scope`: every installation needs it, an extra adds it, only development does."""
    extras = project["project"]["optional-dependencies"].values()
    required = closure(project["project"]["dependencies"])
    optional = closure([text for extra in extras for text in extra])
    for name, version, hashes in _PIN.findall((root / "requirements.lock").read_text()):
        key = canonicalize_name(name)
        scope = "required" if key in required else "optional" if key in optional else "excluded"
        yield {
            "type": "library",
            "bom-ref": f"pkg:pypi/{key}@{version}",
            "name": key,
            "version": version,
            "scope": scope,
            "hashes": [  # of each file that the version is published as; which one is installed depends on the machine
                {"alg": "SHA-256", "content": digest} for digest in re.findall("sha256:([0-9a-f]{64})", hashes)
            ],
            "licenses": licences(key),
            "purl": f"pkg:pypi/{key}@{version}",
        }


def jar_components(root: Path) -> Iterator[Component]:
    """The jars of every set, each with the checksum that it is compared with before it is used."""
    for folder in sorted(path.parent for path in (root / "scripts" / "jars").glob("*/SHA256SUMS")):
        coordinates = {}
        for line in (folder / "coordinates.txt").read_text().splitlines():
            group, artifact, version = line.split(":")
            coordinates[f"{artifact}-{version}.jar"] = (group, artifact, version)
        for line in (folder / "SHA256SUMS").read_text().splitlines():
            digest, file = line.split()
            group, artifact, version = coordinates[file]
            yield {
                "type": "library",
                "bom-ref": f"{folder.name}:{file}",
                "group": group,
                "name": artifact,
                "version": version,
                "scope": "excluded" if folder.name in ("jmx", "kafka-tools") else "optional",
                "hashes": [{"alg": "SHA-256", "content": digest}],
                "purl": f"pkg:maven/{group}/{artifact}@{version}",
                "properties": [{"name": "jar-set", "value": folder.name}],
            }


def closure(wanted: list[str]) -> set[str]:
    """The names of packages and of all that they need on this machine, as far as they are installed."""
    found: set[str] = set()
    left = [(Requirement(text), frozenset[str]()) for text in wanted]
    while left:
        requirement, extras = left.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found or requirement.extras:
            found.add(name)
            try:
                left += [(Requirement(text), frozenset(requirement.extras)) for text in requires(name) or ()]
            except PackageNotFoundError:
                continue
    return found


def licences(name: str) -> list[dict[str, Any]]:
    """What the installed package says of its licence: an SPDX expression, or a name."""
    try:
        fields = metadata(name)
    except PackageNotFoundError:
        return []
    if expression := fields.get("License-Expression"):
        return [{"expression": expression}]
    classifiers = [text.rpartition(" :: ")[2] for text in fields.get_all("Classifier") or () if "License ::" in text]
    classifiers = [text for text in classifiers if not text.startswith("Other/")]  # which says nothing
    named = classifiers or [line for line in (fields.get("License") or "").splitlines()[:1] if line.strip()]
    return [{"license": {"name": one}} for one in named]


def main() -> None:
    """Write the document to the file that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    file.parent.mkdir(parents=True, exist_ok=True)
    sbom = make_sbom(ROOT)
    file.write_text(json.dumps(sbom, indent=1) + "\n")
    print(f"{file}: {len(sbom['components'])} components")


if __name__ == "__main__":
    main()
