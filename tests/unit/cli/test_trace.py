"""`notary trace` looks before it judges: which place answers, and what it says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from pipeline.sources import stretch, topic
from pipeline.sources.topic import TopicView
from pipeline.tables.write import open_writer
from replica.cli import audit
from replica.cli.main import app
from replica.notary.errors import ConfigError
from replica.notary.requests import format_state_ref, state_ref
from tests.pipeline.judged import TOPIC
from tests.pipeline.signed_log import longer_values, tx
from tests.unit.cli.test_config_check_log import CONFIG

VALUES = longer_values()
STATE = format_state_ref(state_ref(tx(1002), 2))  # named at 5 and 6


class Participant:
    """Somebody who types, over a log in memory. Spark is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.topic_id = TOPIC
        (folder / "notary.toml").write_text(CONFIG)

    def types(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["trace", "state", *words, "--config", str(self.folder / "notary.toml")])

    def has_tables(self, values: Sequence[bytes]) -> None:
        with open_writer(self.folder / "tables", self.folder / "index", TOPIC) as writer:
            writer.append(list(enumerate(values)))


def _read_stretch(settings: object, first: int, end: int) -> Iterator[pa.RecordBatch]:
    offsets, values = pa.array(range(first, end), pa.int64()), pa.array(VALUES[first:end], pa.binary())
    yield pa.RecordBatch.from_arrays([offsets, values], ["offset", "value"])


def _no_spark() -> None:
    raise ConfigError("Spark was started")


@pytest.fixture
def participant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Participant:
    """A participant with a log, and no tables."""
    found = Participant(tmp_path)
    monkeypatch.setattr(stretch, "read_stretch", _read_stretch)
    monkeypatch.setattr(topic, "look_at", lambda settings: TopicView(found.topic_id, 0, len(VALUES)))
    monkeypatch.setattr(audit, "require_pipeline", _no_spark)
    return found


def test_the_tables_answer_and_are_named(participant: Participant) -> None:
    """Goal: seconds, not minutes, and people know whence. Method: tables that lack the log's end; all of it said."""
    participant.has_tables(VALUES[:9])
    told = participant.types(STATE)
    assert told.exit_code == 0, told.output + repr(told.exception)
    assert [(entry["offset"], entry["outcome"]) for entry in json.loads(told.stdout)] == [
        (5, "STATE_CONFLICT"),
        (6, "NOTARISED"),
    ]
    assert all(entry["signature_holds"] for entry in json.loads(told.stdout))
    said = " ".join(told.stderr.split())
    assert f"up to log offset 8, and {len(VALUES) - 9} newer records, none of which names it" in said


@pytest.mark.parametrize(
    ("tables_end", "topic_id", "why"),
    [
        (None, TOPIC, "there are no tables in"),
        (6, TOPIC, "the record at offset 6 names it as well"),
        (9, "another", "are of another log"),
    ],
)
def test_spark_judges_where_looking_does_not_suffice(
    participant: Participant, tables_end: int | None, topic_id: str, why: str
) -> None:
    """Goal: no answer that another place would give differently. Method: no tables, too old ones, another log's."""
    if tables_end is not None:
        participant.has_tables(VALUES[:tables_end])
    participant.topic_id = topic_id
    told = participant.types(STATE)
    assert "Spark was started" in str(told.exception)
    said = " ".join(told.stderr.split())
    assert "Spark judges the log" in said and why in said
    assert told.stdout == ""


def test_a_place_that_is_named_is_the_only_one(participant: Participant) -> None:
    """Goal: who wants the log judged gets that. Method: `--log topic` with tables; `--log tables` without evidence."""
    participant.has_tables(VALUES)
    assert "Spark was started" in str(participant.types(STATE, "--log", "topic").exception)
    told = participant.types(STATE, "--log", "tables")
    assert ["record" in entry for entry in json.loads(told.stdout)] == [False, False]
    assert f"up to log offset {len(VALUES) - 1}" in " ".join(told.stderr.split())
