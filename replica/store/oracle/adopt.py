"""Binds the participant database to a topic that its log was restored to. For an operator, with all replicas down."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replica.notary.codes import Code
from replica.notary.errors import StoreMismatch
from replica.notary.position import Position, decode_position, encode_position
from replica.notary.salvage import Salvage, bound_name
from replica.store.adopt import REPLICA_ACTIVE, position_in
from replica.store.oracle.looking import GRANTED, REQUEST_LOCK, plain_cursor
from replica.store.oracle.store import named_statement


def adopt_topic(
    login: Mapping[str, str],
    lock_id: int,
    topic_id: str,
    check: Callable[[Position], None],
    salvage: Salvage | None = None,
) -> Position | None:
    """See replica.store.postgres.adopt. The lock goes with the connection."""
    with plain_cursor("adopt_topic", login) as cursor:
        result = cursor.var(int)
        cursor.execute(REQUEST_LOCK, {"id": lock_id, "seconds": 0, "result": result})
        if result.getvalue() != GRANTED:
            raise StoreMismatch(REPLICA_ACTIVE, Code.NOT_POSSIBLE_NOW)
        cursor.execute(named_statement("adopted"), fetch_lobs=False)
        row = cursor.fetchone()
        if row is None:
            raise StoreMismatch("the database has lost its participant row; restore it from a backup")
        position = None
        if row[1] is not None:
            position = position_in(decode_position(row[1]), topic_id, salvage)
            check(position)
        encoded = None if position is None else encode_position(position)
        bound = bound_name(row[0], topic_id, None if salvage is None else salvage.digest)
        cursor.execute(named_statement("adopt_topic"), {"topic_id": bound, "published_position": encoded})
        cursor.connection.commit()
        return position
