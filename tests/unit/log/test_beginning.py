"""How a log begins: who writes the genesis, and who refuses a log without one."""

from __future__ import annotations

import asyncio

import pytest

from replica.following.follower import Follower
from replica.index.memory import MemoryIndex
from replica.index.newest import officers_of
from replica.log.beginning import LogWithoutGenesis, begin_log, genesis_of
from replica.log.memory import MemoryLog, MemoryTopic
from replica.notary.codes import Code
from replica.notary.errors import LogTruncated, LogUnavailable
from replica.notary.genesis import LEDGER_ID_BYTES, encode_genesis, new_genesis
from replica.notary.parties import Officers
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import Shared, World
from tests.worlds.ha_world import LoopClock
from tests.worlds.notary_logs import LogMaker

ANNA, BEN = b"a" * 32, b"b" * 32


async def test_an_empty_log_gets_one_genesis_and_keeps_it() -> None:
    """Goal: a log is made once. Method: begin it twice, with other officers, through two clients at once as well."""
    topic = MemoryTopic()
    first = await begin_log(MemoryLog(topic), [BEN, ANNA, BEN])
    assert (first.officers, len(first.ledger_id)) == ((ANNA, BEN), LEDGER_ID_BYTES)
    assert await begin_log(MemoryLog(topic), [BEN]) == first == await genesis_of(MemoryLog(topic))
    assert topic.end_offset == 1
    other = await begin_log(MemoryLog(MemoryTopic()), [ANNA, BEN])
    assert other.ledger_id != first.ledger_id


async def test_of_two_that_begin_a_log_at_once_the_first_record_counts_for_both() -> None:
    """Goal: nobody believes in another ledger than readers do. Method: both find it empty."""
    topic = MemoryTopic()
    found = await asyncio.gather(*(begin_log(MemoryLog(topic), [key]) for key in (ANNA, BEN)))
    assert found[0] == found[1] == await genesis_of(MemoryLog(topic))


async def test_a_log_without_genesis_is_refused_by_its_code() -> None:
    """Goal: nobody serves from a log that is no ledger. Method: an empty one, one that begins with a barrier, a genesis
    with one byte more; one whose first record is gone, and one that does not answer, are other errors."""
    maker = LogMaker()
    maker.barrier(1)
    genesis = encode_genesis(new_genesis([ANNA]))
    for values in ([], maker.values, [genesis + b"\0"], [*maker.values, genesis]):
        log = MemoryLog(MemoryTopic(values=values))
        with pytest.raises(LogWithoutGenesis) as caught:
            await genesis_of(log)
        assert (caught.value.code, caught.value.code.person) == (Code.LOG_WITHOUT_GENESIS, True)
    with pytest.raises(LogWithoutGenesis):
        await begin_log(log, [ANNA])
    topic = MemoryTopic(values=[genesis, *maker.values])
    topic.cut_off(1)
    with pytest.raises(LogTruncated):
        await genesis_of(MemoryLog(topic))
    log = MemoryLog(topic)
    log.reachable = False
    with pytest.raises(LogUnavailable):
        await genesis_of(log)


@pytest.mark.parametrize("begun", [False, True])
def test_a_replica_writes_nothing_to_a_log_without_genesis(begun: bool) -> None:
    """Goal: a log is never begun by who serves. Method: a replica that demands a genesis, on both logs; with one it
    leads, without one it ends with the code, and the log has no record."""
    values = [encode_genesis(new_genesis([ANNA]))] if begun else []

    async def story() -> None:
        async with World(topic=MemoryTopic(values=values)) as world:
            replica = await world.replica()
            if begun:
                await replica.until_active()
                assert officers_of(replica.index) == Officers(1, frozenset([ANNA]))
                return
            with pytest.raises(LogWithoutGenesis):
                await asyncio.wait_for(asyncio.shield(replica.participant.broken), 60)
            assert not replica.participant.standing().active
            assert world.shared.topic.end_offset == 0

    run_virtually(story())


async def test_a_follower_looks_again_while_the_log_is_away() -> None:
    """Goal: an outage at the start is waited for, a missing genesis is not. Method: an unreachable log comes back."""
    log = MemoryLog(MemoryTopic())
    log.reachable = False
    shared = Shared()
    follower = Follower(log, MemoryIndex(), LoopClock(), shared.core, lambda applied: None, require=genesis_of)
    task = asyncio.create_task(follower.run())
    await asyncio.sleep(0.05)
    assert not task.done()
    log.reachable = True
    with pytest.raises(LogWithoutGenesis):
        await asyncio.wait_for(task, 30)
    assert follower.position is None
