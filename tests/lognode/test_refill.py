"""An archive restored to new log nodes: real nodes, in this process."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pipeline.archive.manifest import Manifest
from pipeline.archive.restore import archived_records, plan_restore, run_restore
from pipeline.archive.restore_plan import RestorePlan, Until
from pipeline.log_copy import LogCopier
from replica.log.admin import StoredRecord
from replica.log.in_memory.server import MemoryLogServer, TimedTopic
from replica.log.in_memory.settings import MemoryLogSettings
from replica.log.open import refill_log
from replica.log.raft import refill
from replica.log.settings import LogSettings
from replica.notary.errors import LogCopyRefused, RestoreRefused
from tests.lognode.nodes_here import NodesHere
from tests.unit.log.test_contract import read_all
from tests.worlds.archive_world import SIGNER, make_archive, some_log

VALUES = some_log(35)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[NodesHere]:
    """Three nodes with a log that has no records."""
    found = NodesHere(tmp_path / "nodes")
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """An archive of another log."""
    return make_archive(tmp_path / "archive", VALUES)[0]


async def planned(manifest: Manifest, nodes: NodesHere, *, resume: bool = False) -> RestorePlan:
    """What a restore would do."""
    return await asyncio.to_thread(
        plan_restore, manifest, SIGNER.public_key, nodes.log_settings(), Until(), resume=resume
    )


async def restored(manifest: Manifest, plan: RestorePlan, nodes: NodesHere) -> list[bytes]:
    """The records of the nodes, once a restore has compared each with the archive's."""
    settings = nodes.log_settings()
    evidence = await asyncio.to_thread(run_restore, manifest, plan, settings, lambda: 1, lambda count: None)
    assert evidence.archived_root == evidence.restored_root
    log = nodes.log()
    try:
        assert evidence.topic_id == await log.check()
        reader = await log.open_reader(0)
        return [value for _, value in await read_all(reader, len(VALUES))]
    finally:
        await log.close()


async def test_new_log_nodes_get_what_the_archive_has(
    manifest: Manifest, nodes: NodesHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the same records at the same offsets. Method: restore in small batches; a second restore finds them."""
    monkeypatch.setattr(refill, "BATCH_RECORDS", 8)
    plan = await planned(manifest, nodes)
    assert plan.refused == []
    assert await restored(manifest, plan, nodes) == VALUES
    assert [check.name for check in (await planned(manifest, nodes)).refused] == ["target"]
    again = await planned(manifest, nodes, resume=True)
    assert (again.refused, again.first) == ([], len(VALUES))


async def test_a_restore_that_was_killed_goes_on(manifest: Manifest, nodes: NodesHere) -> None:
    """Goal: no record twice. Method: nodes that have the first twelve records; they are compared first."""
    await nodes.put(*VALUES[:12])
    plan = await planned(manifest, nodes, resume=True)
    assert (plan.refused, plan.first) == ([], 12)
    assert await restored(manifest, plan, nodes) == VALUES


async def test_a_log_with_other_records_is_refused(manifest: Manifest, nodes: NodesHere) -> None:
    """Goal: nothing is appended to another log. Method: a record that is not the archive's."""
    await nodes.put(*VALUES[:3], b"other")
    assert [check.name for check in (await planned(manifest, nodes, resume=True)).refused] == ["target"]


async def test_somebody_else_who_appends_is_noticed(
    manifest: Manifest, nodes: NodesHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no record at another offset than its own goes unseen. Method: a stranger appends between two batches, and
    after the last one."""
    monkeypatch.setattr(refill, "BATCH_RECORDS", 5)
    loop = asyncio.get_running_loop()

    def records(stranger_at: int) -> Iterator[StoredRecord]:
        for record in archived_records(manifest, 0, 9):
            if record.offset == stranger_at:
                asyncio.run_coroutine_threadsafe(nodes.put(b"stranger"), loop).result()
            yield record

    def fill() -> None:
        refill_log(nodes.log_settings(), records(7), 0, 10, lambda count: None)

    with pytest.raises(RestoreRefused, match="somebody else"):
        await asyncio.to_thread(fill)


@pytest.mark.parametrize(
    "odd",
    [StoredRecord(0, 1, b"key", b"v"), StoredRecord(0, 1, None, None), StoredRecord(0, 1, None, b"v", (("h", b""),))],
)
async def test_what_log_nodes_do_not_keep_is_refused(odd: StoredRecord, nodes: NodesHere) -> None:
    """Goal: nothing is dropped in silence. Method: a key, no value, headers."""
    with pytest.raises(RestoreRefused, match="do not keep"):
        await asyncio.to_thread(refill_log, nodes.log_settings(), [odd], 0, 1, lambda count: None)


async def test_a_log_is_copied_to_log_nodes(nodes: NodesHere) -> None:
    """Goal: a second site may keep its log on nodes. Method: copy a log that grows; another's record."""
    topic = TimedTopic("memory:1")
    server = MemoryLogServer(topic)
    with tempfile.TemporaryDirectory(prefix="log-") as folder:  # a short path: a socket's has 107 bytes at most
        source = MemoryLogSettings(socket_path=Path(folder) / "log.sock")
        await server.start(source.socket_path)
        for part in (VALUES[:20], VALUES[20:]):
            for value in part:
                topic.store(value)
            assert await asyncio.to_thread(copy, source, nodes.log_settings()) == len(part)
        await nodes.put(b"another's")
        with pytest.raises(LogCopyRefused):
            await asyncio.to_thread(copy, source, nodes.log_settings())
        await server.stop()
    log = nodes.log()
    try:
        reader = await log.open_reader(0)
        assert [value for _, value in await read_all(reader, len(VALUES) + 1)] == [*VALUES, b"another's"]
    finally:
        await log.close()


def copy(source: MemoryLogSettings, target: LogSettings) -> int:
    """How many records a new copier copies."""
    copier = LogCopier(source, target, lambda _: None)
    copier.open()
    return copier.copy(lambda end: None, goes_on=False)
