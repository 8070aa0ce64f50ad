"""Disks that fill up, corrupt data or lose writes: a replica stops, repairs itself, and never answers "unspent".

An index is a cache of the log, so damage to one costs time but no answer.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns

import pytest

from replica.index.rocks import read_index
from replica.local.cluster import LocalCluster
from replica.local.replica import ReplicaProcess
from tests.ends import ends_by_design
from tests.faults.load import client_load
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.tools import Words, assert_same_indexes, forget_quarantined, hand_over_to, index_of
from tests.faults.under_load import under_load
from tests.faults.witness import only_witness, witness
from tests.small_disk import fill, room_for, small_disk

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

BLOCK_BYTES = 4_096
WITHOUT_SCRUB = {"NOTARY_CORE__SCRUB_RECORDS_PER_S": "0"}


def flip(path: Path, at_byte: int) -> None:
    """Change one bit, in place."""
    with path.open("r+b") as file:
        file.seek(at_byte)
        (byte,) = file.read(1)
        file.seek(at_byte)
        file.write(bytes([byte ^ 0x10]))


def tables(index: Path) -> list[Path]:
    """The index's table files, oldest first."""
    found = sorted(index.glob("*.sst"))
    assert found, "no table was written yet"
    return found


def newest(index: Path, pattern: str) -> Path:
    """The newest of an index's files of one kind."""
    return max(index.glob(pattern))


def flip_data(index: Path) -> None:
    """Flip one bit in each block of states of each table, but not in the first and last, which a start reads."""
    for table in tables(index):
        for at_byte in range(BLOCK_BYTES * 3 // 2, table.stat().st_size // 2, BLOCK_BYTES):
            flip(table, at_byte)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "table cut short": lambda index: os.truncate(tables(index)[-1], tables(index)[-1].stat().st_size // 2),
    "table missing": lambda index: tables(index)[0].unlink(),
    "manifest flipped": lambda index: flip(
        newest(index, "MANIFEST-*"), newest(index, "MANIFEST-*").stat().st_size // 2
    ),
    "CURRENT missing": lambda index: (index / "CURRENT").unlink(),
}


@pytest.mark.thorough
@pytest.mark.scenario("F16", "bits flipped in the tables under the active", outage_goal_s=2.0)
async def test_an_active_whose_tables_rot_is_replaced_and_repairs_itself(
    cluster: LocalCluster, scenario: Scenario
) -> None:
    """Goal: a bad block is never "unspent". Method: flip a bit in every block, lead with it, spend old states again."""
    async with only_witness(cluster, scenario) as spender:
        await spender.spend(200)
        rotting = (await cluster.passives())[0]
        await restarted(cluster, rotting, lambda index: None, **WITHOUT_SCRUB)  # a start moves all into tables
        await restarted(cluster, rotting, flip_data, **WITHOUT_SCRUB)
        await hand_over_to(cluster, rotting)  # nothing was read yet: checksums are verified block by block
        load = client_load(cluster, "load-on-rot")
        load.start()
        try:
            words, fault_ns = Words(rotting), monotonic_ns()
            with ends_by_design(rotting):  # a start moves a bad index aside
                tried = await spender.spend_again()
                await words.come("index_quarantined")
                scenario.fired(f"{rotting.name} read a bad block; {tried} second spends refused")
                await cluster.wait_for_active(other_than=rotting.name)
                await wait_for_return(cluster)
        finally:
            await load.stop()
        scenario.add_history(load.history)
        scenario.outage(load, fault_ns)
    await restarted(cluster, rotting, lambda index: None)
    forget_quarantined(cluster)
    await assert_same_indexes(cluster)


@pytest.mark.slow
@pytest.mark.scenario("F16", "bits flipped in tables that nobody reads")
async def test_the_scrub_finds_what_rots_unread(cluster: LocalCluster, scenario: Scenario) -> None:
    """Goal: damage is found before it is needed. Method: flip bits under a passive that is asked nothing; wait."""
    async with only_witness(cluster, scenario) as spender:
        await spender.spend(200)
        rotting = (await cluster.passives())[0]
        await restarted(cluster, rotting, lambda index: None, **WITHOUT_SCRUB)
        words = Words(rotting)
        with ends_by_design(rotting):
            await restarted(cluster, rotting, flip_data)
            await words.come("index_quarantined")
            scenario.fired(f"{rotting.name} met a bad block that nobody had asked for")
            await wait_for_return(cluster)
        await hand_over_to(cluster, rotting)
        await spender.spend_again()
    forget_quarantined(cluster)
    await assert_same_indexes(cluster)


async def restarted(
    cluster: LocalCluster, replica: ReplicaProcess, change: Callable[[Path], object], **env: str
) -> None:
    """Stop a replica, change its index, and start it with these variables; returns once all replicas are well."""
    await replica.stop()
    change(index_of(cluster, replica))
    replica.install(Path(sys.executable), cluster.config_path, env)
    replica.start()
    await wait_for_return(cluster)


@pytest.mark.slow
@pytest.mark.scenario("F16", "files of a passive's index are cut, lost or flipped")
@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_index_is_made_anew(cluster: LocalCluster, scenario: Scenario, damage: str) -> None:
    """Goal: a damaged cache needs no operator. Method: damage a stopped passive, start it: rebuilt, equal."""
    async with under_load(cluster, scenario), witness(cluster, scenario) as spender:
        await spender.spend(200)
        hurt = (await cluster.passives())[0]
        await restarted(cluster, hurt, lambda index: None)
        await hurt.stop()
        DAMAGE[damage](index_of(cluster, hurt))
        words = Words(hurt)
        hurt.start()
        await words.come("index_quarantined")
        scenario.fired(f"{damage} at {hurt.name}")
        await wait_for_return(cluster)
        await hand_over_to(cluster, hurt)
        await spender.spend_again()
    forget_quarantined(cluster)
    await assert_same_indexes(cluster)


@pytest.mark.thorough
@pytest.mark.scenario("F17", "the write-ahead log of a killed replica is flipped, or loses its end")
@pytest.mark.parametrize("damage", [pytest.param("flipped", marks=pytest.mark.slow), "end lost"])
async def test_a_log_tail_that_is_lost_is_read_again(cluster: LocalCluster, scenario: Scenario, damage: str) -> None:
    """Goal: data and position rewind together. Method: SIGKILL, damage, see an older position; it serves, rightly."""
    async with under_load(cluster, scenario), witness(cluster, scenario) as spender:
        killed = (await cluster.passives())[0]
        await spender.spend(300)
        killed.kill_group()
        await killed.stop()
        index = index_of(cluster, killed)
        before = offset_of(index)
        log = newest(index, "*.log")
        if damage == "flipped":
            flip(log, written_bytes(log) // 2)
        else:
            os.truncate(log, written_bytes(log) // 2)
        after = offset_of(index)
        assert after < before
        scenario.fired(f"{killed.name} rewound from offset {before} to {after}")
        words = Words(killed)
        killed.start()
        await wait_for_return(cluster)
        assert "index_quarantined" not in words.text()
        await hand_over_to(cluster, killed)
        await spender.spend_again()
    await assert_same_indexes(cluster)


def offset_of(index: Path) -> int:
    """Where a stopped index is, without changing it."""
    with read_index(index) as stored:
        return -1 if stored.position is None else stored.position.offset


def written_bytes(log: Path) -> int:
    """Length of a write-ahead log without the zeros that were reserved after its end."""
    return len(log.read_bytes().rstrip(b"\0"))


@pytest.mark.thorough
@pytest.mark.scenario("F14", "the disk under the active's index is full", outage_goal_s=2.0)
@pytest.mark.parametrize("volume_of", ["index", pytest.param("index and logs", marks=pytest.mark.slow)])
async def test_an_active_on_a_full_disk_steps_down_and_says_nothing_stale(
    cluster: LocalCluster, scenario: Scenario, volume_of: str
) -> None:
    """Goal: no answer from an index that cannot follow. Method: the active on a small file system, filled."""
    await wait_for_return(cluster)
    full = (await cluster.passives())[0]
    await full.stop()
    folder = index_of(cluster, full)
    size_mib = room_for(folder)
    with small_disk(folder if volume_of == "index" else folder.parent, size_mib) as volume:
        full.start()
        async with under_load(cluster, scenario) as load, witness(cluster, scenario) as spender:
            await spender.spend(100)
            await hand_over_to(cluster, full)
            words, fault_ns, pid = Words(full), monotonic_ns(), full.pid
            with ends_by_design(full):  # and again as long as there is no room
                fill(volume / "filler")
                while full.running and full.pid == pid:  # the write-ahead log has some room of its own
                    await spender.spend(10, inputs=2_000)
                scenario.fired(f"{full.name} ended, {shutil.disk_usage(volume).free} bytes were free")
                assert volume_of != "index" or "No space left on device" in words.text()
                successor = await cluster.wait_for_active(other_than=full.name)
                await spender.spend_again()
                health = (await cluster.healths())[full.name]
                assert health is None or not health.active
                assert await cluster.active() is successor
                (volume / "filler").unlink()
                await wait_for_return(cluster)
            assert "index_quarantined" not in words.text()  # a full disk is no damage
            scenario.outage(load, fault_ns)
        await assert_same_indexes(cluster)
        await full.stop()
    full.start()
    await wait_for_return(cluster)
