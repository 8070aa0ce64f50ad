"""One process of PySyncObj with its journal on; run by `log_rival.py`. Settings, as JSON: own, others, journal, leads.

The one that is asked to lead appends records of its own for as long as asked, so that no client is in the way.
"""

from __future__ import annotations

import json
import sys
import time
from threading import Event
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated  # type: ignore[import-not-found,import-untyped,unused-ignore]

from tests.bench.log_nodes import payloads

LEADER_MAX_S = 30.0
IN_FLIGHT_MAX = 8_000  # about as many as our client has open
PAUSE_S = 0.0005


class Counter(SyncObj):  # type: ignore[misc,unused-ignore]
    """The least state machine: it counts what was committed."""

    def __init__(self, own: str, others: list[str], journal: str) -> None:
        super().__init__(own, others, SyncObjConf(journalFile=journal, fullDumpFile=None))
        self.records = 0

    @replicated  # type: ignore[misc,untyped-decorator,unused-ignore]
    def add(self, body: bytes) -> None:
        """Once committed, on each node."""
        self.records += 1


def main() -> None:
    """Join, then obey lines on standard input: a number of seconds to append for; the end of input ends it."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    node, bodies = Counter(settings["own"], settings["others"], settings["journal"]), payloads()
    until_s = time.monotonic() + LEADER_MAX_S
    while node._getLeader() is None and time.monotonic() < until_s:
        time.sleep(0.01)
    leads = node._isLeader()
    print(json.dumps({"leads": leads}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_append_for(node, bodies, float(line))), flush=True)


def _append_for(node: Counter, bodies: Any, seconds: float) -> dict[str, float]:
    sent = committed = failed = 0
    drained = Event()

    def done(_: object, error: int) -> None:
        nonlocal committed, failed
        committed += error == 0
        failed += error != 0
        if committed + failed == sent:
            drained.set()

    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds:
        if sent - committed - failed >= IN_FLIGHT_MAX:
            time.sleep(PAUSE_S)
            continue
        drained.clear()
        sent += 1
        node.add(next(bodies), callback=done)
    drained.wait(LEADER_MAX_S)
    return {"committed": committed, "failed": failed, "took_s": time.monotonic() - began_s}


if __name__ == "__main__":
    main()
