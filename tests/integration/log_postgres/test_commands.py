"""The commands that set a log on Postgres up, as its owner and as replicas type them; and dumps of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import psycopg
import pytest
from click.testing import Result
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.testing import CliRunner

import replica.cli.common as shared
from replica.active.signer import create_key
from replica.cli.main import app
from replica.config.file import render_config
from replica.local.postgres import PostgresServer, find_binaries
from replica.log.interface import LogMissing
from replica.notary.errors import ConfigError, LogRefused, LogTruncated
from replica.store.postgres.migrate import migrate
from tests.integration.conftest import MakeDatabase
from tests.integration.log_postgres.test_damage import HARM, READS, WRITES
from tests.integration.log_postgres.world import PostgresUnderTest, opened, run
from tests.unit.log.test_contract import READ_WAIT_S, numbered, read_all

pytestmark = pytest.mark.postgres

REPLICA, ARCHIVIST = "log_replica_of_the_tests", "log_archivist_of_the_tests"
OFFICER = "ab" * 32


class Operator:
    """A configuration whose replicas log in as a role of their own, and somebody who types."""

    def __init__(self, folder: Path, owner: str, replicas: str) -> None:
        self.owner = owner
        self.replicas = replicas
        self._config = folder / "notary.toml"
        given = conninfo_to_dict(replicas)
        password, database = str(given.pop("password")), str(given["dbname"])
        (folder / "database.password").write_text(password)
        (folder / "database.password").chmod(0o600)
        create_key(folder / "notary.key")
        (folder / "parties.toml").write_text("[parties]\n")
        values = {
            "data_dir": "replicas",
            "notary_key_file": "notary.key",
            "endpoint": {"host": "127.0.0.1", "port": 1},
            "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
            "database": {"conninfo": owner, "scope": database},
            "log": {
                "kind": "postgres",
                "postgres": {
                    "conninfo": make_conninfo(**given),
                    "password_file": "database.password",
                    "single_server": True,
                },
            },
        }
        self._config.write_text(render_config(values, "test"))

    def types(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--config", str(self._config)])

    def done(self, *words: str) -> str:
        result = self.types(*words)
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result.output

    def refused(self, *words: str) -> BaseException | None:
        result = self.types(*words)
        assert result.exit_code != 0, result.output
        return result.exception


@pytest.fixture
def operator(
    make_database: MakeDatabase, postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Operator:
    """A database with the store's tables and no log; replicas and archivist may connect, and do no more."""
    monkeypatch.setattr(shared, "quiet_libraries", lambda: None)
    owner = asyncio.run(_made(make_database, postgres_server))
    return Operator(tmp_path, owner, make_conninfo(owner, user=REPLICA, password="pw"))


async def _made(make_database: MakeDatabase, server: PostgresServer) -> str:
    owner = await make_database()
    await migrate(owner, 1)
    name = str(conninfo_to_dict(owner)["dbname"])
    for role in (REPLICA, ARCHIVIST):
        await server.ensure_role(role, "pw")
        await server.run_script(f"GRANT CONNECT ON DATABASE {name} TO {role}".encode(), name)
    return owner


def test_the_owner_makes_the_log_and_replicas_may_only_append_and_read(operator: Operator) -> None:
    """Goal: the commands give rights that suffice, and no more. Method: nothing made; made by the owner; rights
    printed and run; checked, appended to, read and shown as a replica; every harm tried by each login."""
    assert isinstance(operator.refused("log", "check"), LogMissing)
    assert isinstance(operator.refused("log", "create"), LogRefused)  # replicas may not make it
    assert "name the first officers" in str(operator.refused("log", "create", "--owner", operator.owner))
    made = operator.done("log", "create", "--owner", operator.owner, "--officer", OFFICER)
    assert "its id is postgres:" in made and "it is the ledger " in made
    again = operator.done("log", "create", "--owner", operator.owner)  # nothing
    assert again.partition("the ledger ")[2].split()[0] == made.partition("the ledger ")[2].split()[0]
    assert "notary log roles" in str(operator.refused("log", "check"))
    printed = operator.done("log", "roles", "--reader", ARCHIVIST)
    with psycopg.connect(operator.owner, autocommit=True) as owner:
        owner.execute(printed.encode())
    assert "1 records" in operator.done("log", "check")
    asyncio.run(_append(operator.replicas, 3))
    assert "4 records" in operator.done("log", "check")
    shown = operator.done("log", "tail")
    assert (shown.count("undecodable"), shown.count("genesis")) == (3, 1)
    archivist = make_conninfo(operator.replicas, user=ARCHIVIST)
    for login, harm, allowed in ((operator.replicas, HARM, READS + WRITES), (archivist, HARM + WRITES, READS)):
        for statement in harm:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                asyncio.run(run(login, statement))
        for statement in allowed:
            asyncio.run(run(login, statement))


def test_what_only_another_log_has_is_refused_with_a_sentence(operator: Operator) -> None:
    """Goal: no crash, and nothing done. Method: the commands of topics, and a log that the database does not know."""
    for words in (("topic", "create"), ("topic", "check"), ("topic", "access")):
        found = operator.refused(*words)
        assert isinstance(found, ConfigError) and "log.kind is postgres" in found.detail
    operator.done("log", "create", "--owner", operator.owner, "--officer", OFFICER)
    with psycopg.connect(operator.owner, autocommit=True) as owner:
        owner.execute(operator.done("log", "roles").encode())
        owner.execute("UPDATE participant SET topic_id = 'another'")
    assert "the database belongs to" in str(operator.refused("log", "check"))


@pytest.mark.thorough
def test_the_doctor_sees_a_login_that_could_delete_the_log(operator: Operator) -> None:
    """Goal: replicas that own the log are found. Method: the findings with the replicas' role, and with the owner's."""
    operator.done("log", "create", "--owner", operator.owner, "--officer", OFFICER)
    with psycopg.connect(operator.owner, autocommit=True) as owner:
        owner.execute(operator.done("log", "roles").encode())
    assert _findings(operator)["log-deletion"]["severity"] == "ok"
    assert _findings(operator)["log-contract"]["severity"] == "ok"
    assert _findings(operator)["log-database"]["severity"] == "ok"
    assert "pg_read_all_stats" in _findings(operator)["log-snapshots"]["text"]
    with psycopg.connect(operator.owner, autocommit=True) as owner:
        owner.execute(f"GRANT DELETE ON notary_log.log_batch TO {REPLICA}".encode())
    found = _findings(operator)["log-deletion"]
    assert found["severity"] == "warning" and "notary log roles" in found["fix"]


def _findings(operator: Operator) -> dict[str, dict[str, str]]:
    output = operator.types("doctor", "--json").output
    found = json.loads(output[output.index("{") :])
    return {one["check"]: one for one in found["findings"]}


async def _append(dsn: str, count: int) -> None:
    async with opened(dsn) as log:
        writer = await log.open_writer()
        writer.append_all(numbered(count))
        assert len(await read_all(await log.open_reader(0), count)) == count


async def test_a_dump_restores_a_log_that_goes_on_and_one_that_is_too_short_is_refused(
    dsn: str, make_database: MakeDatabase
) -> None:
    """Goal: a dump is a copy of an earlier time, and no reader that is ahead takes it for the log.

    Method: dump at five records, append three more, restore elsewhere. The restored log has the same id and goes on;
    a reader that knows of eight is refused. A log with another id is refused by whoever knows the first one.
    """
    await PostgresUnderTest(dsn).put(*numbered(5))
    dump = subprocess.run(
        [str(find_binaries() / "pg_dump"), "--schema=notary_log", "--no-owner", f"--dbname={dsn}"],
        check=True,
        capture_output=True,
    ).stdout
    await PostgresUnderTest(dsn).put(*numbered(3, 5))
    restored = await make_database()
    psql = [str(find_binaries() / "psql"), "-q", "-v", "ON_ERROR_STOP=1", f"--dbname={restored}"]
    subprocess.run(psql, input=dump, check=True, capture_output=True)
    async with opened(dsn) as first, opened(restored) as second:
        assert await second.check() == await first.check()
        assert await first.end_offset() == 8
        with pytest.raises(LogTruncated, match="from 0 to below 5, asked for is 8"):
            await second.open_reader(8)
        (await second.open_writer()).append(b"goes on")
        found = await read_all(await second.open_reader(0), 6)
        assert found == [*enumerate(numbered(5)), (5, b"goes on")]
        reader = await second.open_reader(6)
        await run(restored, "UPDATE notary_log.log_head SET log_id = gen_random_uuid()")
        with pytest.raises(LogRefused, match="created anew"):
            await reader.read(1, READ_WAIT_S)
        with pytest.raises(LogRefused, match="created anew"):
            await second.end_offset()
