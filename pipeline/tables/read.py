"""Reads the tables in the lake, as far as all of them are."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipeline.tables.delta import View, is_table
from pipeline.tables.rows import REQUESTS, SCHEMAS
from replica.notary.places import Place, inside


def has_tables(place: Place) -> bool:
    """Whether `notary tables run` has made the tables there. Raises PlaceUnavailable and PlaceAccessDenied."""
    return all(is_table(inside(place, name)) for name in SCHEMAS)


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
