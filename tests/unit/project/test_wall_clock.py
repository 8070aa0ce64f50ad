"""Ages and pauses are counted by clocks that nobody sets: the wall clock is read where a moment is written or shown.

A file that reads it stands below, with what for. A clock that steps back by an hour must hold nothing up.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOMS = ("replica", "ha", "ledger_api", "haproxy")
WALL = re.compile(r"\btime\.time\b|\btime_ns\(|\bdatetime\.(now|utcnow|today)\b|\butcnow\(|\bst_mtime\b")
READERS = {
    "ha/clock.py": "the clock that everybody is given",
    "ledger_api/server/authentication.py": "a token's expiry is a moment",
    "ledger_api/server/feed.py": "a token's expiry is a moment",
    "ledger_api/server/main.py": "stamps of traces",
    "ledger_api/server/replies.py": "the Date header",
    "ledger_api/server/submission_session.py": "a token's expiry is a moment",
    "replica/cli/archive.py": "stamp of a manifest",
    "replica/cli/audit.py": "stamp of a report",
    "replica/cli/common.py": "the folder that was used last",
    "replica/cli/demo/pipeline.py": "a name that is new",
    "replica/cli/drill/archive.py": "stamps and names",
    "replica/cli/drill/under_load.py": "a name that is new",
    "replica/cli/index.py": "name of a folder",
    "replica/cli/index_jobs.py": "name of a folder",
    "replica/cli/keys.py": "a key's period",
    "replica/cli/log_copy.py": "shows how old the newest record is",
    "replica/acting/parties.py": "a key's period",
    "replica/acting/trailed.py": "stamps of the trail",
    "replica/cli/party.py": "a key's period",
    "replica/cli/report.py": "stamp of a report",
    "replica/cli/restore.py": "stamps of a manifest",
    "replica/cli/salvage.py": "stamp of a file",
    "replica/cli/steer.py": "a moment that a person named",
    "replica/doctor/look.py": "compares clocks",
    "replica/doctor/look_here.py": "certificates' and keys' periods",
    "replica/log/in_memory/server.py": "append time of records",
    "replica/log/raft/node.py": "append time of records; answers what time it is",
    "replica/operators/consent.py": "a moment that a person signed",
    "replica/store/sqlite/looking.py": "stamps of what operators say; a period shown",
    "replica/telemetry/counts.py": "shows how long a certificate is valid",
}


def test_whoever_reads_the_wall_clock_has_a_moment_to_write() -> None:
    """Goal: no age and no pause by a clock that may be set. Method: every file that reads it is listed."""
    found = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if WALL.search(path.read_text())
    }
    assert found == READERS.keys(), "count ages by time.monotonic, the event loop or Clock.boottime_s"
