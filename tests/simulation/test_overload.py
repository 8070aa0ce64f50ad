"""Three times the log's capacity, for a minute, open loop: bounded, fair, nothing lost, and within the estimates."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from math import ceil

import msgspec

from replica.log.memory import Delivery, MemoryTopic
from replica.notary.answers import Answer, Notarised, NotNow
from replica.notary.codes import Code
from replica.settings import CoreSettings
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import Replica, World, state, submission

CAPACITY_PER_S = 50
MINUTE_S = 60
TICK_S = 0.01
USERS = {"heavy": 135, "light": 15}  # submissions a second: three times the capacity together
SETTINGS = CoreSettings(in_flight_max=300, pipeline_max=25, user_queue_max=200, admit_batch_max=10, interim_from_s=1e-6)


class SlowDelivery(Delivery):
    """Lets a fixed number of records a second into the topic, in order."""

    def __init__(self) -> None:
        self.free_at_s = 0.0

    def send(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.free_at_s = max(self.free_at_s, loop.time()) + 1 / CAPACITY_PER_S
        loop.call_at(self.free_at_s, topic.store, value)


class Asked(msgspec.Struct):
    """One submission of the open loop and its outcome. Seconds on the virtual clock."""

    user: str
    at_s: float
    told_s: float = 0.0
    answered_s: float = 0.0
    answer: Answer | None = None


async def ask(replica: Replica, number: int, asked: Asked) -> None:
    def tell(wait_s: float) -> None:
        asked.told_s = wait_s

    one = submission(number, [state(number, index) for index in range(4)], user_id=asked.user)
    (asked.answer,) = await replica.link.submit([one], on_wait=tell)
    asked.answered_s = asyncio.get_running_loop().time()


async def overload(replica: Replica) -> tuple[list[Asked], int]:
    """Run for a minute, and await all answers; returns the submissions, and the most that were in flight at once."""
    loop, everything, most = asyncio.get_running_loop(), list[Asked](), 0
    began_s, due = loop.time(), dict.fromkeys(USERS, 0.0)
    async with asyncio.TaskGroup() as group:
        while loop.time() < began_s + MINUTE_S:
            for user, per_s in USERS.items():
                due[user] += per_s * TICK_S
                while due[user] >= 1:
                    due[user] -= 1
                    everything.append(Asked(user, loop.time()))
                    group.create_task(ask(replica, len(everything), everything[-1]))
            await asyncio.sleep(TICK_S)
            most = max(most, replica.participant.in_flight)
    return everything, most


def test_three_times_the_capacity_for_a_minute() -> None:
    """Goal: overload costs neither throughput nor answers nor memory nor fairness. Method: a slowed log."""

    async def story() -> None:
        async with World(core=SETTINGS) as world:
            replica = Replica(world.shared, "R1", delivery=SlowDelivery)
            replica.start()
            world.push_async_callback(replica.stop)
            await replica.until_active()
            everything, most = await overload(replica)
            check(everything, most)
            await asyncio.sleep(1)
            done = Counter(completion.tx_id for _, completion in world.shared.database.completions)
            assert len(done) == sum(isinstance(asked.answer, Notarised) for asked in everything)
            assert set(done.values()) == {1}
            assert (replica.participant.in_flight, replica.participant.states_in_flight) == (0, 0)
            began_s = asyncio.get_running_loop().time()
            (answer,) = await replica.submit(submission(10**6, [state(10**6)]))
            assert isinstance(answer, Notarised)
            assert asyncio.get_running_loop().time() - began_s < 0.1

    run_virtually(story())


def check(everything: list[Asked], most: int) -> None:
    """What the API promises about the time under load."""
    admitted = [asked for asked in everything if isinstance(asked.answer, Notarised)]
    refused = [asked.answer for asked in everything if isinstance(asked.answer, NotNow)]
    assert len(admitted) + len(refused) == len(everything) >= 0.99 * MINUTE_S * sum(USERS.values())
    assert {answer.code for answer in refused} == {Code.USER_OVERLOADED.name}
    assert all(answer.retry_after_s > 0 for answer in refused)
    assert most <= SETTINGS.in_flight_max
    began_s = everything[0].at_s
    rates = Counter(int((asked.answered_s - began_s) // 10) for asked in admitted)
    assert all(rates[period] >= 0.9 * 10 * CAPACITY_PER_S for period in range(MINUTE_S // 10))
    told = [asked for asked in admitted if asked.at_s > began_s + 2]  # by then there are batches to estimate from
    kept = sorted((asked.answered_s - asked.at_s) / asked.told_s for asked in told)
    assert kept[ceil(0.99 * len(kept)) - 1] <= 1
    light = [asked for asked in everything if asked.user == "light"]
    assert all(isinstance(asked.answer, Notarised) for asked in light)
    assert max(asked.answered_s - asked.at_s for asked in light) < 2
