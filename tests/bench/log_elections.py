"""Loads three log nodes for a time, and prints how often a leader was replaced: `python -m tests.bench.log_elections`.

The nodes have a service's timeouts. The logs are deleted after each round; at full load they take up to 8 GB a minute.
The first line has the conditions, the last one what happened in the whole time; a run that ends early prints that it
is no result. Exit code 1 if there was an election, or the run ended early.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path
from time import monotonic

import uvloop

from replica.log.raft.client import CallFailed
from replica.log.raft.settings import LogNodeSettings
from replica.notary.errors import LogUnavailable
from tests.bench.log_nodes import CALL_RECORDS, CALLS_OPEN, payloads
from tests.bench.report import number
from tests.lognode.real_nodes import GROUP, Nodes

SERVICE = ("message_timeout_ms", "election_timeout_ms", "segment_bytes", "entry_max_bytes")
RETRY_S = 0.1


async def run(folder: Path, minutes: float, *, idle: bool) -> int:
    """The number of views that were opened under the load. `idle`: the generator takes what processor time is left."""
    defaults = LogNodeSettings(group=GROUP, name="r1", listen="127.0.0.1:1", data_dir=folder)
    nodes = Nodes(folder, 3, **{name: getattr(defaults, name) for name in SERVICE})
    try:
        await nodes.start_group()
        print(_conditions(defaults, idle=idle), flush=True)
        if idle:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        view, committed, began_s = await _view(nodes), 0, monotonic()
        records, until_s = payloads(), began_s + 60 * minutes

        async def call_on() -> None:
            nonlocal committed
            client = await nodes.client(await nodes.leader())
            while monotonic() < until_s:
                try:
                    await client.append([next(records) for _ in range(CALL_RECORDS)])
                    committed += CALL_RECORDS
                except (LogUnavailable, CallFailed) as error:
                    print(f"after {monotonic() - began_s:.0f} s: {error}", flush=True)
                    await client.close()
                    await asyncio.sleep(RETRY_S)
                    client = await nodes.client(await nodes.leader())
            await client.close()

        await asyncio.gather(*(call_on() for _ in range(CALLS_OPEN)))
        elections, took_s = await _view(nodes) - view, monotonic() - began_s
    finally:
        nodes.stop_all()
        for name in nodes.names:
            for line in nodes.lines(name, "log_leadership"):
                print(f"  {name}: {line}", flush=True)
    rate = f"{number(committed)} records committed, {number(committed / took_s)} a second"
    ended = f"load average {_load()} at the end: {elections} elections"
    print(f"{took_s / 60:.1f} of {minutes:g} min, {rate}, {ended}", flush=True)
    return elections


def _conditions(settings: LogNodeSettings, *, idle: bool) -> str:
    timeouts = f"messages every {settings.message_timeout_ms} ms, election timeout {settings.election_timeout_ms} ms"
    generator = "at idle priority" if idle else "at the nodes' priority"
    return (
        f"3 nodes, {timeouts}; {CALLS_OPEN} calls of {CALL_RECORDS} records open, their generator {generator};"
        f" {os.cpu_count()} cores, load average {_load()} before"
    )


def _load() -> str:
    """Of the last 1, 5 and 15 minutes, the run's own included."""
    return ", ".join(f"{load:.0f}" for load in os.getloadavg())


async def _view(nodes: Nodes) -> int:
    states = await nodes.until(lambda states: len(states) == len(nodes.names))
    return max(int(state["current_view"]) for state in states.values())


def main() -> int:
    """Run; see above."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.log_elections", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--rounds", type=int, default=1, help="so often, on new logs: a disk takes no hour at full load"
    )
    parser.add_argument("--idle", action="store_true", help="the generator runs at idle priority, the nodes do not")
    arguments = parser.parse_args()
    elections = 0
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            try:
                elections += uvloop.run(run(Path(folder), arguments.minutes, idle=arguments.idle))
            except (Exception, KeyboardInterrupt) as error:
                print(f"ended early, so this is no result: {type(error).__name__}: {error}", flush=True)
                return 1
    return int(elections > 0)


if __name__ == "__main__":
    sys.exit(main())
