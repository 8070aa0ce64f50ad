"""Looks at this machine: files that the configuration names, data folder, limits, clock. Never raises."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from pydantic import BaseModel

from ledger_api.server.settings import OTHER_FILES, TokenSettings
from ledger_api.server.tls import make_tls
from ledger_api.server.tokens import read_keys as read_token_keys
from ledger_api.server.tokens import read_revoked
from replica.active.signer import check_signer
from replica.config.exposure import open_listeners
from replica.config.model import Config
from replica.doctor.facts import FileFacts, MachineFacts
from replica.following.salvaged import read_salvages
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, NotaryError
from replica.notary.keys import ended_at, known_keys
from replica.notary.secret_files import read_secret
from replica.store.open import parse_conninfo
from replica.telemetry.traces import check_tracing

_STA_UNSYNC = 0x40  # of adjtimex(2)
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}
_PEM_MARK = b"-----BEGIN CERTIFICATE-----"
_TLS_FILES = ("sslcert", "sslrootcert")  # of libpq


def file_checks(config: Config) -> dict[str, Callable[[], object]]:
    """The file checks of a replica's start, by the name of the doctor's check.

    Each raises NotaryError when the replica could not.
    """
    api, tokens = config.api, config.api.tokens
    return {
        "notary-key": lambda: _check_key(config),
        "operator-keys": lambda: _check_operators(config),
        "database-password": lambda: _check_passwords(config),
        "log-secrets": config.log.settings.check_files,
        "api-certificates": lambda: None if api.tls is None else make_tls(api.tls),
        "token-keys": lambda: None if tokens is None else _check_tokens(tokens),
        "tracing": lambda: check_tracing(config.tracing),
        "salvages": lambda: _salvages(config),
    }


def look_at_files(config: Config) -> FileFacts:
    """Every file that a replica reads at its start."""
    found = {name: problem for name, check in file_checks(config).items() if (problem := _problem(check)) is not None}
    problems = {name: f"{problem.code.name}: {problem.detail}" for name, problem in found.items()}
    ended = None if "notary-key" in problems else _key_ended(config)
    in_conninfo = parse_conninfo(config.database.conninfo)
    named_there = ((f"database.conninfo {name}", Path(in_conninfo[name])) for name in _TLS_FILES if name in in_conninfo)
    expiries = {name: expires for name, path in named_there if (expires := _expiry(path)) is not None}
    return FileFacts(
        problems=problems,
        notary_key_in="service" if config.kms else "token" if config.pkcs11 else "file",
        notary_key_refused="notary-key" in found and found["notary-key"].code is Code.SIGNER_ACCESS_DENIED,
        notary_key_ended=ended,
        password_in_conninfo="password" in in_conninfo,
        certificates=expiries | dict(certificates(config)),
        open_listeners=tuple(open_listeners(config)),
        salvages={} if "salvages" in problems else _salvages(config),
    )


def look_at_machine(config: Config) -> MachineFacts:
    """The data folder and its surroundings. A folder that does not exist yet is judged by its future parent."""
    folder = config.data_dir
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # Path.exists raises EACCES
    usage = shutil.disk_usage(existing)
    problem = None
    if not os.path.isdir(existing):
        problem = f"{existing} is no folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        problem = f"{existing} cannot be written by this account"
    return MachineFacts(
        data_dir=str(folder),
        data_dir_problem=problem,
        data_dir_open_to_others=existing == folder and bool(folder.stat().st_mode & 0o007),
        free_bytes=usage.free,
        size_bytes=max(1, usage.total),
        memory_backed=_file_system(existing) in _MEMORY_FILE_SYSTEMS,
        open_files_max=_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),  # a replica raises its soft one
        clients_files=config.api.connections_max + OTHER_FILES,
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


def _check_tokens(tokens: TokenSettings) -> None:
    if tokens.keys_file is not None:
        read_token_keys(tokens.keys_file)
    if tokens.revoked_file is not None:
        read_revoked(tokens.revoked_file)


def _check_operators(config: Config) -> None:
    """Raises ConfigError when the file of the operators' keys is not usable, or has too few people for four eyes."""
    now = datetime.now(UTC)
    people = {one.name for one in config.operator_keys() if one.until is None or one.until > now}
    if config.operators.four_eyes and len(people) < 2:
        raise ConfigError(
            f"{config.operators.keys_file} has {len(people)} operators with a key in force, four eyes need 2"
        )


def _check_key(config: Config) -> None:
    signer = config.notary_signer()  # once: a token counts how often it refuses a PIN
    check_signer(signer)
    known_keys(config.notary_keys_file, signer.public_key)


def _key_ended(config: Config) -> datetime | None:
    signing = config.notary_signer().public_key
    return ended_at(known_keys(config.notary_keys_file, signing), signing, datetime.now(UTC))


def _salvages(config: Config) -> dict[str, frozenset[str]]:
    """Digests of the salvages of each replica of this machine. A replica that was never started here has no folder."""
    folders = {address.name: config.replica_dir(address.name) for address in config.replicas}
    return {
        name: frozenset(digest.hex() for digest in read_salvages(folder).held)
        for name, folder in folders.items()
        if os.path.isdir(folder)
    }


def _check_passwords(config: Config) -> None:
    database, site = config.database, config.site
    witness = None if site is None else site.witness_password_file
    for file in (database.password_file, database.reader_password_file, witness):
        if file is not None:
            read_secret(file)


def _problem(check: Callable[[], object]) -> NotaryError | None:
    try:
        check()
    except NotaryError as error:
        return error
    return None


def _limit(value: int) -> int:
    return 1 << 30 if value == resource.RLIM_INFINITY else value


def _file_system(path: Path) -> str:
    """The kind of file system that a path lies on; empty if it is not known."""
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
    """Whether the kernel's clock is synchronised, read by adjtimex(2) without a change."""

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
