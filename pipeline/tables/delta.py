"""A table in the format of Delta Lake, appended to exactly once.

Each append is one commit, which also notes the log offset that it reaches, as the version of an application that is
named for the log. So the table itself knows what it has: a writer that was killed reads it from there. Of two writers
that start from one state of the table, the second one's commit is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from replica.notary.errors import ArchiveContended, LogRefused, PlaceUnavailable
from replica.notary.position import BEGIN

DAY = "day"
_OF_LOG = "log "  # and its topic id: the description of a table


class Table:
    """One table of one log, in a folder of its own, which is made if there is none. Columns that others added to it
    stay, and are empty in new rows; columns of ours that it lacks are added by the next append.

    Raises LogRefused when the table is of another log, and PlaceUnavailable when it cannot be read.
    """

    def __init__(self, folder: Path, schema: pa.Schema, topic_id: str) -> None:
        self._topic_id = topic_id
        log = _OF_LOG + topic_id
        with _as_ours(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self.made = not DeltaTable.is_deltatable(str(folder))
            if self.made:
                self._table = DeltaTable.create(
                    str(folder), schema, partition_by=[DAY], name=f"notary_{folder.name}", description=log
                )
            else:
                self._table = DeltaTable(str(folder))
            description = self._table.metadata().description
        if description != log:
            raise LogRefused(f"the table {folder} is of {description}, not of {log}")

    @property
    def offset(self) -> int:
        """The log offset up to which the table has its rows, BEGIN for none."""
        return _reached(self._table, self._topic_id)

    def append(self, rows: pa.Table, offset: int) -> None:
        """Add those rows that the table lacks, and note that it now has all up to this log offset.

        Raises ArchiveContended when another writer was first: nothing is added. PlaceUnavailable: it is unknown
        whether the rows were added; a table that is opened again knows.
        """
        if offset <= self.offset:
            return
        missing = rows.filter(pc.greater(rows["offset"], self.offset))
        with _as_ours(self._table.table_uri):
            write_deltalake(
                self._table,
                missing,
                mode="append",
                schema_mode="merge",
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(_application(self._topic_id), offset)]
                ),
            )
            self._table.update_incremental()


def look(folder: Path) -> dict[str, int | str]:
    """A table: its log's id, the log offset that it reaches, its version, its number of files.

    Raises PlaceUnavailable, also where there is no table.
    """
    with _as_ours(folder):
        table = DeltaTable(str(folder))
        topic_id = (table.metadata().description or "").removeprefix(_OF_LOG)
        return {
            "topic_id": topic_id,
            "offset": _reached(table, topic_id),
            "version": table.version(),
            "files": len(table.file_uris()),
        }


def _reached(table: DeltaTable, topic_id: str) -> int:
    reached = table.transaction_version(_application(topic_id))
    return BEGIN if reached is None else int(reached)


def _application(topic_id: str) -> str:
    return f"notary/{topic_id}"


@contextmanager
def _as_ours(place: Path | str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise ArchiveContended(f"{place}: another process writes this table: {_first_line(error)}") from None
    except (DeltaError, OSError) as error:
        raise PlaceUnavailable(f"{place}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
