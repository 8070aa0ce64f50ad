"""What `notary config check` says of log nodes: the outage that their timeouts make, and timeouts that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ha.raft.settings import RaftSettings
from replica.cli import config as commands
from replica.cli.main import app
from replica.notary.errors import ConfigError

CONFIG = """
data_dir = "data"
notary_key_file = "notary.key"
endpoint = {host = "127.0.0.1", port = 9000}
replicas = [{name = "r1", host = "127.0.0.1", api_port = 8080, health_port = 8081}]
database = {conninfo = "host=127.0.0.1 dbname=notary", scope = "notary"}
log.kind = "raft"
[log.raft]
group = "g"
nodes = "r1=127.0.0.1:7201,r2=127.0.0.1:7202,r3=127.0.0.1:7203"
"""


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and certificates are not what this is about."""
    monkeypatch.setattr(commands, "_check_files", lambda _: None)


def check(folder: Path, *lines: str, words: tuple[str, ...] = ()) -> Result:
    """The command, with these lines in `[log.raft]`."""
    path = folder / "notary.toml"
    path.write_text(CONFIG + "\n".join([*lines, ""]))
    return CliRunner().invoke(app, ["config", "check", "--config", str(path), *words])


@pytest.mark.parametrize(("message_ms", "election_ms"), [(50, 400), (20, 1_200)])
def test_it_prints_the_outage_that_the_timeouts_make(tmp_path: Path, message_ms: int, election_ms: int) -> None:
    """Goal: whoever sets the timeouts sees what they cost. Method: two pairs, as a table and as a document."""
    lines = (f"message_timeout_ms = {message_ms}", f"election_timeout_ms = {election_ms}")
    settings = RaftSettings(message_timeout_ms=message_ms, election_timeout_ms=election_ms)
    shown = check(tmp_path, *lines, words=("--json",))
    assert shown.exit_code == 0, (shown.output, shown.exception)
    outage = json.loads(shown.stdout)["log_outage"]
    assert (outage["typical_ms"], outage["worst_ms"]) == settings.outage_ms(outage["round_trip_ms"])
    assert outage["worst_ms"] > election_ms
    text = " ".join(check(tmp_path, *lines).output.split())
    assert f"after {outage['typical_ms']} ms typically and {outage['worst_ms']} ms at worst" in text


def test_a_message_timeout_that_is_not_well_below_the_election_timeout_is_refused(tmp_path: Path) -> None:
    """Goal: no configuration asks for needless elections. Method: one millisecond too much."""
    refused = check(tmp_path, "message_timeout_ms = 67", "election_timeout_ms = 400").exception
    assert isinstance(refused, ConfigError)
    assert "message_timeout_ms is 67, more than election_timeout_ms / 6 = 66.6667" in str(refused)
    assert check(tmp_path, "message_timeout_ms = 66", "election_timeout_ms = 400").exit_code == 0


@pytest.mark.parametrize("serving", ["one", "all"])
def test_it_says_who_waits_for_a_fail_over(tmp_path: Path, serving: str) -> None:
    """Goal: the budget is no outage where all replicas serve. Method: without a database, both ways."""
    path = tmp_path / "notary.toml"
    changed = CONFIG.replace('"host=127.0.0.1 dbname=notary", scope = "notary"', '"sqlite:"')
    path.write_text(f'serving = "{serving}"\nelection.kind = "lease"\n{changed}')
    shown = CliRunner().invoke(app, ["config", "check", "--config", str(path)])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    text = " ".join(shown.output.split())
    assert ("Clients of the lost replica are answered by the others" in text) == (serving == "all")
