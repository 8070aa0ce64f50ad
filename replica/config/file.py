"""The configuration file as people meet it: every setting with its unit, its default and its reason.

Written from the model itself, so that the file, the model and `notary config show` cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from haproxy.render import HaproxySettings, ReplicaAddress
from replica.config.model import ENVIRONMENT_PREFIX, Config
from replica.notary.errors import ConfigError

WIDTH = 110
REQUIRED = object()
"""Default of a setting that has none."""

_REFERENCE_HEAD = (
    "# Settings",
    "",
    "For operators who look a setting up; a page to search. `notary config reference` writes this page;",
    "`notary init` writes a file with all texts; `notary config show` prints where each value comes from. The",
    "environment goes before the file:",
    "`NOTARY_ELECTION__LEASE_S` is `lease_s` in `[election]`. A setting that ends in `_file` names a file, mode 0600",
    "if it has a secret: secrets are never values.",
    "",
    "In parentheses: the default, then the range; `>0` is not in it. A name's ending is its unit: `_s` seconds, `_ms`",
    "milliseconds, `_mib` MiB, `_per_s` a second. `ha/settings.py` argues why `[election]` is safe; a configuration",
    "that breaks the argument is refused. **Rarely changed** are those whose name says what they bound.",
)
_RARELY_TABLES = {("log", "memory"), ("link",), ("haproxy", "take_out")}
_RARELY_NAMES = re.compile(
    "linger|_batch_|queue_max|retry_|tick_s|pause|read_ahead|pipeline_(?!max$)|check_interval|_window"
)
_UNITS = {"_per_s": "per second", "_s": "seconds", "_bytes": "bytes", "_mib": "MiB"}  # the first that fits
_TOLD_ELSEWHERE = {("api", "host"), ("api", "port"), ("haproxy", "bind"), ("haproxy", "replicas")}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the tables that lead to it and its own name, what it is for, and its default."""

    path: tuple[str, ...]
    description: str
    default: object
    range: str = ""  # of a number, as it is printed

    @property
    def unit(self) -> str | None:
        """The unit of a number, from the ending of its name."""
        return next((unit for ending, unit in _UNITS.items() if self.path[-1].endswith(ending)), None)

    @property
    def variable(self) -> str:
        """The environment variable that overrides it."""
        return ENVIRONMENT_PREFIX + "__".join(self.path).upper()


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the file. `repeated`: there is one for each replica. `optional`: it may be left out as a whole."""

    path: tuple[str, ...]
    description: str
    settings: tuple[Setting, ...]
    repeated: bool = False
    optional: bool = False


def tables() -> list[Table]:
    """Every table of a configuration file, in the order in which they are written."""
    return list(_tables(Config, (), "Of the participant as a whole."))


def render_config(values: Mapping[str, Any], title: str) -> str:
    """A configuration file with these values (nested, as TOML would be read); what is at its default is a comment.

    Raises ConfigError when a value is no setting, or one without a default is missing. `load_config` checks the rest.
    """
    left = _flatten(values)
    lines = _comment(title)
    for table in tables():
        for number in range(len(values.get("replicas", ())) if table.repeated else 1):
            path = (*table.path, str(number)) if table.repeated else table.path
            names = [setting.path[-1] for setting in table.settings]
            given = {name: left.pop((*path, name)) for name in names if (*path, name) in left}
            lines += ["", *_lines_of_table(table, given, explained=number == 0)]
    if left:
        raise ConfigError(f"no such setting: {', '.join('.'.join(path) for path in left)}")
    return "\n".join(lines) + "\n"


def render_reference() -> str:
    """Every setting as a page of Markdown; docs/settings.md is this."""
    lines = list(_REFERENCE_HEAD)
    for table in tables():
        name = ".".join(table.path)
        shown = "Of the participant" if not name else f"`[[{name}]]`" if table.repeated else f"`[{name}]`"
        lines += [
            "",
            f"## {shown}",
            table.description,
            "",
        ]
        rarely = [setting for setting in table.settings if _is_rarely_changed(table, setting)]
        lines += [f"- {_shown(one)}: {one.description}" for one in table.settings if one not in rarely]
        if rarely:
            lines.append(f"- Rarely changed: {', '.join(map(_shown, rarely))}")
    return "\n".join(lines) + "\n"


def _is_rarely_changed(table: Table, setting: Setting) -> bool:
    if setting.default is REQUIRED:
        return False
    return table.path in _RARELY_TABLES or _RARELY_NAMES.search(setting.path[-1]) is not None


def _shown(setting: Setting) -> str:
    """Name, default and range of a setting, as the reference has them."""
    default = "required" if setting.default is REQUIRED else f"`{_toml(setting.default) or 'none'}`"
    return f"`{setting.path[-1]}` ({'; '.join(fact for fact in (default, setting.range) if fact)})"


def _tables(model: Any, path: tuple[str, ...], description: str) -> Iterator[Table]:
    settings: list[Setting] = []
    inner: list[Table] = []
    for name, kind, text, default, span in _fields(model):
        where = (*path, name)
        if where in _TOLD_ELSEWHERE:
            continue
        if where == ("replicas",):
            inner += [dataclasses.replace(table, repeated=True) for table in _tables(ReplicaAddress, where, text)]
        elif where == ("haproxy",):
            inner += _tables(HaproxySettings, where, text)
        elif (table_kind := _table_in(kind)) is not None:
            found = _tables(table_kind, where, text or _summary(table_kind))
            inner += [dataclasses.replace(table, optional=table.optional or default is None) for table in found]
        else:
            settings.append(Setting(where, text, default, span))
    yield Table(path, description, tuple(settings))
    yield from inner


def _fields(model: Any) -> Iterator[tuple[str, Any, str, object, str]]:
    """Name, type, description, default and range of each field of a pydantic model or of a dataclass."""
    if dataclasses.is_dataclass(model):
        for entry in dataclasses.fields(model):
            facts = entry.metadata
            span = f"{facts['low']:g}–{facts['high']:.0f}" if "low" in facts else ""
            yield entry.name, entry.type, facts["description"], entry.default, span
        return
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        given = REQUIRED if default is PydanticUndefined else default
        yield name, field.annotation, field.description or "", given, _range(field)


def _range(field: FieldInfo) -> str:
    """The range of a number as it is printed, from its type."""
    inner = (entry for kind in get_args(field.annotation) for entry in getattr(kind, "__metadata__", ()))
    bounds = [bound for entry in (*field.metadata, *inner) for bound in getattr(entry, "metadata", (entry,))]
    lows: list[Any] = [bound.ge for bound in bounds if isinstance(bound, Ge)]
    above: list[Any] = [bound.gt for bound in bounds if isinstance(bound, Gt)]
    highs: list[Any] = [bound.le for bound in bounds if isinstance(bound, Le)]
    if not highs:
        return ""
    high = min(highs)
    upper = f"{high:g}" if high < 1 else f"{high:.0f}"  # never in powers of ten
    return f"{max(lows)}–{upper}" if lows else f">{max(above)}–{upper}"


def _table_in(kind: Any) -> Any:
    """The model that a field holds, perhaps or certainly; None for a plain value."""
    for candidate in (kind, *get_args(kind)):
        if isinstance(candidate, type) and (issubclass(candidate, BaseModel) or dataclasses.is_dataclass(candidate)):
            return candidate
    return None


def _summary(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")


def _flatten(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, (*path, name))
        elif isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
            flat |= _flatten({str(at): entry for at, entry in enumerate(value)}, (*path, name))
        else:
            flat[(*path, name)] = value
    return flat


def _lines_of_table(table: Table, given: Mapping[str, Any], explained: bool) -> list[str]:
    name = ".".join(table.path)
    left_out = table.optional and not given
    lines = _comment(table.description) if explained else []
    if name:
        header = f"[[{name}]]" if table.repeated else f"[{name}]"
        lines.append(f"#{header}" if left_out else header)
    for setting in table.settings:
        value = given.get(setting.path[-1])
        if value is None and setting.default is REQUIRED and not left_out:
            raise ConfigError(f"{'.'.join(setting.path)} has no default and must be given")
        lines += _lines_of(setting, value, explained)
    return lines


def _lines_of(setting: Setting, value: Any, explained: bool) -> list[str]:
    default = "" if setting.default is REQUIRED else f"default {_toml(setting.default) or 'none'}"
    facts = ", ".join(fact for fact in (setting.unit, default) if fact)
    comment = _comment(f"{setting.description} [{facts}]" if facts else setting.description) if explained else []
    name = setting.path[-1]
    if value is not None:
        return [*comment, f"{name} = {_toml(value)}"]
    shown = "" if setting.default is REQUIRED else _toml(setting.default)
    return [*comment, f"#{name} = {shown}".rstrip()]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for paragraph in text.split("\n") for line in textwrap.wrap(paragraph, WIDTH - 2) or [""]]


def _toml(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False)
        case _:
            raise ConfigError(f"{value!r} has no form in a configuration file")
