"""Lock ids: 30 bits from a scope and a counter.

The algorithm is fixed for ever, because two replicas that compute different ids are two actives:

    digest = SHA-256(int32 big-endian 33 | UTF-8 scope)          33 names the purpose; the scope has no length prefix
    id     = 2^29 | (first 4 digest bytes, big-endian, & 0x1FFFFF00) | (counter - 1)

Bits 0-7 hold the counter, 8-28 a hash of the scope, bit 29 is always set: 2^29 <= id < 2^30, which is inside the user
range of Oracle's DBMS_LOCK as well. The counter is not hashed.

On Postgres the scope is the database name as the server reports it, on Oracle the user name. Postgres keeps advisory
locks per database, so ids of two databases never meet there, whatever the 21 bits of hash say.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

_PURPOSE = (33).to_bytes(4, "big")
_SCOPE_MASK = 0x1FFFFF00
_ALWAYS_SET = 1 << 29
COUNTER_MAX = 256


class Counter(IntEnum):
    """What a lock is for. Numbers are never reused; 77 and above are for tests."""

    PARTICIPANT_WRITE = 1  # the main lock: whoever holds it is the active replica
    INDEXER_MAIN = 2
    INDEXER_WORKER = 3
    SEQUENCER_INIT = 4
    SEQUENCER_WRITERS_MAIN_FIRST = 5  # 32 of them, one per writer index
    NODE_MIGRATIONS = 37  # schema migrations, on a connection of their own
    MEDIATOR_WRITE = 38
    PARTICIPANT_WRITERS = 39  # held shared by each further writing connection, should there ever be any
    MEDIATOR_WRITERS = 40
    SEQUENCER_WRITERS_POOL_FIRST = 41  # 32 of them
    SEQUENCER_PRUNING_WRITE = 74
    SEQUENCER_PRUNING_WRITERS = 75
    SEQUENCER_INIT_WORKER = 76
    TESTS_FIRST = 77


def lock_id(scope: str, counter: int) -> int:
    """The id of lock number `counter` (1..256) of `scope`. Raises ValueError for another counter."""
    if not 1 <= counter <= COUNTER_MAX:
        raise ValueError(f"counter {counter} is not in 1..{COUNTER_MAX}")
    digest = hashlib.sha256(_PURPOSE + scope.encode()).digest()
    return _ALWAYS_SET | (int.from_bytes(digest[:4], "big") & _SCOPE_MASK) | (counter - 1)
