"""What each role of `notary store roles` may do with each table, as the server itself reports. A new table needs a
row."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from replica.local.postgres import PostgresServer
from replica.store.schema import read_statement
from tests.integration.store_postgres.world import rows

pytestmark = pytest.mark.postgres

READER, WRITER, ARCHIVIST, PRUNER = "notary_reader", "notary_writer", "notary_archivist", "notary_pruner"
NOBODY = "notary_nobody_of_the_tests"  # stands for PUBLIC
READ = frozenset({"SELECT"})
# What a role may do beside reading. Only the owner, who migrates and raises formats, may do anything else.
BESIDES: dict[str, dict[str, set[str]]] = {
    "participant": {
        WRITER: {
            f"UPDATE {column}"
            for column in (
                "topic_id",
                "epoch",
                "ledger_end",
                "published_offset",
                "published_position",
                "pruned_to",
            )
        }
    },
    "epoch_grant": {
        WRITER: {
            "INSERT",
            *(f"UPDATE {column}" for column in ("ended_at", "end_reason", "found_over_at", "found_over_by")),
        }
    },
    "completion": {WRITER: {"INSERT"}, PRUNER: {"DELETE"}},
    "failover_pause": {WRITER: {"INSERT", "UPDATE", "DELETE"}},
    "contradicted_mark": {WRITER: {"INSERT", "UPDATE", "DELETE"}},
    "archive_head": {ARCHIVIST: {"INSERT", "UPDATE"}},
    "operator_trail": {WRITER: {"INSERT"}},
    "worker_numbers": {WRITER: {"UPDATE drawn"}},
    "schema_version": {},
    "leader_history": {},
    "published_state": {},
}
_RIGHTS = """
SELECT c.relname, r.rolname, p.right
  FROM pg_class c
 CROSS JOIN pg_roles r
 CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p ("right")
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p', 'f', 'S')
   AND r.rolname = ANY(%(roles)s) AND has_table_privilege(r.oid, c.oid, p.right)
"""
_COLUMNS = """
SELECT c.relname, r.rolname, p.right || ' ' || a.attname
  FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 CROSS JOIN pg_roles r
 CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) AS p ("right")
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p', 'f')
   AND r.rolname = ANY(%(roles)s) AND has_column_privilege(r.oid, c.oid, a.attnum, p.right)
   AND NOT has_table_privilege(r.oid, c.oid, p.right)
"""
_POWERS = """
SELECT rolname, rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls OR rolcanlogin,
       has_schema_privilege(oid, 'public', 'CREATE'),
       ARRAY(SELECT g.rolname::text FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid WHERE m.member = r.oid)
  FROM pg_roles r WHERE rolname = ANY(%(roles)s)
"""
_RELATIONS = (
    "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v', 'm', 'S')"
)
_FUNCTIONS = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace"


@pytest.fixture
async def owner(
    dsn: str, postgres_server: PostgresServer
) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """The administrator's connection to a database with the schema and its roles."""
    name = str(conninfo_to_dict(dsn)["dbname"])
    await postgres_server.run_script(read_statement("postgres", "roles").encode(), name)
    await postgres_server.ensure_role(NOBODY, "pw")
    async with await psycopg.AsyncConnection.connect(postgres_server.dsn(name), autocommit=True) as connection:
        yield connection


async def test_every_role_has_the_rights_of_the_table_and_no_more(
    owner: psycopg.AsyncConnection[tuple[str, str, str]],
) -> None:
    """Goal: least privilege, for tables of later releases too. Method: every right of every role, by the server."""
    roles = [READER, WRITER, ARCHIVIST, PRUNER, NOBODY]
    found: dict[tuple[str, str], set[str]] = {}
    async with owner:
        relations = {name for (name,) in await (await owner.execute(_RELATIONS)).fetchall()}
        for query in (_RIGHTS, _COLUMNS):
            for relation, role, right in await (await owner.execute(query, {"roles": roles})).fetchall():
                found.setdefault((relation, role), set()).add(right)
        assert await (await owner.execute(_FUNCTIONS)).fetchall() == [(0,)]  # none that PUBLIC might execute
    assert relations == BESIDES.keys()
    assert found == {
        (relation, role): READ | besides.get(role, set())
        for relation, besides in BESIDES.items()
        for role in (READER, WRITER, ARCHIVIST, PRUNER)
    }


async def test_no_role_has_powers_beyond_tables(owner: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
    """Goal: no way round the rights. Method: attributes, membership, and the right to make objects, by the server."""
    async with owner:
        asked = await owner.execute(_POWERS, {"roles": [READER, WRITER, ARCHIVIST, PRUNER]})
        found = {name: rest for name, *rest in await asked.fetchall()}
    assert found.pop(READER) == [False, False, []]
    assert found == {role: [False, False, [READER]] for role in (WRITER, ARCHIVIST, PRUNER)}


HARM = {
    READER: ("INSERT INTO failover_pause (keeper, reason) VALUES ('r', 'x')", "UPDATE participant SET epoch = 9"),
    WRITER: ("UPDATE participant SET record_format = 9", "DELETE FROM completion", "UPDATE archive_head SET lines = 0"),
    ARCHIVIST: (
        "UPDATE participant SET epoch = 9",
        "DELETE FROM archive_head",
        "INSERT INTO epoch_grant VALUES (9, 'r')",
    ),
    PRUNER: ("UPDATE participant SET pruned_to = 9", "UPDATE completion SET outcome = ''", "DELETE FROM epoch_grant"),
}


@pytest.mark.parametrize("role", HARM)
async def test_a_login_of_each_role_is_refused_what_is_not_its_own(
    role: str, dsn: str, owner: psycopg.AsyncConnection[tuple[object, ...]], postgres_server: PostgresServer
) -> None:
    """Goal: the rights hold for a login, not only on paper. Method: a member of each tries the others' statements."""
    login = f"{role}_of_the_tests"
    await postgres_server.ensure_role(login, "pw")
    async with owner:
        await owner.execute(f"GRANT {role} TO {login}".encode())
        await owner.execute(f"GRANT CONNECT ON DATABASE {conninfo_to_dict(dsn)['dbname']} TO {login}".encode())
    member = make_conninfo(dsn, user=login, password="pw")
    assert await rows(member, "SELECT count(*) FROM completion") == [(0,)]
    for statement in (*HARM[role], "TRUNCATE completion", "DROP TABLE completion", "CREATE TABLE more (n int)"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await rows(member, statement)
