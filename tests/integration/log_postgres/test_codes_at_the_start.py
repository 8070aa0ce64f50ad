"""Codes that a replica's process ends with, as its supervisor and its log see them; a real process and database."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from replica.active.signer import create_key
from replica.config.file import render_config
from replica.index.rocks import RocksIndex
from replica.local.ports import PortReservation
from replica.log.postgres.install import install
from replica.notary.codes import Code
from replica.store.postgres.migrate import migrate
from tests.integration.conftest import MakeDatabase
from tests.integration.log_postgres.world import PostgresUnderTest
from tests.integration.store_postgres.test_neighbours import working
from tests.integration.store_postgres.world import MIGRATION_LOCK, looking
from tests.unit.cli.test_codes_that_people_see import told
from tests.worlds.archive_world import make_archive, some_log

pytestmark = [pytest.mark.thorough, pytest.mark.postgres]

ENDS_MAX_S = 60.0
NEEDS_A_PERSON, START_AGAIN = 2, 1


class Process:
    """A configuration of one replica, and what its process says."""

    def __init__(self, folder: Path, dsn: str, ports: PortReservation) -> None:
        self.folder = folder
        self.dsn = dsn
        self._path = folder / "notary.toml"
        create_key(folder / "notary.key")
        (folder / "parties.toml").write_text("[parties]\n")
        self.values: dict[str, Any] = {
            "data_dir": "data",
            "notary_key_file": "notary.key",
            "endpoint": {"host": "127.0.0.1", "port": ports.take()},
            "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": ports.take(), "health_port": ports.take()}],
            "database": {"conninfo": dsn, "scope": conninfo_to_dict(dsn)["dbname"]},
            "log": {"kind": "postgres", "postgres": {"conninfo": dsn, "single_server": True}},
        }

    @property
    def index(self) -> Path:
        return self.folder / "data" / "r1" / "index"

    def ends(self, code: str, exit_code: int) -> str:
        """Run it; it ends with this exit code, and its last line has code and remedy. Returns the detail."""
        self._path.write_text(render_config(self.values, "test"))
        argv = [sys.executable, "-m", "replica.cli", "replica", "--config", str(self._path), "--name", "r1"]
        done = subprocess.run(argv, check=False, capture_output=True, timeout=ENDS_MAX_S)
        lines = (done.stdout + done.stderr).decode().splitlines()
        assert not any(line.startswith("Traceback") for line in lines)
        (said,) = [one for one in map(json.loads, filter(None, lines)) if one["event"] == "replica_failed"]
        assert (said["code"], done.returncode) == (code, exit_code), said
        assert said["remedy"] == Code[code].remedy
        return str(said["detail"])

    async def command(self, *words: str) -> tuple[int, str]:
        """Exit code and standard error of a command of the same configuration."""
        self._path.write_text(render_config(self.values, "test"))
        argv = [sys.executable, "-m", "replica.cli", *words, "--config", str(self._path)]
        done = await asyncio.to_thread(subprocess.run, argv, check=False, capture_output=True, timeout=ENDS_MAX_S)
        return done.returncode, done.stderr.decode()

    async def end(self, code: str, exit_code: int) -> str:
        return await asyncio.to_thread(self.ends, code, exit_code)


@pytest.fixture
async def process(make_database: MakeDatabase, ports: PortReservation, tmp_path: Path) -> Process:
    """A replica whose database has its tables; there is no log yet."""
    dsn = await make_database()
    await migrate(dsn, MIGRATION_LOCK)
    return Process(tmp_path, dsn, ports)


async def test_no_log(process: Process) -> None:
    """Goal: a log that nobody made, or that was deleted, is not waited for. Method: start without one."""
    assert "notary log create" in await process.end("LOG_MISSING", NEEDS_A_PERSON)


async def test_a_log_without_genesis(process: Process) -> None:
    """Goal: a replica begins no ledger. Method: start on an empty log; nothing is written to it."""
    await install(process.dsn, partition_records=1_000)
    assert "the log is empty" in await process.end("LOG_WITHOUT_GENESIS", NEEDS_A_PERSON)
    assert told((await process.command("log", "check"))[1], "LOG_WITHOUT_GENESIS")
    made, _ = await process.command("log", "create", "--officer", "ab" * 32)
    assert (made, (await process.command("log", "check"))[0]) == (0, 0)


async def test_a_second_process_of_one_name(process: Process) -> None:
    """Goal: it names the other one and may be started again. Method: start beside a session that works."""
    async with working(process.dsn):
        assert "r1" in await process.end("REPLICA_NAME_TAKEN", START_AGAIN)


async def test_a_database_of_two_ledgers(process: Process) -> None:
    """Goal: nobody serves from tables that may be another's. Method: a copy on the search path."""
    async with looking(process.dsn) as connection:
        await connection.execute(b"CREATE SCHEMA second")
        await connection.execute(b"CREATE TABLE second.participant AS SELECT * FROM public.participant")
    process.values["database"]["conninfo"] = make_conninfo(process.dsn, options="-c search_path=second,public")
    assert "public" in await process.end("LEDGERS_SHARE_DATABASE", NEEDS_A_PERSON)


async def test_an_index_that_is_damaged_again(process: Process) -> None:
    """Goal: a machine that damages indexes gets a person. Method: two moved aside already, and a third one damaged."""
    await install(process.dsn, partition_records=1_000)
    process.index.parent.mkdir(parents=True)
    RocksIndex(process.index).close()
    (process.index / "CURRENT").write_bytes(b"rubbish")
    for number in (1, 2):
        process.index.with_name(f"index.corrupt-2026010{number}T000000.000000Z").mkdir()
    assert "index.corrupt-20260102" in await process.end("INDEX_DAMAGED_AGAIN", NEEDS_A_PERSON)
    assert (process.index / "CURRENT").read_bytes() == b"rubbish"  # it stays in place, for whoever looks


async def test_a_history_that_is_none(process: Process) -> None:
    """Goal: file and line are named. Method: check a line of something else against an empty log."""
    await install(process.dsn, partition_records=1_000)
    (process.folder / "some.jsonl").write_text('{"no": "history"}\n')
    code, err = await process.command("check", str(process.folder / "some.jsonl"))
    assert (code, told(err, "HISTORY_INVALID"), "some.jsonl, line 1" in err) == (1, True, True)


async def test_a_log_that_is_not_empty_is_not_restored(process: Process) -> None:
    """Goal: nothing is mixed into a log that is there. Method: an archive of twenty records, and a log of one."""
    await install(process.dsn, partition_records=1_000)
    await PostgresUnderTest(process.dsn).put(b"a record of its own")
    make_archive(process.folder / "archive", some_log(20))
    key = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
    (process.folder / "archive.key").touch(mode=0o600)
    (process.folder / "archive.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    code, err = await process.command("restore", "run")
    assert (code, told(err, "RESTORE_REFUSED")) == (1, True), err


async def test_a_token_that_is_not_there(process: Process) -> None:
    """Goal: no token, no replica; a supervisor tries again. Method: a label that no token of the module has."""
    del process.values["notary_key_file"]
    pin = process.folder / "pin"
    pin.touch(mode=0o600)
    pin.write_text("482913\n")
    process.values["pkcs11"] = {
        "module": "/usr/lib/softhsm/libsofthsm2.so",
        "token_label": "nobody's",
        "key_label": "notary-1",
        "pin_file": "pin",
    }
    assert 'there is no token "nobody\'s"' in await process.end("SIGNER_UNAVAILABLE", START_AGAIN)
