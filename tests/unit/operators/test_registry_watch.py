"""Under rules 3 each replica looks whether the registry file, which nobody reads, says otherwise than the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from ledger_api.server.registry import periods_in
from replica.index.memory import MemoryIndex
from replica.index.newest import noted
from replica.notary.counted import CountedNote
from replica.notary.parties import Pair, PeriodUs, differences
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.requests import TIME_MAX_US
from replica.operators import registry_watch
from replica.operators.metrics import RegistryMetrics
from replica.operators.registry_watch import RegistryWatch
from tests.worlds.notary_logs import PARTY, TOPIC, LogMaker
from tests.worlds.party_logs import OFFICER_KEYS

KEY, OTHER = b"\xab" * 32, b"\xcd" * 32
NOW_US = 1_000_000
ALWAYS: PeriodUs = (0, TIME_MAX_US)
ENTRY: Pair = (PARTY, KEY)


@pytest.mark.parametrize(
    ("file", "in_log", "missing", "other"),
    [
        ({}, {ENTRY: ALWAYS}, 0, 0),  # registered since: the file is not the place for it
        ({ENTRY: ALWAYS}, {ENTRY: ALWAYS}, 0, 0),
        ({ENTRY: ALWAYS}, {}, 1, 0),
        ({ENTRY: ALWAYS}, {(PARTY, OTHER): ALWAYS}, 1, 0),
        ({ENTRY: ALWAYS}, {("O=Other", KEY): ALWAYS}, 1, 0),
        ({ENTRY: (5, TIME_MAX_US)}, {ENTRY: (NOW_US, TIME_MAX_US)}, 0, 0),  # both began before
        ({ENTRY: (NOW_US + 1, TIME_MAX_US)}, {ENTRY: ALWAYS}, 0, 1),
        ({ENTRY: ALWAYS}, {ENTRY: (0, NOW_US + 9)}, 0, 1),
        ({ENTRY: ALWAYS}, {ENTRY: (7, 7)}, 0, 1),  # revoked
    ],
)
def test_what_differs(file: dict[Pair, PeriodUs], in_log: dict[Pair, PeriodUs], missing: int, other: int) -> None:
    """Goal: a key that the file admits and the log does not is found, and a newer registration is no alarm. Method: one
    pair in each relation."""
    found = differences(file, in_log, NOW_US)
    assert (len(found.missing), len(found.other)) == (missing, other)


def registered() -> MemoryIndex:
    """An index in which KEY is registered for ever, and OTHER was and is revoked."""
    maker, index = LogMaker(format=2), MemoryIndex()
    maker.genesis(*OFFICER_KEYS[:1])
    maker.barrier(1, rules=3)
    for key, period_us in ((KEY, ALWAYS), (OTHER, ALWAYS), (OTHER, (9, 9))):
        maker.register(PARTY, key=key, by=OFFICER_KEYS[0], period_us=period_us)
    reading = read_records(begin(TOPIC), maker.log)
    notes = [note for note in reading.counted if isinstance(note, CountedNote)]
    index.write(noted(index, notes, 0), reading.position)
    return index


async def test_a_replica_compares_its_file_where_the_log_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an edit of the file that has no effect does not pass unnoticed. Method: files that agree, admit a key that
    the log revoked, and one that it never had; more than is looked up at once; a broken file; rules 2."""
    monkeypatch.setattr(registry_watch, "TOGETHER", 1)
    file, rules = tmp_path / "parties.toml", 3
    watch = RegistryWatch(lambda: periods_in(file), registered(), lambda: rules, lambda: NOW_US)

    async def look(text: str) -> tuple[int | None, list[dict[str, object]]]:
        file.write_text(text)
        with capture_logs() as lines:
            await watch.look()
        return watch.differing, [dict(line) for line in lines]

    def keys(*wanted: bytes) -> str:
        return f'[parties]\n"{PARTY}" = [{", ".join(f"{key.hex()!r}" for key in wanted)}]\n'

    assert await look("[parties]\n") == (0, [])
    assert await look(keys(KEY)) == (0, [])
    differing, (line,) = await look(keys(KEY, OTHER, b"\xef" * 32))
    assert (differing, line["event"], line["missing"], line["other"]) == (2, "registry_differs", 1, 1)
    assert (line["party"], line["key"]) == (PARTY, "ef" * 32)
    assert await look(keys(KEY, OTHER, b"\xef" * 32)) == (2, [])  # said once
    assert await look("no registry") == (None, [])
    rules = 2
    assert await look(keys(OTHER)) == (None, [])


@pytest.mark.parametrize("differing", [None, 0, 3])
def test_the_metric_is_there_where_the_log_decides(differing: int | None) -> None:
    """Goal: the alert has its series under rules 3, and none before. Method: the collector, rendered."""
    registry = CollectorRegistry()
    registry.register(RegistryMetrics(lambda: differing))
    found = {
        one.name: one.samples[0].value for one in text_string_to_metric_families(generate_latest(registry).decode())
    }
    assert found == ({} if differing is None else {"notary_registry_differs": float(differing)})
