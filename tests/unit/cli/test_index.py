"""What `notary index` does with the files of an index."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from replica.cli.index import own_files
from replica.cli.main import app
from replica.cli.stopped_index import stopped_index
from replica.notary.errors import ConfigError
from tests.unit.cli.test_config_check_log import CONFIG


def test_a_checkpoint_is_not_damaged_with_the_index_it_is_of(tmp_path: Path) -> None:
    """Goal: a copy is worth having. Method: files linked as a checkpoint's are; change the first."""
    index, copy = tmp_path / "index", tmp_path / "copy"
    index.mkdir()
    copy.mkdir()
    (index / "1.sst").write_bytes(b"entries")
    (copy / "1.sst").hardlink_to(index / "1.sst")
    (copy / "MANIFEST").write_bytes(b"own")
    own_files(copy)
    (index / "1.sst").write_bytes(b"damaged")
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {"1.sst": b"entries", "MANIFEST": b"own"}


def test_an_index_that_is_lost_needs_no_index_to_be_made_anew(tmp_path: Path) -> None:
    """Goal: a replica that lost its disk is not refused for what it lost. Method: rebuild where there is no folder;
    commands that read an index refuse."""
    config = tmp_path / "notary.toml"
    config.write_text(CONFIG)
    made = CliRunner().invoke(app, ["index", "rebuild", "--name", "r1", "--config", str(config)])
    assert made.exit_code == 0, (made.output, made.exception)
    assert "r1 has no index: it reads the log again when it starts" in " ".join(made.output.split())
    with pytest.raises(ConfigError, match="r1 has no index"):
        stopped_index(config, "r1")
