"""What is to be done about a table, given what a catalogue shows under its name. Pure.

A registration names a place, so of two tables of one name only one can be meant: a name that stands for another place
is refused, never changed. Columns are for people who look there: readers of Delta take them from the table itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from replica.notary.codes import Code
from replica.notary.errors import CatalogueRefused
from replica.notary.places import Place, Remote, inside

EXTERNAL, DELTA = "EXTERNAL_TABLE", "delta"
_TEXTS = {  # of Delta's types; others are called alike
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "timestamp_ntz": "timestamp",
}
_URL = re.compile(r"([a-z][a-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
Columns = tuple[tuple[str, str], ...]  # name and type of each


@dataclass(frozen=True, slots=True)
class Registration:
    """A table as the catalogue is to show it; `url`: its place."""

    name: str
    url: str
    columns: Columns


@dataclass(frozen=True, slots=True)
class Shown:
    """What a catalogue shows under a table's name."""

    kind: str
    format: str
    url: str
    columns: Columns


class Standing(StrEnum):
    """How a table stands in the catalogue, in words for a person."""

    MISSING = "not registered"
    REGISTERED = "registered"
    OTHER_COLUMNS = "registered, with other columns"
    TAKEN = "the name is taken"


def standing(wanted: Registration, shown: Shown | None) -> Standing:
    """How a table stands, given what is shown under its name."""
    if shown is None:
        return Standing.MISSING
    ours = EXTERNAL, DELTA, _comparable(wanted.url)
    if (shown.kind, shown.format.lower(), _comparable(shown.url)) != ours:
        return Standing.TAKEN
    return Standing.REGISTERED if _by_name(shown.columns) == _by_name(wanted.columns) else Standing.OTHER_COLUMNS


def arranged(wanted: Registration, shown: Shown | None) -> Columns:
    """The columns of a table, those that are shown already in their places there: a catalogue compares by place what it
    has with what it gets, and refuses a place whose type changes."""
    places = {name: place for place, name in enumerate(_by_name(shown.columns if shown else ()))}
    return tuple(sorted(wanted.columns, key=lambda column: places.get(column[0].casefold(), len(places))))


def refuse_taken(full_name: str, wanted: Registration, shown: Shown | None) -> None:
    """Raise CatalogueRefused (CATALOGUE_NAME_TAKEN) where the name stands for another table."""
    if shown is not None and standing(wanted, shown) is Standing.TAKEN:
        raise CatalogueRefused(
            f"{full_name} is {shown.kind or 'a table'} of {shown.format or 'no known format'} at"
            f" {shown.url or 'no place'}, not the table at {wanted.url}",
            Code.CATALOGUE_NAME_TAKEN,
        )


def registrations(folder: Place, schemas: Mapping[str, str]) -> list[Registration]:
    """The registrations of the tables in a folder; `schemas`: Delta's JSON of each table's columns, by its name."""
    return [
        Registration(name, url_of(inside(folder, name)), _columns(schema)) for name, schema in sorted(schemas.items())
    ]


def url_of(place: Place) -> str:
    """The URL of a table's place as Hadoop has it: nothing in it is escaped."""
    return re.sub(r"^s3:", "s3a:", place) if isinstance(place, Remote) else f"file://{place.absolute()}"


def type_text(kind: str | Mapping[str, Any]) -> str:
    """A type of a Delta schema in the words of SQL."""
    match kind:
        case str():
            return _TEXTS.get(kind, kind)
        case {"type": "array", "elementType": inner}:
            return f"array<{type_text(inner)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{type_text(key)},{type_text(value)}>"
        case _:
            fields = ",".join(f"{one['name']}:{type_text(one['type'])}" for one in kind["fields"])
            return f"struct<{fields}>"


def _columns(schema: str) -> Columns:
    return tuple((field["name"], type_text(field["type"])) for field in json.loads(schema)["fields"])


def _by_name(columns: Columns) -> dict[str, str]:
    """The type of each column; catalogues do not tell capitals from small letters."""
    return {name.casefold(): kind.casefold() for name, kind in columns}


def _comparable(url: str) -> tuple[str, str, str]:
    """A place however it is written: `file:/a`, `file:///a/`; `s3a://b/c`, `s3://b/c/`."""
    found = _URL.fullmatch(url)
    if found is None:
        return "", "", url
    return found[1].replace("s3a", "s3"), found[2] or "", found[3].rstrip("/")
