"""The shared database over TLS with `verify-full`: a real server with a certificate of a throw-away authority."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from replica.database import participant_database
from replica.local.ports import PortReservation
from replica.local.postgres import SERVER_ACCOUNT, PostgresServer
from tests.certificates import Authority

ROLE, DATABASE, SECRET = "notary", "notary", "of-the-tests"


@pytest.mark.postgres
async def test_the_server_must_prove_who_it_is(servers_folder: Path, ports: PortReservation) -> None:
    """Goal: no password for an impostor. Method: the right authority, then another one, on the migration's way in."""
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
        database = participant_database(verified, DATABASE)
        assert await database.migrate() != []
        assert (await database.status()).epoch == 0
        with pytest.raises(psycopg.OperationalError, match="SSL error"):
            await psycopg.AsyncConnection.connect(make_conninfo(verified, sslrootcert=str(other.ca_file)))
    finally:
        await server.remove()
