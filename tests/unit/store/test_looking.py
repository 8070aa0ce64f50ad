"""What tools read from the embedded ledgers of a machine: of a replica that runs, and of one that does not."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from replica.database import EmbeddedLedgers
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, StoreMismatch, StoreUnavailable
from replica.notary.position import BEGIN, encode_position
from replica.store.interface import Completion
from replica.store.open import export_range, published_state
from replica.store.sqlite.file import Begun, LedgerFile
from replica.store.sqlite.tables import FILE
from tests.contracts.store_contract import TOPIC, at, command, completion

BEGAN_US = 1_700_000_000_000_000
S = 1_000_000


def moment(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1e6, UTC)


def completions(first: int, last: int) -> list[Completion]:
    return [completion(command(n), n, recorded_us=BEGAN_US + n * S) for n in range(first, last + 1)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three replicas: one that was never started, one that lags, and one with everything."""
    paths = [tmp_path / name / FILE for name in ("r1", "r2", "r3")]
    for path, last in ((paths[1], 4), (paths[2], 9)):
        path.parent.mkdir()
        file = LedgerFile(path, TOPIC)
        file.append(list(enumerate(completions(1, last), 1)), [Begun(1, "r1", 0, 0)], at(last, last))
        file.close()
    return paths


@pytest.mark.parametrize("runs", [False, True])
async def test_the_one_that_covers_most_of_the_log_is_read(files: list[Path], runs: bool) -> None:
    """Goal: status and export are those of the newest ledger here. Method: three folders; with and without a writer."""
    writer = LedgerFile(files[2], TOPIC) if runs else None
    found = EmbeddedLedgers(files)
    status = await found.status()
    assert (status.topic_id, status.epoch, status.replica) == (TOPIC, 1, "r1")
    assert (status.published_offset, status.ledger_end) == (9, 9)
    with found.export() as export:
        assert (export.topic_id, export.published_offset, export.ledger_end, export.pruned_to) == (TOPIC, 9, 9, 0)
        assert list(export.rows) == list(enumerate(completions(1, 9), 1))
    if writer is not None:
        assert writer.prune(4, BEGAN_US + 8 * S).pruned_to == 4
        with found.export() as export:
            assert [number for number, _ in export.rows] == [5, 6, 7, 8, 9]
            assert export.pruned_to == 4
        writer.close()


async def test_history_is_what_the_log_has(files: list[Path]) -> None:
    """Goal: who led, from when, and why it ended, as far as the log says. Method: a first activation before any stamp,
    one that was killed, one that gave the lease up, one that goes on."""
    file = LedgerFile(files[2], TOPIC)
    begun = [Begun(2, "r2", 10, BEGAN_US + 20 * S), Begun(3, "", 11, BEGAN_US + 30 * S)]
    file.append([], [*begun, Begun(4, "r3", 12, BEGAN_US + 30 * S)], at(12, 9))
    file.close()
    async with EmbeddedLedgers(files).board("test") as board:
        newest, released, killed = await board.history(10)
        assert await board.history(1) == [newest]
        assert await board.paused() is None
        with pytest.raises(ConfigError) as refused:
            await board.pause("to look")
        assert refused.value.code is Code.NOT_POSSIBLE_NOW
    assert (newest.epoch, newest.replica, newest.granted_at) == (4, "r3", moment(BEGAN_US + 30 * S))
    assert (newest.ended_at, newest.found_over_at, newest.succeeded_at) == (None, None, None)
    assert (released.epoch, released.replica, released.ended_at) == (2, "r2", moment(BEGAN_US + 30 * S))
    assert (released.end_reason, released.found_over_by) == ("released the lease", None)
    assert (killed.epoch, killed.granted_at) == (1, moment(BEGAN_US + S))  # no stamp before it: its first completion's
    assert (killed.ended_at, killed.found_over_by) == (None, "r2")
    assert killed.found_over_at == moment(BEGAN_US + 20 * S)
    assert (await EmbeddedLedgers(files).status()).epoch == 4


async def test_a_machine_without_a_ledger_and_a_damaged_one_are_named(files: list[Path], tmp_path: Path) -> None:
    """Goal: no guess, and a damaged ledger hides no other. Method: no file, an empty ledger, and one that is no
    database, with others and alone."""
    nothing = EmbeddedLedgers([tmp_path / "r9" / FILE])
    with pytest.raises(StoreMismatch):
        await nothing.status()
    async with nothing.board("test") as board:
        assert await board.history(10) == []
    new = tmp_path / "new" / FILE
    new.parent.mkdir()
    LedgerFile(new, TOPIC).close()
    status = await EmbeddedLedgers([new]).status()
    assert (status.published_offset, status.ledger_end, status.epoch, status.replica) == (BEGIN, 0, 0, None)
    with EmbeddedLedgers([new]).export() as export:
        assert list(export.rows) == []
    files[1].write_bytes(b"no database at all" * 100)
    assert (await EmbeddedLedgers(files).status()).ledger_end == 9
    with pytest.raises(StoreUnavailable):
        await EmbeddedLedgers(files[:2]).status()


def test_tools_read_one_ledger_by_its_address(files: list[Path]) -> None:
    """Goal: an audit compares each ledger of a machine. Method: the addresses, and a range of one, pruned and not."""
    addresses = EmbeddedLedgers(files, names=["r1", "r2", "r3"]).addresses()
    assert list(addresses) == ["the ledger of r2", "the ledger of r3"]  # r1 was never started
    address = addresses["the ledger of r3"]
    state = published_state(address)
    assert (state.topic_id, state.ledger_end, state.pruned_to) == (TOPIC, 9, 0)
    assert state.position == encode_position(at(9, 9))
    assert list(export_range(address, 2, 5)) == list(enumerate(completions(3, 5), 3))
    assert list(export_range(address, -1, 1)) == list(enumerate(completions(1, 1), 1))
    with pytest.raises(StoreMismatch, match="no replica of this machine"):
        EmbeddedLedgers(files[:1], names=["r1"]).addresses()
