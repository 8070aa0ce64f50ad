"""Reads a configuration: from a TOML file with the environment on top, checked as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ha.errors import HaError
from replica.config.exposure import plaintext_connections
from replica.config.former_names import in_todays_names
from replica.config.model import Config
from replica.notary.errors import Code, ConfigError
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
        config = Config(**in_todays_names(values))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'all'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{origin}: {problems}") from None
    except HaError as error:
        raise ConfigError(f"{origin}: election: {error}") from None
    exposed = plaintext_connections(config)
    if exposed:
        raise ConfigError(f"{origin}: {'; '.join(exposed)}", Code.PLAINTEXT_EXPOSED)
    return _with_absolute_paths(config, base)


def _with_absolute_paths(config: Config, base: Path) -> Config:
    def absolute(path: Path) -> Path:
        return Path(os.path.normpath(base / path))

    files = ("password_file", "reader_password_file")
    secrets = {name: path for name in files if (path := getattr(config.database, name)) is not None}
    database = config.database.model_copy(update={name: absolute(path) for name, path in secrets.items()})
    api = config.api.model_copy(
        update={
            "registry_path": absolute(config.api.registry_path),
            "tls": _with_absolute_files(config.api.tls, absolute),
            "tokens": _with_absolute_files(config.api.tokens, absolute),
        }
    )
    archive = config.archive.model_copy(
        update={"folder": absolute(config.archive.folder), "key_file": absolute(config.archive.key_file)}
    )
    return config.model_copy(
        update={
            "data_dir": absolute(config.data_dir),
            "notary_key_file": None if config.notary_key_file is None else absolute(config.notary_key_file),
            "pkcs11": _with_absolute_files(config.pkcs11, absolute),
            "notary_keys_file": None if config.notary_keys_file is None else absolute(config.notary_keys_file),
            "database": database,
            "api": api,
            "archive": archive,
            "client": _with_absolute_files(config.client, absolute),
            "log": _with_absolute_files(config.log, absolute),
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
