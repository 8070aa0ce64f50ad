"""`notary tables maintain` and `check` as a scheduler runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from pipeline.tables.rows import EPOCHS, REQUESTS, SCHEMAS, VERDICTS
from replica.cli.main import app
from replica.log import open as opening
from replica.log.memory import MemoryLog, MemoryTopic
from tests.pipeline.judged import TOPIC
from tests.pipeline.lake_log import lake, lake_values
from tests.unit.cli.test_config_check_log import CONFIG


def types(folder: Path, *words: str) -> Result:
    """What a command says of the tables in a folder."""
    (folder / "notary.toml").write_text(CONFIG)
    return CliRunner().invoke(app, ["tables", *words, "--config", str(folder / "notary.toml")])


def told(result: Result) -> Any:
    return json.loads(result.stdout)


def serve(monkeypatch: pytest.MonkeyPatch, log_id: str) -> None:
    topic = MemoryTopic(log_id)
    for value in lake_values():
        topic.store(value)
    monkeypatch.setattr(opening, "open_log", lambda settings: MemoryLog(topic))


def test_whole_tables_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: exit code 0 for a scheduler, a sentence for people. Method: whole tables, with and without the log."""
    lake(tmp_path)
    serve(monkeypatch, TOPIC)
    assert told(types(tmp_path, "check", "--json")) == {"offset": 16, "log_compared": False, "findings": []}
    found = types(tmp_path, "check", "--log")
    assert (found.exit_code, found.stdout) == (
        0,
        "the tables are whole, and have the log's records up to log offset 16\n",
    )


def test_what_is_wrong_is_named_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: exit code 1, the table and the first offset. Method: a verdict that somebody deleted, an epoch as well."""
    folder = lake(tmp_path)
    serve(monkeypatch, TOPIC)
    DeltaTable(str(folder / VERDICTS)).delete("log_offset = 8")
    DeltaTable(str(folder / EPOCHS)).delete("log_offset = 13")
    found = types(tmp_path, "check", "--log", "--json")
    assert found.exit_code == 1
    assert {"table": REQUESTS, "problem": "has no verdict", "records": 1, "first_offset": 8} in told(found)["findings"]
    lacking = {"table": EPOCHS, "problem": "lacks a record of the log", "records": 1, "first_offset": 13}
    assert told(found)["findings"][-1] == lacking
    assert "requests  has no verdict: 1 record at log offset 8" in types(tmp_path, "check").stdout


def test_tables_of_another_log_and_no_tables_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no finding where nothing was compared. Method: no tables; another log."""
    assert "`notary tables run` makes them" in str(types(tmp_path, "check").exception)
    lake(tmp_path)
    serve(monkeypatch, "another")
    refused = types(tmp_path, "check", "--log")
    assert refused.exit_code == 1 and "LOG_MISMATCH" in str(refused.exception)


def test_tables_are_maintained(tmp_path: Path) -> None:
    """Goal: what was done is told, and nothing is taken from readers. Method: twice; too short a time."""
    lake(tmp_path)
    nothing = {"files_before": 1, "files": 1, "removed_files": 0}
    tables = told(types(tmp_path, "maintain", "--json"))["tables"]
    assert tables[REQUESTS] == nothing and tables.keys() == SCHEMAS.keys()
    assert "requests  files: 1 before, 1 now; 0 replaced ones removed" in types(tmp_path, "maintain").stdout
    assert types(tmp_path, "maintain", "--keep-hours", "23").exit_code == 2
