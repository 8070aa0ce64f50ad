"""The audit finds what was seeded, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import psycopg
import pytest
from pyspark.sql import SparkSession

from pipeline.audit.audit import AuditReport, Scope, audit_log
from pipeline.audit.index_diff import diff_index_database
from pipeline.audit.watermark import load_watermark, save_watermark
from replica.following.apply import Applier
from replica.index.rocks import RocksIndex
from replica.notary.errors import ConfigError, LogRefused
from replica.store.trail import follow
from tests.golden.samples import NOTARY_P256
from tests.pipeline.judged import TOPIC
from tests.pipeline.log_files import write_log
from tests.pipeline.signed_log import NOTARY_KEY, history, log_values, longer_values, publish
from tests.worlds.signed_notes import BERT, EVE, FINE, log_of, registration
from tests.worlds.trails import trail_of

pytestmark = pytest.mark.spark
NOTARY = bytes(NOTARY_KEY.verify_key)


def audited(spark: SparkSession, folder: Path, values: list[bytes], scope: Scope = Scope()) -> AuditReport:  # noqa: B008
    """The audit of a log in two files."""
    log = write_log(folder / "log", values, [4])
    return audit_log(spark, log, folder / "work", scope, now_us=7)


def test_a_true_log_is_clean(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: no false alarm; verdicts, voids and epochs are reported. Method: a log with each kind of verdict."""
    report = audited(spark, tmp_path, log_values())
    assert report.clean
    assert report.outcomes == {"NOTARISED": 4, "STATE_CONFLICT": 2, "TIME_WINDOW_CLOSED": 1, "TX_ID_REUSED": 1}
    assert report.voids == {"not_in_force": 1}
    assert report.epochs == [(1, 1, "R0"), (3, 2, "r1")]
    assert report.watermark is not None and report.watermark.offset == 13


def test_a_forged_signature_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: the request that nobody signed. Method: a signature over something else at offset 9."""
    report = audited(spark, tmp_path, log_values(forged=5))
    assert [(finding.code.name, finding.offset) for finding in report.findings] == [("SIGNATURE_INVALID", 9)]
    assert report.watermark is None


@pytest.mark.thorough
def test_an_act_that_nobody_signed_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: acts and registrations are audited like requests. Method: officers and their registrations, clean; then a
    registration under another name than was signed, and one by a stranger; and on from a watermark."""
    values = [value for _, value in log_of(FINE)]
    report = audited(spark, tmp_path / "true", values)
    assert report.clean and report.notes == len(FINE) and report.watermark is not None
    forged = msgspec.structs.replace(registration(BERT, 1), operator="eve")
    values = [value for _, value in log_of([*FINE, forged, registration(EVE)])]
    for verified in (None, report.watermark):
        found = audited(spark, tmp_path / str(verified is None), values, Scope(verified=verified))
        assert [(finding.code.name, finding.offset) for finding in found.findings] == [
            ("NOTE_SIGNATURE_INVALID", 5),
            ("NOT_AN_OFFICER", 6),
        ]
        assert found.watermark is None and found.notes == (len(FINE) + 2 if verified is None else 2)


@pytest.mark.thorough
def test_a_broken_trail_of_operators_is_a_finding(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: one audit covers what operators did as well. Method: a whole trail; one whose first entry is gone; none."""
    lines = trail_of({}, {"who": "ben"}, {"who": "notary"})
    for name, trail, entries, counts in (
        ("whole", follow(lines), 3, {}),
        ("beheaded", follow(lines[1:]), 0, {"TRAIL_BROKEN": 1}),
        ("unread", None, None, {}),
    ):
        report = audited(spark, tmp_path / name, log_values()[:6], Scope(trail=trail))
        assert (report.counts, report.trail_entries, report.watermark is None) == (counts, entries, bool(counts))
        assert [finding.offset for finding in report.findings] == [-1] * len(counts)


@pytest.mark.thorough
def test_answers_are_held_against_the_log(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: wrong answers and receipts are found, true ones pass. Method: a true history, then three false lines. The
    notary signs with another key since, of P-256; receipts of the old one verify."""
    answers = tmp_path / "history.jsonl"
    lines = history()
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    scope = Scope(answers=(answers,), notary_keys=(NOTARY_P256.public_key, NOTARY))
    report = audited(spark, tmp_path / "true", log_values(), scope)
    assert report.clean and report.answers == 3
    double_spend = lines[1] | {"log_offset": 5, "receipt": None}
    forged = lines[3] | {"signature": "00" * 64}
    other = lines[2] | {"record_offset": 4}
    answers.write_text("".join(json.dumps(line) + "\n" for line in (double_spend, forged, other)))
    report = audited(spark, tmp_path / "false", log_values(), scope)
    assert sorted(report.counts.items()) == [("ANSWER_DIFFERS", 1), ("DOUBLE_SPEND", 1), ("RECEIPT_INVALID", 1)]


@pytest.mark.postgres
async def test_the_database_is_held_against_the_log(
    spark: SparkSession, tmp_path: Path, make_database: Callable[[], Awaitable[str]]
) -> None:
    """Goal: every completion is compared. Method: what a replica publishes, then rows missing, made up, changed,
    and two of one record."""
    dsn = await make_database()
    values = log_values()
    await publish(dsn, values)
    scope = Scope({"the database": dsn})
    report = audited(spark, tmp_path / "true", values, scope)
    assert report.findings == [] and report.completions == 8
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE completion SET outcome = 'NOTARISED', notarised_offset = 5 WHERE log_offset = 5")
        connection.execute("UPDATE completion SET recorded_us = 1 WHERE log_offset = 7")
        connection.execute("UPDATE completion SET log_offset = 8 WHERE log_offset = 9")
        connection.execute("UPDATE completion SET log_offset = 13 WHERE log_offset = 10")
        connection.execute("UPDATE completion SET detail = '' WHERE log_offset = 7")
    report = audited(spark, tmp_path / "false", values, scope)
    assert [(finding.code.name, finding.offset) for finding in report.findings] == [
        ("DOUBLE_SPEND", 5),
        ("COMPLETION_DIFFERS", 7),
        ("COMPLETION_DIFFERS", 8),
        ("LEDGER_NOT_DENSE", 8),
        ("COMPLETION_MISSING", 9),
        ("COMPLETION_MISSING", 10),
        ("LEDGER_NOT_DENSE", 11),
        ("COMPLETION_EXTRA", 13),
    ]


@pytest.mark.thorough
def test_the_next_audit_goes_on_at_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: only new records are verified, and a changed one is found. Method: two audits, one after the other."""
    values = log_values(forged=1)
    first = audited(spark, tmp_path / "first", log_values()[:9])
    assert first.watermark is not None
    save_watermark(tmp_path / "w.json", first.watermark)
    verified = load_watermark(tmp_path / "w.json")
    report = audited(spark, tmp_path / "second", values, Scope(verified=verified))
    assert report.clean and report.from_offset == 9
    assert report.outcomes == {"TIME_WINDOW_CLOSED": 1, "TX_ID_REUSED": 1, "NOTARISED": 1}
    changed = audited(spark, tmp_path / "third", [*values[:8], values[9], *values[9:]], Scope(verified=verified))
    assert changed.counts == {"LOG_CHANGED": 1, "SIGNATURE_INVALID": 1}
    (tmp_path / "w.json").write_text("{}")
    with pytest.raises(ConfigError):
        load_watermark(tmp_path / "w.json")
    with pytest.raises(LogRefused):
        other = msgspec.structs.replace(verified, topic_id="other")
        audited(spark, tmp_path / "fourth", values, Scope(verified=other))


@pytest.mark.thorough
@pytest.mark.postgres
async def test_a_longer_log_is_audited(
    spark: SparkSession, tmp_path: Path, make_database: Callable[[], Awaitable[str]]
) -> None:
    """Goal: answers are held against the log. Method: what a replica publishes of the longer log and two answers that
    it gives; then a success made of a refusal, a refusal of a success, and a wrong answer. The index is held against
    the completions, and against one that lacks an acceptance."""
    dsn = await make_database()
    values = longer_values()
    await publish(dsn, values)
    answers = tmp_path / "answers.jsonl"
    refused = {"code": "COMMAND_ID_REUSED", "record_offset": 16}
    answers.write_text(json.dumps(refused) + "\n")
    scope = Scope({"the database": dsn}, answers=(answers,), notary_keys=(NOTARY,))
    report = audited(spark, tmp_path / "true", values, scope)
    assert report.findings == [] and (report.completions, report.answers) == (14, 1)
    assert report.outcomes == {
        "NOTARISED": 7,
        "DEDUPLICATED": 1,
        "COMMAND_ID_REUSED": 1,
        "STATE_CONFLICT": 3,
        "TIME_WINDOW_CLOSED": 1,
        "TX_ID_REUSED": 1,
    }
    index = RocksIndex(tmp_path / "index")
    Applier(index, TOPIC).apply(list(enumerate(values)))
    index.close()
    same = diff_index_database(tmp_path / "index", dsn)
    assert same.same and same.until_offset == 21
    answers.write_text(json.dumps(refused | {"record_offset": 17}) + "\n")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE completion SET outcome = 'NOTARISED', notarised_offset = 16 WHERE log_offset = 16")
        connection.execute("UPDATE completion SET outcome = 'DEDUPLICATED' WHERE log_offset = 18")
    report = audited(spark, tmp_path / "false", values, scope)
    assert [(finding.code.name, finding.offset) for finding in report.findings] == [
        ("DOUBLE_SPEND", 16),
        ("ANSWER_DIFFERS", 17),
        ("COMPLETION_DIFFERS", 18),
    ]
    found = diff_index_database(tmp_path / "index", dsn)
    assert not found.same
    assert (found.difference_count, found.unpublished_count) == (2, 1)
