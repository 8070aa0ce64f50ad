"""Compares the answers that clients got with the log: histories, answers of the API and bare receipts, as JSON lines.

Lines are recognised by their fields, whatever else they have: `log_offset` and `content_digest` of a success, `code`
and `record_offset` of a refusal, `receipt` (or a receipt itself). Lines without any of them prove nothing, and are
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.audit.findings import FindingCode
from pipeline.jobs.tasks import Batches
from pipeline.session import on_this_machine
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.outcomes import NOTARISED
from replica.notary.receipts import ReceiptDocument, receipt_from_document, verify_receipt
from replica.notary.untrusted import UNREADABLE

DECIDED_BY_LOG = {
    Code.STATE_CONFLICT.name,
    Code.TX_ID_REUSED.name,
    Code.TIME_WINDOW_CLOSED.name,
    Code.COMMAND_ID_REUSED.name,
    Code.PARTY_UNKNOWN.name,  # a front end that refuses it names no record
    Code.KEY_NOT_VALID.name,
}
_ARROW = pa.schema(
    [
        ("log_offset", pa.int64()),
        ("answered", pa.string()),
        ("answered_tx_id", pa.binary()),
        ("answered_digest", pa.binary()),
        ("receipt_holds", pa.bool_()),
    ]
)


class _Answer(msgspec.Struct):
    """The fields that matter of a line; all other ones are passed over."""

    tx_id: str | None = None
    content_digest: str | None = None
    log_offset: int | None = None
    record_offset: int | None = None
    code: str | None = None
    receipt: ReceiptDocument | None = None
    leaf_index: int | None = None


def client_answers(spark: SparkSession, files: Sequence[Path], notary_keys: Sequence[bytes]) -> DataFrame:
    """The answers in the files, a row for each; tasks verify receipts with the notary's keys."""

    def parse(batches: Batches) -> Batches:
        for batch in batches:
            rows = [row for line in batch.column(0).to_pylist() for row in _answers_in(line, notary_keys)]
            yield pa.RecordBatch.from_pylist(rows, _ARROW)

    lines = spark.read.text([on_this_machine(file) for file in files])
    schema = "log_offset bigint, answered string, answered_tx_id binary, answered_digest binary, receipt_holds boolean"
    return lines.mapInArrow(parse, schema)


def wrong_answers(answered: DataFrame, decided: DataFrame, kept: DataFrame, is_lost: Column) -> DataFrame:
    """Findings: a receipt that does not verify, or an answer that is not what the log decided at that offset.

    A success names the offset of the first notarisation, a refusal its own record's. A bare receipt is looked up by
    the offset that it proves, one of version 1 by its transaction id. In: rows of `client_answers`, verdicts, and
    `kept`: those that salvages have of lost records. `is_lost`: of a `log_offset`. Nobody knows what was refused there.
    """
    decided = decided.select("offset", "tx_id", "content_digest", "outcome", "notarised_offset").unionByName(kept)
    by_offset = answered.where("log_offset IS NOT NULL").join(decided, F.col("log_offset") == F.col("offset"), "left")
    notarised = decided.where((F.col("outcome") == NOTARISED) & (F.col("notarised_offset") == F.col("offset")))
    by_tx_id = answered.where("log_offset IS NULL").join(notarised, F.col("answered_tx_id") == F.col("tx_id"), "left")
    both = by_offset.unionByName(by_tx_id)
    other = (
        ~F.col("answered").eqNullSafe(F.col("outcome"))
        | (F.col("answered_digest").isNotNull() & ~F.col("answered_digest").eqNullSafe(F.col("content_digest")))
        | (F.col("answered_tx_id").isNotNull() & ~F.col("answered_tx_id").eqNullSafe(F.col("tx_id")))
        | ((F.col("answered") == NOTARISED) & ~F.col("notarised_offset").eqNullSafe(F.col("offset")))
    )
    spent = (F.col("answered") == NOTARISED) & F.col("outcome").isNotNull() & (F.col("outcome") != NOTARISED)
    code = (
        F.when(~F.col("receipt_holds"), FindingCode.RECEIPT_INVALID.value)
        .when(spent, FindingCode.DOUBLE_SPEND.value)
        .otherwise(FindingCode.ANSWER_DIFFERS.value)
    )
    message = F.concat(
        F.lit("answered "),
        "answered",
        F.lit(" of "),
        F.coalesce(F.hex("answered_tx_id"), F.lit("a transaction")),
        F.lit("; the log says "),
        F.coalesce("outcome", F.lit("nothing of the kind")),
    )
    unknown = is_lost & F.col("outcome").isNull() & (F.col("answered") != NOTARISED)
    wrong = both.where((other & ~F.coalesce(unknown, F.lit(False))) | ~F.col("receipt_holds"))
    return wrong.select(
        code.alias("code"), F.coalesce("log_offset", "offset", F.lit(-1)).alias("offset"), message.alias("message")
    )


def _answers_in(line: str, notary_keys: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    try:
        answer = msgspec.json.decode(line, type=_Answer)
        document = answer.receipt
        if document is None and answer.leaf_index is not None:
            document = msgspec.json.decode(line, type=ReceiptDocument)
        receipt = None if document is None else receipt_from_document(document)
        digest = None if answer.content_digest is None else bytes.fromhex(answer.content_digest)
        tx_id = None if answer.tx_id is None else bytes.fromhex(answer.tx_id)
    except (*UNREADABLE, BadRequest, ValueError):
        return
    if receipt is not None:
        offset = None if receipt.place is None else receipt.place.log_offset
        fits = digest in (None, receipt.content_digest) and tx_id in (None, receipt.tx_id)
        fits = fits and (None in (offset, answer.log_offset) or offset == answer.log_offset)
        holds = fits and receipt.notary_key in notary_keys and verify_receipt(receipt, receipt.notary_key)
        found = offset if answer.log_offset is None else answer.log_offset
        yield _row(found, NOTARISED, receipt.tx_id, receipt.content_digest, holds)
    elif answer.log_offset is not None and digest is not None:
        yield _row(answer.log_offset, NOTARISED, tx_id, digest)
    elif answer.code in DECIDED_BY_LOG and answer.record_offset is not None:
        yield _row(answer.record_offset, answer.code, tx_id, None)


def _row(
    offset: int | None, answered: str | None, tx_id: bytes | None, digest: bytes | None, holds: bool = True
) -> dict[str, Any]:
    return dict(zip(_ARROW.names, (offset, answered, tx_id, digest, holds), strict=True))
