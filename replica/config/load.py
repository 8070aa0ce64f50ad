"""Reads a configuration: from a TOML file with the environment on top, checked as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ha.errors import HaError
from replica.config.exposure import open_listeners, plaintext_connections
from replica.config.model import Config
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.places import Remote, no_url
from replica.notary.untrusted import parse_toml

Part = TypeVar("Part", bound=BaseModel | None)


def load_config(path: Path) -> Config:
    """The configuration in a TOML file. The environment overrides it. Relative paths are relative to the file's folder.

    Raises ConfigError naming every setting that is wrong.
    """
    try:
        values = parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; `notary init` writes one") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return make_config(values, path.resolve().parent, str(path))


def make_config(values: dict[str, Any], base: Path, origin: str) -> Config:
    """The configuration from parsed values. Raises ConfigError naming every setting that is wrong."""
    try:
        config = Config(**values)
    except ValidationError as error:
        problems = "; ".join(_problem(one) for one in _causes(error.errors()))
        raise ConfigError(f"{origin}: {problems}") from None
    except HaError as error:
        raise ConfigError(f"{origin}: election: {error}") from None
    exposed = plaintext_connections(config)
    if exposed:
        raise ConfigError(f"{origin}: {'; '.join(exposed)}", Code.PLAINTEXT_EXPOSED)
    opened = open_listeners(config)
    if opened and "tokens" not in config.api.model_fields_set:
        problem = f"other machines reach the API of {', '.join(opened)}, and api.tokens is not set"
        raise ConfigError(f"{origin}: {problem}", Code.API_OPEN)
    return _with_absolute_paths(config, base)


def _causes(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """The mistakes without those that only follow from one inside them: a list is too short without its bad entry."""
    places = [error["loc"] for error in errors]
    return [
        one
        for one in errors
        if not any(len(at) > len(one["loc"]) and at[: len(one["loc"])] == one["loc"] for at in places)
    ]


def _problem(error: ErrorDetails) -> str:
    """One mistake in a line; of a setting that does not exist, the one that is spelt most like it."""
    *table, name = error["loc"] or ("all",)
    where = ".".join(map(str, error["loc"])) or "all"
    if error["type"] == "missing":
        return f"{where} is required"
    if error["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{where}: {error['msg']}"
    near = get_close_matches(str(name), _settings_in(table))
    return f"{where}: there is no such setting" + (f"; did you mean {near[0]}?" if near else "")


def _settings_in(table: Sequence[int | str]) -> list[str]:
    """The names that a table of the configuration may have; none where the table has several forms."""
    model: Any = Config
    for part in table:
        if isinstance(part, str):
            model = _table_type(model, part)
    if is_dataclass(model):
        return [field.name for field in fields(model)]
    return list(getattr(model, "model_fields", ()))


def _table_type(model: Any, name: str) -> Any:
    """The type of a table within a table: its model or dataclass, also where it is optional or in a list."""
    annotation = get_type_hints(model).get(name) if isinstance(model, type) else None
    waiting = [annotation]
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) and (is_dataclass(one) or issubclass(one, BaseModel)):
            return one
        waiting += get_args(one)
    return None


def _with_absolute_paths(config: Config, base: Path) -> Config:
    def absolute(path: Path) -> Path:
        return Path(os.path.normpath(base / no_url(path)))

    files = ("password_file", "reader_password_file")
    secrets = {name: path for name in files if (path := getattr(config.database, name)) is not None}
    database = config.database.model_copy(update={name: absolute(path) for name, path in secrets.items()})
    api = config.api.model_copy(
        update={
            "tls": _with_absolute_files(config.api.tls, absolute),
            "tokens": _with_absolute_files(config.api.tokens, absolute),
        }
    )
    folder = config.archive.folder
    archive = config.archive.model_copy(
        update={
            "folder": folder if isinstance(folder, Remote) else absolute(folder),
            "key_file": absolute(config.archive.key_file),
        }
    )
    return config.model_copy(
        update={
            "data_dir": absolute(config.data_dir),
            "notary_key_file": None if config.notary_key_file is None else absolute(config.notary_key_file),
            "pkcs11": _with_absolute_files(config.pkcs11, absolute),
            "kms": _with_absolute_files(config.kms, absolute),
            "notary_keys_file": None if config.notary_keys_file is None else absolute(config.notary_keys_file),
            "database": database,
            "api": api,
            "admin": _with_absolute_files(config.admin, absolute),
            "archive": archive,
            "tables": _with_absolute_files(config.tables, absolute),
            "log_copy": _with_absolute_files(config.log_copy, absolute),
            "site": _with_absolute_files(config.site, absolute),
            "client": _with_absolute_files(config.client, absolute),
            "log": _with_absolute_files(config.log, absolute),
            "operators": _with_absolute_files(config.operators, absolute),
            "tracing": _with_absolute_files(config.tracing, absolute),
        }
    )


def _with_absolute_files(part: Part, absolute: Callable[[Path], Path]) -> Part:
    """The same settings with every path in them, and in their tables, made absolute."""
    if part is None:
        return part
    files = {name: absolute(value) for name, value in part if isinstance(value, Path)}
    tables = {name: _with_absolute_files(value, absolute) for name, value in part if isinstance(value, BaseModel)}
    return part.model_copy(update=files | tables)
