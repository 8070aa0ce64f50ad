"""Simulated processes: a stopped process runs no task, and a killed one never runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.process import Process, current_process, make_task
from tests.simulation.virtual import Deadlock, run_virtually


def _simulate(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(make_task)
        await work()

    run_virtually(main())


async def _tick(seen: list[float]) -> None:
    try:
        while True:
            await asyncio.sleep(1.0)
            seen.append(asyncio.get_running_loop().time())
    finally:
        seen.append(-1.0)


def test_a_stopped_process_takes_no_step_until_it_goes_on() -> None:
    """Goal: SIGSTOP and SIGCONT for all tasks, also of tasks' tasks. Method: stop a ticking one for five seconds."""

    async def story() -> None:
        process, seen = Process("p"), list[float]()

        async def main() -> None:
            assert current_process() is process
            await asyncio.create_task(_tick(seen))

        process.start(main())
        await asyncio.sleep(2.5)
        process.stop()
        await asyncio.sleep(5.0)
        assert seen == [1.0, 2.0]
        process.go_on()
        await asyncio.sleep(0.0)
        await asyncio.sleep(1.2)
        assert seen == [1.0, 2.0, 7.5, 8.5]

    _simulate(story)


def test_a_killed_process_does_not_even_clean_up() -> None:
    """Goal: SIGKILL runs no `finally`. Method: kill a task that would note its end."""

    async def story() -> None:
        process, seen = Process("p"), list[float]()
        task = process.start(_tick(seen))
        await asyncio.sleep(1.5)
        process.kill()
        await asyncio.sleep(5.0)
        assert task.cancelled()
        assert seen == [1.0]
        process.bury()

    _simulate(story)


def test_a_cancellation_reaches_a_stopped_task_when_it_goes_on() -> None:
    """Goal: a deadline that passes meanwhile is noticed afterwards. Method: time out while stopped."""

    async def story() -> None:
        process, ended_s = Process("p"), list[float]()

        async def main() -> None:
            try:
                async with asyncio.timeout(2.0):
                    await asyncio.sleep(60.0)
            except TimeoutError:
                ended_s.append(asyncio.get_running_loop().time())

        process.start(main())
        await asyncio.sleep(1.0)
        process.stop()
        await asyncio.sleep(4.0)
        assert not ended_s
        process.go_on()
        await asyncio.sleep(0.1)
        assert ended_s == [5.0]

    _simulate(story)


def test_what_comes_in_waits_for_a_stopped_process_and_is_lost_with_a_killed_one() -> None:
    """Goal: sockets' buffers. Method: deliver while it runs, is stopped, goes on, is dead."""

    async def story() -> None:
        process, came = Process("p"), list[str]()
        process.deliver(lambda: came.append("now"))
        process.stop()
        process.deliver(lambda: came.append("later"))
        assert came == ["now"]
        process.go_on()
        assert came == ["now", "later"]
        process.kill()
        process.deliver(lambda: came.append("never"))
        assert came == ["now", "later"]

    _simulate(story)


def test_a_loop_in_which_everything_waits_says_so() -> None:
    """Goal: a deadlock must not hang a test. Method: wait for an event that is never set."""

    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        _simulate(wait)
