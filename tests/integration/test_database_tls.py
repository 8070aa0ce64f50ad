"""The shared database, and the request log in it, over TLS with `verify-full`: a real server with a certificate of a
throw-away authority."""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from replica.database import participant_database
from replica.local.ports import PortReservation
from replica.local.postgres import SERVER_ACCOUNT, PostgresServer
from replica.log.postgres.install import install
from replica.notary.errors import LogUnavailable
from tests.certificates import Authority
from tests.integration.log_postgres.world import opened, run
from tests.unit.log.test_contract import numbered, read_all

pytestmark = pytest.mark.postgres

ROLE, DATABASE, SECRET = "notary", "notary", "of-the-tests"


@dataclass
class Secured:
    """A server with TLS, and two connection strings: one trusts its authority, the other another one."""

    server: PostgresServer
    verified: str
    deceived: str


@pytest.fixture
async def secured(servers_folder: Path, ports: PortReservation) -> AsyncIterator[Secured]:
    authority, other = Authority(servers_folder / "pki"), Authority(servers_folder / "other-pki")
    certificate_file, key_file = authority.issue("postgres")
    if os.geteuid() == 0:
        account = pwd.getpwnam(SERVER_ACCOUNT)
        os.chown(key_file, account.pw_uid, account.pw_gid)
    tls = {"ssl": "on", "ssl_cert_file": str(certificate_file), "ssl_key_file": str(key_file)}
    server = PostgresServer(servers_folder / "postgres-tls", ports.take(), tls)
    try:
        await server.start()
        await server.ensure_role(ROLE, SECRET)
        await server.ensure_database(DATABASE, ROLE)
        plain = server.dsn(DATABASE, ROLE, SECRET)
        verified = make_conninfo(plain, sslmode="verify-full", sslrootcert=str(authority.ca_file))
        yield Secured(server, verified, make_conninfo(verified, sslrootcert=str(other.ca_file)))
    finally:
        await server.remove()


async def test_the_server_must_prove_who_it_is(secured: Secured) -> None:
    """Goal: no password for an impostor. Method: the right authority, then another one, on the migration's way in."""
    database = participant_database(secured.verified, DATABASE)
    assert await database.migrate() != []
    assert (await database.status()).epoch == 0
    with pytest.raises(psycopg.OperationalError, match="SSL error"):
        await psycopg.AsyncConnection.connect(secured.deceived)


async def test_the_request_log_is_written_and_read_encrypted(secured: Secured) -> None:
    """Goal: the log's connections are encrypted, and open for no impostor. Method: append and read with the right
    authority, and count the log's unencrypted sessions; then with another authority."""
    await install(secured.verified)
    async with opened(secured.verified) as log:
        (await log.open_writer()).append_all(numbered(3))
        assert len(await read_all(await log.open_reader(0), 3)) == 3
        sessions = "FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'notary_log'"
        dsn = secured.server.dsn(DATABASE)
        assert await run(dsn, f"SELECT count(*), bool_and(ssl) {sessions}") == [(2, True)]
    async with opened(secured.deceived) as log:
        for asking in (log.check, log.open_writer, lambda: log.open_reader(0)):
            with pytest.raises(LogUnavailable, match="SSL error"):
                await asking()
