"""Which database a connection string leads to, and whole replicas over Oracle's double."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from psycopg.conninfo import conninfo_to_dict

from ha.clock import SystemClock
from ha.lock.ids import Counter, lock_id
from ha.lock.oracle import OracleLockSession, server_lease
from ha.lock.postgres import PostgresLockSession
from ha.settings import ElectionSettings
from replica import database as databases
from replica.cli.init import EXAMPLE
from replica.config.load import make_config
from replica.database import OracleDatabase, PostgresDatabase, participant_database
from replica.notary.answers import Notarised
from replica.notary.errors import ConfigError
from replica.notary.records import BarrierRecord, decode_record
from replica.operators.metrics import CoreMetrics, make_metrics
from replica.store.open import with_password
from replica.store.oracle.export import export_completions
from replica.store.oracle.login import parse_oracle, render_oracle
from replica.store.oracle.migrate import migrate
from replica.store.oracle.store import OracleStore
from replica.store.postgres.looking import to_look
from replica.store.postgres.store import PostgresStore
from tests.oracle import driver
from tests.oracle.server import KILLED, OracleServer
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import BEGUN, FIRST_EPOCH, Replica, Shared, state, submission

URL = "oracle://notary@db-1:1521,db-2:1521/notary.example"
LOGIN = {"user": "notary", "dsn": "db-1:1521,db-2:1521/notary.example"}


def test_the_connection_string_says_which_database() -> None:
    """Goal: one setting decides. Method: both kinds, with the sessions and stores they give."""
    settings, clock = ElectionSettings(), SystemClock()

    async def check() -> None:
        for conninfo, kind, session_kind, store_kind in [
            ("host=a dbname=notary", PostgresDatabase, PostgresLockSession, PostgresStore),
            ("postgresql://a/notary", PostgresDatabase, PostgresLockSession, PostgresStore),
            (URL, OracleDatabase, OracleLockSession, OracleStore),
        ]:
            database = participant_database(conninfo, "notary")
            assert type(database) is kind
            session = database.lock_session(name="r1", settings=settings, clock=clock)
            assert type(session) is session_kind
            assert type(database.make_store(session)) is store_kind
            assert "GRANT" in database.roles()

    asyncio.run(check())


@pytest.mark.parametrize("password", ["plain", "p@ss:w%rd/ é", "***"])
def test_a_login_survives_its_connection_string(password: str) -> None:
    """Goal: any user and password can be written. Method: render and parse; the connect string stays as it is."""
    login = {"user": "no:t@ry", "password": password, "dsn": "(DESCRIPTION=(ADDRESS=(PROTOCOL=tcps)(HOST=db)(PORT=1)))"}
    assert parse_oracle(render_oracle(login)) == login
    assert parse_oracle(with_password(URL, password)) == {**LOGIN, "password": password}


@pytest.mark.parametrize("wrong", ["oracle://", "oracle://notary", "oracle://@db/x", "oracle://notary@"])
def test_a_connection_string_without_user_or_database_is_refused(wrong: str) -> None:
    """Goal: a mistake is named before anything connects. Method: parts left out."""
    with pytest.raises(ConfigError, match="oracle://USER@"):
        participant_database(wrong, "NOTARY")


def test_a_password_is_never_shown() -> None:
    """Goal: no secret on a screen. Method: what a database calls itself, of either kind."""
    for conninfo in (with_password(URL, "hunter2"), "host=a password=hunter2"):
        shown = participant_database(conninfo, "NOTARY").conninfo
        assert "hunter2" not in shown
        assert databases.HIDDEN in shown
    assert participant_database(URL, "NOTARY").conninfo == URL


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: python-oracledb is optional, and asked for by name. Method: hide it."""
    monkeypatch.setattr(databases, "find_spec", lambda name: None)
    assert importlib.util.find_spec("oracledb") is not None
    with pytest.raises(ConfigError, match=r"replicated-notary\[oracle\]"):
        participant_database(URL, "NOTARY")


def test_the_rights_are_for_the_configured_user() -> None:
    """Goal: what is printed can be run. Method: another user's name in every grant."""
    rights = participant_database(URL, "LEDGER_7").roles()
    grants = [line for line in rights.splitlines() if line.startswith("GRANT")]
    assert grants
    assert all(line.endswith(' TO "LEDGER_7";') for line in grants)


async def test_a_configuration_leads_to_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: configuration, secret, migration, status and lock fit together. Method: all of them over the double."""
    server = OracleServer(SystemClock(), tmp_path)
    asked = driver.install(monkeypatch, server)
    secret = tmp_path / "database.password"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    values = EXAMPLE | {
        "database": {
            "conninfo": "oracle://notary@127.0.0.1:1521/notary",
            "password_file": "database.password",
            "scope": "NOTARY",
        }
    }
    database = make_config(values, tmp_path, "test").shared_database()
    assert await database.migrate() != []
    assert asked[0]["password"] == "hunter2"
    assert server.named("migration_lock")[0].rows[0]["id"] == lock_id("NOTARY", Counter.NODE_MIGRATIONS)
    assert (await database.status()).epoch == 0
    with database.export() as export:
        assert list(export.rows) == []
    session = database.lock_session(name="r1", settings=ElectionSettings(), clock=SystemClock())
    await session.open()
    assert (await session.look()).free
    await session.close()


class OracleReplica(Replica):
    """A core whose lock session and store are those for Oracle."""

    def __init__(self, shared: Shared, name: str) -> None:
        super().__init__(shared, name)
        self.participant._make_store = cast(Any, OracleStore)

    def _session(self) -> Any:
        shared = self.shared
        login = {**LOGIN, "password": "secret"}
        return OracleLockSession(login, scope="NOTARY", name=self.name, settings=shared.election, clock=shared.clock)


def test_a_fail_over_on_oracle_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: two replicas on Oracle are one notary. Method: notarise, kill the active's session, ask again."""

    async def story() -> None:
        shared = Shared()
        server = OracleServer(shared.clock, tmp_path)
        driver.install(monkeypatch, server)
        await migrate(LOGIN, lock_id("NOTARY", Counter.NODE_MIGRATIONS))
        first, second = OracleReplica(shared, "R1"), OracleReplica(shared, "R2")
        first.start()
        await first.until_active()
        page = make_metrics(CoreMetrics(first.participant, first.election, "1", ["R1"]))().decode()
        assert "notary_lock_lease_seconds 60.0" in page
        assert "notary_lock_lease_verified 1.0" in page
        assert first.election.status()["lock_lease"] == asdict(server_lease("1", server.parameters, 3.0))
        second.start()
        (answer,) = await first.submit(submission(1, [state(9)]))
        assert isinstance(answer, Notarised)
        await asyncio.sleep(1.0)  # published
        server.end(server.session_of("R1"), KILLED)
        await second.until_active()
        (again,) = await second.submit(submission(1, [state(9)]))
        assert isinstance(again, Notarised)
        assert (again.log_offset, again.duplicate) == (answer.log_offset, True)
        (conflict,) = await second.submit(submission(2, [state(9)]))
        assert not isinstance(conflict, Notarised)
        await second.stop()
        await first.stop()
        records = [decode_record(value, 2) for _, value in shared.topic.records(BEGUN, 100)]
        barriers = [record for record in records if isinstance(record, BarrierRecord)]
        assert [(barrier.epoch, barrier.replica, str(barrier.granter)) for barrier in barriers[:2]] == [
            (FIRST_EPOCH, "R1", "oracle:4711:925702"),
            (FIRST_EPOCH + 1, "R2", "oracle:4711:925702"),
        ]
        with export_completions(LOGIN) as export:
            outcomes = [(number, completion.outcome) for number, completion in export.rows]
        assert outcomes == [(1, "NOTARISED"), (2, "STATE_CONFLICT")]
        assert server.breaks == 0

    run_virtually(story())


def test_connections_that_look_are_bounded_and_keep_what_operators_set() -> None:
    """Goal: no command hangs on a locked table, nor loses its schema. Method: options given, and none."""
    bounds = {"statement_timeout=2000", "lock_timeout=1000"}
    bounds |= {"tcp_keepalives_idle=10", "tcp_keepalives_interval=5", "tcp_keepalives_count=3"}
    given = conninfo_to_dict(to_look("host=db dbname=n options='-c search_path=notary'"))
    assert (given["host"], given["options"].startswith("-c search_path=notary -c ")) == ("db", True)
    for options in (given["options"], conninfo_to_dict(to_look("dbname=n"))["options"]):
        assert bounds <= set(options.removeprefix("-c ").split(" -c "))
