"""Completing officers and registrations from the log, while the follower reads on; and what the scrub sees of them."""

from __future__ import annotations

import pytest

from replica.following.apply import Applier
from replica.following.index_check import begin_check, check_parties_complete, continue_check
from replica.following.parties import complete_parties
from replica.index.commands import offset_of
from replica.index.memory import MemoryIndex, MemoryParties
from replica.log.memory import MemoryLog, MemoryTopic
from replica.notary.errors import IndexMismatch, LogRefused, TableLags
from replica.notary.parties import encode_officers, registration_id
from replica.notary.rules import Outcome
from replica.settings import CoreSettings
from tests.simulation.virtual import run_virtually
from tests.unit.following.test_commands import TOPIC_ID, Turns
from tests.worlds.ha_world import LoopClock
from tests.worlds.notary_logs import PARTY, LogMaker, request_of
from tests.worlds.party_logs import CLIENT_KEY, OFFICER_KEYS

OFFICER = OFFICER_KEYS[0]


def values(rules: int = 2) -> list[bytes]:
    """A log with officers, a registration that is revoked and played again, and requests in between."""
    maker = LogMaker(format=2)
    maker.barrier(1, rules=rules)
    maker.act("officers", body=encode_officers([OFFICER]), by=OFFICER)
    maker.submit(request_of(1, (1,)), command="c1")
    maker.register(PARTY, key=CLIENT_KEY, by=OFFICER)
    maker.submit(request_of(2, (2,)), command="c2")
    maker.register(PARTY, key=CLIENT_KEY, by=OFFICER, period_us=(7, 7))
    maker.register(PARTY, key=CLIENT_KEY, by=OFFICER)  # played again
    maker.submit(request_of(3, (3,)), command="c3")
    return maker.values


def a_topic(rules: int = 2) -> MemoryTopic:
    """That log, on a topic."""
    topic = MemoryTopic(TOPIC_ID)
    for value in values(rules):
        topic.store(value)
    return topic


@pytest.mark.parametrize("batch", [1, 3, 500])
@pytest.mark.parametrize("lag", [1, 2, 4, 7])
def test_the_follower_reads_on_while_registrations_are_completed(lag: int, batch: int) -> None:
    """Goal: no registration is written twice, none is left out. Method: the follower applies one record in each pause,
    from every distance."""

    async def story() -> None:
        topic, index = a_topic(), MemoryIndex()
        follower, end = Applier(index, TOPIC_ID), topic.end_offset
        follower.apply(topic.records(0, lag))
        index.parties = MemoryParties()  # as after a release that does not know it

        def read_on() -> None:
            if (at := follower.position.offset + 1) < end:
                follower.apply(topic.records(at, 1))

        settings = CoreSettings(read_batch_max=batch)
        await complete_parties(MemoryLog(topic), index, TOPIC_ID, clock=Turns(read_on), settings=settings)
        while follower.position.offset + 1 < end:
            read_on()
        whole = MemoryIndex()
        Applier(whole, TOPIC_ID).apply(topic.records(0, end))
        assert list(index.parties.entries()) == list(whole.parties.entries())
        assert offset_of(index.parties.position()) == end - 1

    run_virtually(story())


def test_registrations_of_another_log_are_refused() -> None:
    """Goal: nobody is judged by what another log registered. Method: the table has read another record."""

    async def story() -> None:
        topic, other = a_topic(), a_topic()
        other._records[3] = b"another record"
        index, elsewhere = MemoryIndex(), MemoryIndex()
        Applier(index, TOPIC_ID).apply(topic.records(0, 4))
        Applier(elsewhere, TOPIC_ID).apply(other.records(0, 4))
        index.parties = elsewhere.parties
        with pytest.raises(LogRefused, match="not the one that was applied"):
            await complete_parties(MemoryLog(topic), index, TOPIC_ID, clock=LoopClock(), settings=CoreSettings())

    run_virtually(story())


@pytest.mark.parametrize("run", [1, 2, 8])
def test_a_replica_judges_by_the_registrations_of_its_own_run(run: int) -> None:
    """Goal: registrations are written before the run with them is judged. Method: a log under rules 3, cut in runs."""
    topic, applier, found = a_topic(3), Applier(MemoryIndex(), TOPIC_ID), []
    for at in range(0, topic.end_offset, run):
        found += [verdict.outcome for verdict in applier.apply(topic.records(at, run)).verdicts if verdict]
    assert found == [Outcome.PARTY_UNKNOWN, Outcome.NOTARISED, Outcome.KEY_NOT_VALID]


def test_nothing_is_judged_by_a_table_that_lags() -> None:
    """Goal: a table without the newest registrations decides nothing. Method: it is lost under rules 3."""
    topic, index = a_topic(3), MemoryIndex()
    applier = Applier(index, TOPIC_ID)
    applier.apply(topic.records(0, 4))
    index.parties = MemoryParties()
    with pytest.raises(TableLags, match="registrations"):
        applier.apply(topic.records(4, 4))
    assert applier.position.offset == 3


def test_the_scrub_compares_officers_and_registrations() -> None:
    """Goal: a missing, a changed and an invented entry are found. Method: each in turn, in a table of a whole log."""
    topic = a_topic()
    records = topic.records(0, topic.end_offset)

    def checked(index: MemoryIndex) -> None:
        check = continue_check(index, begin_check(TOPIC_ID), records[:3])
        check_parties_complete(continue_check(index, check, records[3:]), index.parties.entry_count)

    def whole() -> MemoryIndex:
        index = MemoryIndex()
        Applier(index, TOPIC_ID).apply(records)
        return index

    checked(whole())
    pair = registration_id(PARTY, CLIENT_KEY)
    for key, value in ((pair + (3).to_bytes(8, "big"), None), (pair + (6).to_bytes(8, "big"), bytes(87) + b"\6")):
        index = whole()
        if value is None:
            del index.parties._entries[key]
        else:
            index.parties._entries[key] = value
        with pytest.raises(IndexMismatch):
            checked(index)
    index = whole()
    index.parties._entries[pair + (99).to_bytes(8, "big")] = bytes(87) + b"\1"
    with pytest.raises(IndexMismatch, match="entries of officers"):
        checked(index)
