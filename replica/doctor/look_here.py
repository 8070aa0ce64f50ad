"""Looks at this machine: files that the configuration names, data folder, limits, clock. Never raises."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from cryptography import x509
from pydantic import BaseModel

from ledger_api.server.registry import read_registry
from replica.config import Config
from replica.core.database import HIDDEN
from replica.core.signer import check_signer
from replica.doctor.facts import FileFacts, MachineFacts
from replica.notary.errors import ConfigError, NotaryError
from replica.notary.secret_files import check_secret

_STA_UNSYNC = 0x40  # of adjtimex(2)
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}
_PEM_MARK = b"-----BEGIN CERTIFICATE-----"


def look_at_files(config: Config) -> FileFacts:
    """Every file that a replica reads at its start."""
    registry_problem, pairs = _registry(config)
    return FileFacts(
        notary_key=_problem(lambda: check_signer(config.notary_signer())),
        registry=registry_problem,
        registered_pairs=pairs,
        database_password=_problem(lambda: _check_password(config)),
        password_in_conninfo=HIDDEN in config.shared_database().conninfo and config.database.password_file is None,
        kafka_secrets=_problem(config.kafka.security.client_config),
        certificates=dict(certificates(config)),
    )


def look_at_machine(config: Config) -> MachineFacts:
    """The data folder and what surrounds it; one that is not there yet is judged by where it would be made."""
    folder = config.data_dir
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    usage = shutil.disk_usage(existing)
    problem = None if os.access(existing, os.W_OK | os.X_OK) else f"{existing} cannot be written by this account"
    if problem is None and not existing.is_dir():
        problem = f"{existing} is no folder"
    return MachineFacts(
        data_dir=str(folder),
        data_dir_problem=problem,
        data_dir_open_to_others=folder.exists() and bool(folder.stat().st_mode & 0o007),
        free_bytes=usage.free,
        size_bytes=max(1, usage.total),
        memory_backed=_file_system(existing) in _MEMORY_FILE_SYSTEMS,
        open_files_max=_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        clock_synchronised=_clock_synchronised(),
    )


def certificates(config: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[str, datetime]]:
    """Every certificate file that a setting names, and when the first certificate in it expires."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from certificates(value, (*path, name))
        elif isinstance(value, Path) and (expires := _expiry(value)) is not None:
            yield ".".join((*path, name)), expires


def _expiry(path: Path) -> datetime | None:
    try:
        content = path.read_bytes()
        if _PEM_MARK not in content:
            return None
        return min(found.not_valid_after_utc for found in x509.load_pem_x509_certificates(content))
    except (OSError, ValueError):
        return None  # a file that cannot be read is another check's finding


def _registry(config: Config) -> tuple[str | None, int]:
    try:
        return None, len(read_registry(config.api.registry_path))
    except ConfigError as error:
        return error.detail, 0


def _check_password(config: Config) -> None:
    if config.database.password_file is not None:
        check_secret(config.database.password_file)


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except NotaryError as error:
        return error.detail
    except OSError as error:
        return str(error)
    return None


def _limit(value: int) -> int:
    return 1 << 30 if value == resource.RLIM_INFINITY else value


def _file_system(path: Path) -> str:
    """The kind of file system that a path lies on; empty if the kernel does not tell."""
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, mount, found, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def _clock_synchronised() -> bool | None:
    """What the kernel knows of its clock's discipline, asked by adjtimex(2) with nothing to change."""

    class Timex(ctypes.Structure):
        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_char * 256),
        )

    try:
        answer, timex = ctypes.CDLL(None, use_errno=True).adjtimex, Timex()
        if answer(ctypes.byref(timex)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return not timex.status & _STA_UNSYNC
