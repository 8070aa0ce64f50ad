"""The log node's settings file, its command, and whose disk it takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ha.raft.core import LogIncomplete
from replica.cli.main import main
from replica.log.raft.process import IDENTITY, find_identity, lock_folder
from replica.log.raft.segments import HARD_STATE, SegmentLog
from replica.log.raft.settings import LogNodeSettings, load_settings
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from tests.unit.notary.test_bounds import numbers_without_bounds

GOOD = 'group = "g"\nname = "r1"\nlisten = "127.0.0.1:7400"\ndata_dir = "log"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "r1.toml"
    path.write_text(text)
    return path


def test_paths_count_from_the_files_folder(tmp_path: Path) -> None:
    """Goal: as in the replica's configuration. Method: a relative folder."""
    settings = load_settings(write(tmp_path, GOOD + '[peers]\nr2 = "[::1]:7401"\n'))
    assert settings.data_dir == tmp_path / "log"
    assert settings.raft().durable


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("election_timeout_ms = 200\n", "message_timeout_ms is 50, more than election_timeout_ms / 6"),
        ("segment_bytes = 1e12\n", "segment_bytes"),
        ("entry_max_bytes = 16_000_000\n", "at least twice entry_max_bytes"),
        ('identity = "card"\n', "identity"),
        ("colour = 1\n", "colour"),
        ('[peers]\nr1 = "127.0.0.1:7401"\n', "this one is among them"),
        ('[peers]\n"r2.x" = "127.0.0.1:7401"\n', "peers.r2.x"),
        ('[peers]\nr2 = "127.0.0.1"\n', "peers.r2"),
        ("=", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(
    more: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: exit code 2 and the setting's name. Method: the command with each wrong file."""
    path = write(tmp_path, GOOD + more)
    monkeypatch.setattr(sys, "argv", ["notary", "log-node", "--settings", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("CONFIG_INVALID: ")
    assert told in said


def test_beyond_this_machine_there_is_tls_or_nothing(tmp_path: Path) -> None:
    """Goal: no plain log on a network. Method: a peer elsewhere, without and with tls."""
    elsewhere = '[peers]\nr2 = "10.0.0.2:7400"\n'
    with pytest.raises(ConfigError) as refused:
        load_settings(write(tmp_path, GOOD + elsewhere))
    assert refused.value.code is Code.PLAINTEXT_EXPOSED
    files = "".join(f'{name} = "{name}.pem"\n' for name in ("ca_file", "certificate_file", "key_file"))
    settings = load_settings(write(tmp_path, GOOD + elsewhere + "[tls]\n" + files))
    assert settings.tls is not None
    assert settings.tls.key_file == tmp_path / "key_file.pem"
    with pytest.raises(ConfigError):
        settings.tls.contexts()


def test_every_number_has_a_range() -> None:
    """Goal: no setting can be infinite. Method: the model's schema."""
    assert list(numbers_without_bounds(LogNodeSettings.model_json_schema())) == []


def test_an_id_stays_with_its_disk(tmp_path: Path) -> None:
    """Goal: the same id while the disk is there, another one after. Method: starts, and folders that are damaged."""
    settings = load_settings(write(tmp_path, GOOD))
    first, files = find_identity(settings, new_group=True)
    assert first.node_id.startswith("r1.")
    assert ((tmp_path / "log" / IDENTITY).stat().st_mode & 0o777) == 0o600  # it has the signing key
    assert SegmentLog(files).last_idx == 0
    assert find_identity(settings, new_group=False)[0] == first
    with pytest.raises(ConfigError, match="without --new-group"):
        find_identity(settings, new_group=True)
    with pytest.raises(ConfigError, match="belongs to the group 'g'"):
        find_identity(settings.model_copy(update={"group": "h"}), new_group=False)
    process = settings.model_copy(update={"identity": "process"})
    second = find_identity(process, new_group=False)[0]
    assert second.node_id != first.node_id
    assert second.key != first.key
    assert second != find_identity(process, new_group=False)[0]
    assert (tmp_path / "log" / first.node_id / HARD_STATE).exists()  # the old log is left where it was
    identity, files = find_identity(settings, new_group=False)
    files.remove(HARD_STATE)
    with pytest.raises(LogIncomplete):
        SegmentLog(find_identity(settings, new_group=False)[1])
    (tmp_path / "log" / IDENTITY).write_bytes(b"x")
    with pytest.raises(LogIncomplete):
        find_identity(settings, new_group=False)
    assert identity.node_id


def test_two_processes_never_share_a_disk(tmp_path: Path) -> None:
    """Goal: two nodes with one id would vote twice. Method: lock the folder twice."""
    lock_folder(tmp_path)
    with pytest.raises(ConfigError, match="another log node"):
        lock_folder(tmp_path)
