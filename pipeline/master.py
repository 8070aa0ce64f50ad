"""What `--master` names: which forms there are, and the addresses one of which must answer before Spark is started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from xml.etree import ElementTree

from replica.notary.errors import ConfigError

Address = tuple[str, int]

YARN = "yarn"
CONNECT = "sc://"
_CONNECT_PORT = 15002  # of Spark Connect, where the URL names none
_YARN_PORT = 8032
_HTTPS_PORT = 443
_FORMS = {
    "local": "local[2]",
    "spark": "spark://HOST:PORT",
    "yarn": "yarn",
    "k8s": "k8s://https://HOST:PORT",
    "sc": "sc://HOST:PORT for Spark Connect",
}
_LOCAL = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?")
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>\d{1,5}))?")
_API_SERVER = re.compile(rf"k8s://(?:(?P<scheme>https?)://)?{_ADDRESS.pattern}/?")


def check_master(master: str, environment: Mapping[str, str]) -> list[Address]:
    """The addresses of a master, a Connect server, Kubernetes' API server or YARN's ResourceManagers; none for `local`.

    Raises ConfigError for what Spark would not understand, and where YARN's configuration is not there.
    """
    if _LOCAL.fullmatch(master):
        return []
    if master == YARN:
        return _resource_managers(environment)
    if (server := _API_SERVER.fullmatch(master)) is not None:
        plain = 80 if server["scheme"] == "http" else _HTTPS_PORT
        return [_pair(server, plain)]
    scheme, separator, rest = master.partition("://")
    found = [_ADDRESS.fullmatch(part) for part in re.split(r"[;/]", rest)[0].split(",")] if separator else []
    ports_named = scheme == "sc" or all(match and match["port"] for match in found)
    if scheme not in ("spark", "sc") or not found or None in found or not ports_named:
        raise ConfigError(f"--master {master}: give {_forms()}{_meant(master)}")
    return [_pair(match, _CONNECT_PORT) for match in found if match]


def _pair(match: re.Match[str], port: int) -> Address:
    return match["host"].strip("[]"), int(match["port"] or port)


def _forms() -> str:
    *others, last = _FORMS.values()
    return f"{', '.join(others)}, or {last}"


def _meant(master: str) -> str:
    """The nearest form, where one is near."""
    scheme = re.split(r"[:\[]", master)[0].lower()
    near = get_close_matches(scheme, _FORMS, 1)
    return f"; did you mean {_FORMS[near[0]]}?" if near else ""


def _resource_managers(environment: Mapping[str, str]) -> list[Address]:
    """Where the ResourceManagers listen, of yarn-site.xml; none where its values have variables of Hadoop's."""
    folder = environment.get("HADOOP_CONF_DIR") or environment.get("YARN_CONF_DIR")
    if not folder:
        raise ConfigError("--master yarn: set HADOOP_CONF_DIR to the folder of the cluster's configuration")
    if not Path(folder).is_dir():
        raise ConfigError(f"--master yarn: HADOOP_CONF_DIR names {folder}, and there is no such folder")
    file = Path(folder) / "yarn-site.xml"
    try:
        values = _properties(file)
    except (OSError, ElementTree.ParseError) as error:
        raise ConfigError(f"--master yarn: {file} cannot be read: {error}") from None
    prefix = "yarn.resourcemanager"
    ends = [f".{name.strip()}" for name in values.get(f"{prefix}.ha.rm-ids", "").split(",") if name.strip()] or [""]
    found = [values.get(f"{prefix}.address{end}") or values.get(f"{prefix}.hostname{end}", "") for end in ends]
    if not any(found):
        raise ConfigError(f"--master yarn: {file} names no ResourceManager: {prefix}.hostname or {prefix}.address")
    matches = [_ADDRESS.fullmatch(address) for address in found]
    return [_pair(match, _YARN_PORT) for match in matches if match]


def _properties(file: Path) -> dict[str, str]:
    """The settings of a file of Hadoop's, which an operator's account wrote."""
    rows = ElementTree.fromstring(file.read_text()).iter("property")  # noqa: S314
    return {(row.findtext("name") or "").strip(): (row.findtext("value") or "").strip() for row in rows}
