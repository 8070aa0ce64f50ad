"""A report from the tables in the lake, without Spark: it reads what came since the one before in the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow.compute as pc

from pipeline.reports.figures import figures
from pipeline.reports.page import Subject, write_page
from pipeline.reports.state import Newest, State, encode_tables, read_state, write_state
from pipeline.reports.summary import EMPTY, Summary, merged, summary_of
from pipeline.tables.read import TablesView, lost_in
from pipeline.tables.rows import CONFLICTS, EPOCHS, REQUESTS, VERDICTS
from replica.notary.position import BEGIN

STRETCH_RECORDS = 1 << 20  # that are in memory at a time
_REQUESTS = ("log_offset", "stamp_at", "party", "public_key", "inputs", "referenced_states")
_VERDICTS = ("log_offset", "outcome", "notarised_offset")
_CONFLICTS = ("log_offset", "state", "usage", "consumed_offset")
_EPOCHS = ("log_offset", "epoch", "replica")
_NEWEST = ("log_offset", "tx_id", "content_digest", "sequence")
_SOURCE = "Verdicts are those of the tables in the lake; times are the stamps in the log's records."
_ROWS = "The tables requests and verdicts in the lake have a row for each request."


class Made(NamedTuple):
    """A report that was made: its page, the log offset after which it read rows, and up to which; `anew`: why it
    read all of them, None where it went on from the report before."""

    page: Path
    after: int
    offset: int
    anew: str | None


def report_from_tables(
    tables: TablesView, folder: Path, *, made_us: int, stretch_records: int = STRETCH_RECORDS
) -> Made:
    """Write a report into a folder, going on from the state of the one before. `made_us`: the present time, UTC.

    The same bytes as without that state. Raises InvariantBroken for tables that do not agree, and PlaceUnavailable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state, summary, anew = _gone_on_with(tables, folder)
    after = BEGIN if state is None else state.offset
    epochs = tables.rows(EPOCHS, _EPOCHS, BEGIN).sort_by("log_offset")
    barriers = epochs["log_offset"].to_pylist()
    newest = None if state is None else state.newest
    for start in range(after, tables.offset, stretch_records):
        until = min(start + stretch_records, tables.offset)
        requests = tables.rows(REQUESTS, _REQUESTS, start, until)
        verdicts = tables.rows(VERDICTS, _VERDICTS, start, until)
        conflicts = tables.rows(CONFLICTS, _CONFLICTS, start, until)
        summary = merged([summary, summary_of(requests, verdicts, conflicts, barriers)])
        if len(requests):
            newest = _newest(tables, pc.max(requests["log_offset"]).as_py())
    write_state(folder, State(tables.topic_id, tables.ids, tables.offset, newest, encode_tables(summary)))
    epoch = epochs["epoch"][-1].as_py() if len(epochs) else 0
    subject = Subject(tables.topic_id, tables.offset, epoch, len(epochs), lost_in(tables), _SOURCE, _ROWS)
    page = write_page(folder, subject, figures(summary, epochs, tables.offset + 1), made_us)
    return Made(page, after, tables.offset, anew)


def _gone_on_with(tables: TablesView, folder: Path) -> tuple[State | None, Summary, str | None]:
    """The state to go on from with its summary; without one, why."""
    found = read_state(folder)
    if isinstance(found, str):
        return None, EMPTY, found
    state, summary = found
    if (state.topic_id, state.table_ids) != (tables.topic_id, tables.ids):
        return None, EMPTY, "the one before is of other tables"
    if state.offset > tables.offset or not _still_there(tables, state.newest):
        return None, EMPTY, "the tables were put back to an earlier state since the one before"
    return state, summary, None


def _still_there(tables: TablesView, newest: Newest | None) -> bool:
    if newest is None:
        return True
    found = tables.rows(REQUESTS, _NEWEST, newest.log_offset - 1, newest.log_offset)
    return bool(found.to_pylist() == [msgspec.structs.asdict(newest)])


def _newest(tables: TablesView, offset: int) -> Newest:
    (row,) = tables.rows(REQUESTS, _NEWEST, offset - 1, offset).to_pylist()
    return Newest(**row)
