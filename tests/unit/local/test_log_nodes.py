"""The log nodes of a local cluster: who begins the log, also after a first start that was cut short."""

from __future__ import annotations

from pathlib import Path

from replica.local.log_nodes import log_is_created, make_log_nodes
from replica.local.machine import THIS_MACHINE
from replica.log.raft.log_settings import RaftLogSettings


def beginners(settings: RaftLogSettings) -> list[str]:
    """The nodes that are told to begin a new log."""
    machines = dict.fromkeys(settings.addresses, THIS_MACHINE)
    nodes = make_log_nodes(settings, Path("notary.toml"), machines, lambda part, text: None)
    return [name for name, node in nodes.items() if "--new-group" in node._process.command.argv]


def test_a_first_start_that_was_cut_short_is_begun_again(tmp_path: Path) -> None:
    """Goal: Ctrl-C in the first second leaves no folder that never starts, and no log is ever removed. Method: a disk
    without a log, another start; the log is created, another start."""
    settings = RaftLogSettings(
        group="g", nodes="r1=127.0.0.1:1,r2=127.0.0.1:2,r3=127.0.0.1:3", data_dir=tmp_path / "log"
    )
    assert beginners(settings) == ["r1"]
    (settings.data_dir / "r2").mkdir()
    assert beginners(settings) == ["r1"]
    assert not (settings.data_dir / "r2").exists()
    (settings.data_dir / "r1").mkdir()
    log_is_created(settings)
    assert beginners(settings) == []
    assert (settings.data_dir / "r1").exists()
