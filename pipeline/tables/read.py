"""Reads the tables in the lake, as far as all of them are."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.judging.lost import Lost
from pipeline.tables.delta import View, is_table
from pipeline.tables.rows import LOST, REQUESTS, SCHEMAS
from replica.notary.places import Place, inside
from replica.notary.position import BEGIN


def has_tables(place: Place) -> bool:
    """Whether `notary tables run` has made the tables there. Raises PlaceUnavailable and PlaceAccessDenied."""
    return all(is_table(inside(place, name)) for name in SCHEMAS)


def lost_in(tables: TablesView) -> list[Lost]:
    """The log's lost ranges, as far as the tables are."""
    rows = tables.rows(LOST, ("log_offset", "salvage", "tx_id", "inputs"), BEGIN).sort_by("log_offset")
    found: list[Lost] = []
    for salvage in dict.fromkeys(rows["salvage"].to_pylist()):
        of_one = rows.filter(pc.equal(rows["salvage"], salvage))
        known = of_one.filter(pc.is_valid(of_one["tx_id"]))
        first, last = of_one["log_offset"][0].as_py(), of_one["log_offset"][-1].as_py()
        found.append(Lost(first, last, salvage, len(known), known["inputs"].null_count))
    return found


class TablesView:
    """All tables of one log, as they were when they were opened.

    `offset`: the log offset up to which all of them have their rows. `topic_id`: the log's. `ids`: a name for each
    table that is another one once a table was made anew. Raises PlaceUnavailable and PlaceAccessDenied.
    """

    def __init__(self, place: Place) -> None:
        requests = View(inside(place, REQUESTS))  # appended to last: the others are at least as far
        self.topic_id, self.offset = requests.topic_id, requests.offset
        others = {name: View(inside(place, name)) for name in SCHEMAS if name != REQUESTS}
        self._views = others | {REQUESTS: requests}
        self.ids = {name: view.table_id for name, view in sorted(self._views.items())}

    def rows(
        self,
        name: str,
        columns: Sequence[str],
        after: int,
        until: int | None = None,
        offsets: Sequence[int] | None = None,
    ) -> pa.Table:
        """The rows of one table after a log offset, and up to and with another one, in any order.

        `offsets`: of the records with these offsets alone. Reads files that may have such rows, and no others. A
        column that the table lacks is null.
        """
        until = self.offset if until is None else until
        wanted = pa.schema([SCHEMAS[name].field(column).with_nullable(True) for column in columns])
        return self._views[name].rows(wanted, after, until, offsets)
