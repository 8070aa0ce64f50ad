"""Binds the participant database to a topic that its log was restored to. For an operator, with all replicas down."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from replica.notary.codes import Code
from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.notary.position import Position, decode_position, encode_position
from replica.notary.salvage import Salvage, bound_name
from replica.store.adopt import REPLICA_ACTIVE, position_in
from replica.store.postgres.looking import to_use
from replica.store.postgres.migrate import CONNECT_MAX_S
from replica.store.postgres.store import named_statement


def adopt_topic(
    conninfo: str,
    lock_id: int,
    topic_id: str,
    check: Callable[[Position], None],
    salvage: Salvage | None = None,
) -> Position | None:
    """Bind the database to this topic; return its published position there, None if nothing was published.

    `lock_id`: that of the lock that makes a replica active; held meanwhile. `check` raises unless the topic has the
    records that the position was read from. `salvage`: that of the records that the topic has lost. From then on the
    database names it, and a replica whose index lacks it does not serve. May be repeated.

    Raises StoreMismatch when a replica is active or the database changes meanwhile, RestoreRefused when it changed
    since the salvage was made, and StoreUnavailable.
    """
    try:
        with psycopg.connect(to_use(conninfo), connect_timeout=CONNECT_MAX_S) as connection:
            if not _one(connection, b"SELECT pg_try_advisory_xact_lock(%s)", (lock_id,)):
                raise StoreMismatch(REPLICA_ACTIVE, Code.NOT_POSSIBLE_NOW)
            row = connection.execute(
                b"SELECT topic_id, published_offset, published_position FROM participant FOR UPDATE"
            ).fetchone()
            if row is None:
                raise StoreMismatch("the database has lost its participant row; restore it from a backup")
            known, offset, encoded = row
            position = None
            if encoded is not None:
                position = position_in(decode_position(bytes(encoded)), topic_id, salvage)
                check(position)
            values = {
                "topic_id": bound_name(known, topic_id, None if salvage is None else salvage.digest),
                "position": None if position is None else encode_position(position),
                "known": known,
                "offset": offset,
            }
            connection.execute(named_statement("adopt_topic"), values)
            return position
    except psycopg.Error as error:
        raise StoreUnavailable(f"the database was not changed: {str(error).strip()}") from None


def _one(connection: psycopg.Connection[tuple[object, ...]], query: bytes, values: tuple[object, ...]) -> object:
    row = connection.execute(query, values).fetchone()
    return None if row is None else row[0]
