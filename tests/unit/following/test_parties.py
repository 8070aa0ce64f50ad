"""Officers and registrations in the index: a run is judged by its own, and the scrub compares them."""

from __future__ import annotations

import pytest

from replica.following.apply import Applier
from replica.following.index_check import begin_check, check_complete, continue_check
from replica.index.memory import MemoryIndex
from replica.log.memory import MemoryTopic
from replica.notary.errors import IndexMismatch
from replica.notary.parties import registration_id
from replica.notary.rules import Outcome
from tests.worlds.notary_logs import CLIENT_KEY, PARTY, LogMaker, request_of
from tests.worlds.party_logs import OFFICER_KEYS

OFFICER = OFFICER_KEYS[0]
TOPIC_ID = "memory-1"


def values() -> list[bytes]:
    """A log with officers, a registration that is revoked and played again, and requests in between."""
    maker = LogMaker()
    maker.genesis(OFFICER)
    maker.barrier(1)
    maker.submit(request_of(1, (1,)), command="c1")
    maker.register(PARTY, key=CLIENT_KEY, by=OFFICER)
    maker.submit(request_of(2, (2,)), command="c2")
    maker.register(PARTY, key=CLIENT_KEY, by=OFFICER, period_us=(7, 7))
    maker.register(PARTY, key=CLIENT_KEY, by=OFFICER, before=0)  # played again
    maker.submit(request_of(3, (3,)), command="c3")
    return maker.values


def a_topic() -> MemoryTopic:
    """That log, on a topic."""
    topic = MemoryTopic(TOPIC_ID)
    for value in values():
        topic.store(value)
    return topic


@pytest.mark.parametrize("run", [1, 2, 8])
def test_a_replica_judges_by_the_registrations_of_its_own_run(run: int) -> None:
    """Goal: registrations count for later requests of their run. Method: a log, cut in runs."""
    topic, applier, found = a_topic(), Applier(MemoryIndex(), TOPIC_ID), []
    for at in range(0, topic.end_offset, run):
        found += [verdict.outcome for verdict in applier.apply(topic.records(at, run)).verdicts if verdict]
    assert found == [Outcome.PARTY_UNKNOWN, Outcome.NOTARISED, Outcome.KEY_NOT_VALID]


def test_the_scrub_compares_officers_and_registrations() -> None:
    """Goal: a missing, a changed and an invented entry are found. Method: each in turn, in the index of a whole log."""
    topic = a_topic()
    records = topic.records(0, topic.end_offset)

    def checked(index: MemoryIndex) -> None:
        check = continue_check(index, begin_check(TOPIC_ID), records[:3])
        check_complete(continue_check(index, check, records[3:]), index.entry_count)

    def whole() -> MemoryIndex:
        index = MemoryIndex()
        Applier(index, TOPIC_ID).apply(records)
        return index

    def changed(key: bytes, value: bytes | None) -> MemoryIndex:
        kept = dict(whole().entries())
        if value is None:
            del kept[key]
        else:
            kept[key] = value
        index = MemoryIndex()
        index.write(kept, whole().position())
        return index

    checked(whole())
    pair = registration_id(PARTY, CLIENT_KEY)
    for key, value in ((pair + (3).to_bytes(8, "big"), None), (pair + (6).to_bytes(8, "big"), bytes(63) + b"\6")):
        with pytest.raises(IndexMismatch):
            checked(changed(key, value))
    with pytest.raises(IndexMismatch, match="entries"):
        checked(changed(pair + (99).to_bytes(8, "big"), bytes(63) + b"\1"))
