"""A table in the format of Delta Lake, appended to exactly once, in a folder or in a store of objects.

Each append is one commit, which also notes the log offset that it reaches, as the version of an application that is
named for the log. So the table itself knows what it has: a writer that was killed reads it from there. Of two writers
that start from one state of the table, the second one's commit is refused. An append removes nothing, expired entries
of the table's log included, so a writer needs no right to delete.

In a store of objects a commit is one object that is created only if there is none of its name. Its answer may be lost,
and the repeated request then finds the name taken, by ourselves. So each commit has an id, which is looked for before
another writer is blamed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from pipeline.places.objects import is_denied
from pipeline.places.open import open_store
from pipeline.places.store import ObjectExists, ObjectMissing, again
from replica.notary.codes import Code
from replica.notary.errors import ArchiveContended, ConfigError, NotaryError, PlaceAccessDenied, PlaceUnavailable
from replica.notary.places import Place, Remote
from replica.notary.position import BEGIN

DAY = "day"
REQUEST_MAX_S = 120
CHECKPOINT_COMMITS = 100  # at Delta's own 10 every tenth batch on Spark takes half as long again
_KEEPING = PostCommitHookProperties(cleanup_expired_logs=False)
_OF_LOG = "log "  # and its topic id: the description of a table
_NOTE = "userMetadata"  # of a commit, as `DESCRIBE HISTORY` shows it


class Table:
    """One table of one log, in a place of its own, which is made if there is none. Columns that others added to it
    stay, and are empty in new rows; columns of ours that it lacks are added.

    Raises ConfigError when the table is of another log or of an earlier release, PlaceUnavailable and PlaceAccessDenied
    when it cannot be read, and ConfigError (PLACE_UNSAFE) for a store that overwrites: two writers could both append.
    """

    def __init__(self, place: Place, schema: pa.Schema, topic_id: str) -> None:
        self._topic_id = topic_id
        self._place = place
        log = _OF_LOG + topic_id
        with as_ours(place):
            if isinstance(place, Path):
                place.mkdir(parents=True, exist_ok=True)
            try:  # DeltaTable.is_deltatable would block every thread of this process while it waits for the store
                self._table, self.made = opened(place), False
            except TableNotFoundError:
                self._table, self.made = _made(place, schema, log), True
            description = self._table.metadata().description
        if description != log:
            raise ConfigError(f"the table {place} is of {description}, not of {log}: name another folder")
        lacking = _lacking_columns(place, schema, self._table.schema())
        if isinstance(place, Remote):
            _refuse_unsafe(place, self._table.version())
        if lacking:
            with as_ours(place):
                fields = list(Schema.from_arrow(pa.schema(lacking)).fields)
                self._table.alter.add_columns(fields, post_commithook_properties=_KEEPING)

    @property
    def offset(self) -> int:
        """The log offset up to which the table has its rows, BEGIN for none."""
        return _reached(self._table, self._topic_id)

    @property
    def place(self) -> Place:
        """Where it is."""
        return self._place

    @property
    def application(self) -> str:
        """The name under which a commit notes its log offset, as a version."""
        return _application(self._topic_id)

    @property
    def schema(self) -> str:
        """Its columns, in Delta's JSON."""
        return self._table.schema().to_json()

    def append(self, rows: pa.Table, offset: int) -> None:
        """Add those rows that the table lacks, and note that it now has all up to this log offset.

        Raises ArchiveContended when another writer was first: nothing is added. PlaceUnavailable: it is unknown
        whether the rows were added; a table that is opened again knows.
        """
        if offset <= self.offset:
            return
        no_comments = pa.schema([field.remove_metadata() for field in rows.schema])  # the table's owner may word others
        missing = rows.cast(no_comments).filter(pc.greater(rows["log_offset"], self.offset))
        noted = [Transaction(_application(self._topic_id), offset)]
        append_id, before = uuid4().hex, self._table.version()
        properties = CommitProperties({_NOTE: commit_note("process", append_id)}, app_transactions=noted)
        try:
            with as_ours(self._place):
                write_deltalake(
                    self._table,
                    missing,
                    mode="append",
                    schema_mode="merge",
                    commit_properties=properties,
                    post_commithook_properties=_KEEPING,
                )
                self._table.update_incremental()
        except ArchiveContended:
            if not self._was_ours(append_id, before):
                raise

    def look_again(self) -> None:
        """See what others committed meanwhile. Raises PlaceUnavailable."""
        with as_ours(self._place):
            self._table.update_incremental()

    def _was_ours(self, append_id: str, before: int) -> bool:
        """Whether a commit after this version of the table is the one of this append; the table is read again."""
        if isinstance(self._place, Path):  # a file system loses no answers
            return False
        with as_ours(self._place):
            self._table = opened(self._place)
        commits = range(before + 1, self._table.version() + 1)
        return any(append_id.encode() in _commit(self._place, version) for version in commits)


def commit_note(engine: str, append_id: str) -> str:
    """What a commit says of itself: which engine made it, and the id of the append, by which its author finds it."""
    return json.dumps({"notaryEngine": engine, "notaryAppend": append_id})


class View:
    """One table as it was when it was opened, to be read. `table_id` is another one once the table was made anew.

    Raises PlaceUnavailable, also where there is no table, and PlaceAccessDenied.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        with as_ours(place):
            table = opened(place)
            self.topic_id = (table.metadata().description or "").removeprefix(_OF_LOG)
            self.table_id = str(table.metadata().id)
            self.offset = _reached(table, self.topic_id)
            self._dataset = table.to_pyarrow_dataset()

    def rows(self, wanted: pa.Schema, after: int, until: int, offsets: Sequence[int] | None = None) -> pa.Table:
        """These columns of the rows after a log offset, up to and with another one; null where the table lacks one.

        `offsets`: of the records with these offsets alone.
        """
        among = (pc.field("log_offset") > after) & (pc.field("log_offset") <= until)
        if offsets is not None:
            among &= pc.field("log_offset").isin(list(offsets))
        known = [name for name in wanted.names if name in self._dataset.schema.names]
        with as_ours(self._place):
            found = self._dataset.to_table(known, filter=among)
        for field in wanted:
            if field.name not in known:
                found = found.append_column(field, pa.nulls(len(found), field.type))
        return found.select(wanted.names).cast(wanted)


def is_table(place: Place) -> bool:
    """Whether there is a table. Raises PlaceUnavailable and PlaceAccessDenied."""
    with as_ours(place):
        return DeltaTable.is_deltatable(str(place), _options(place))


def look(place: Place) -> dict[str, int | str]:
    """A table: its log's id, the log offset that it reaches, its version, its number of files.

    Raises ConfigError where there is no table, PlaceUnavailable and PlaceAccessDenied.
    """
    if not is_table(place):
        raise ConfigError(f"there is no table {place}: `notary tables run` makes it", Code.NOT_POSSIBLE_NOW)
    with as_ours(place):
        table = opened(place)
        topic_id = (table.metadata().description or "").removeprefix(_OF_LOG)
        return {
            "topic_id": topic_id,
            "offset": _reached(table, topic_id),
            "version": table.version(),
            "files": len(table.file_uris()),
        }


def schema_of(place: Place) -> str:
    """The columns of a table, in Delta's JSON. Raises PlaceUnavailable, also where there is none."""
    with as_ours(place):
        return opened(place).schema().to_json()


def opened(place: Place) -> DeltaTable:
    """A table as it is now, in the library's hands. Raises what the library does: see `as_ours`."""
    return DeltaTable(str(place), storage_options=_options(place))


def _made(place: Place, schema: pa.Schema, description: str) -> DeltaTable:
    name = f"notary_{str(place).rpartition('/')[2]}"
    DeltaTable.create(
        str(place),
        schema,
        partition_by=[DAY],
        name=name,
        description=description,
        configuration={"delta.checkpointInterval": str(CHECKPOINT_COMMITS)},
        storage_options=_options(place),
    )
    return opened(place)


def _options(place: Place) -> dict[str, str] | None:
    """Of the store; credentials and address are taken from the environment, as `open_store` has it."""
    if isinstance(place, Path):
        return None
    return {"conditional_put": "etag", "timeout": f"{REQUEST_MAX_S}s"}


def _lacking_columns(place: Place, wanted: pa.Schema, found: Schema) -> list[pa.Field]:
    """The columns that a table lacks; each can be added only if older rows may be null there."""
    known = {field.name for field in found.fields}
    lacking = [field for field in wanted if field.name not in known]
    if never_null := [field.name for field in lacking if not field.nullable]:
        raise ConfigError(
            f"the table {place} has no column {never_null[0]}: an earlier release made it."
            " Remove the tables, or name another folder: `notary tables run` makes them again from the log"
        )
    return lacking


def _refuse_unsafe(place: Remote, version: int) -> None:
    """Some servers accept the condition of a creation and ignore it. The newest commit is created again, with its own
    bytes, so nothing is lost either way."""
    content = _commit(place, version)
    try:
        again(lambda: open_store(place).create(_commit_name(version), [content]), sleep)
    except ObjectExists:
        return
    raise ConfigError(f"{place}/{_commit_name(version)} was created a second time", Code.PLACE_UNSAFE)


def _commit(place: Remote, version: int) -> bytes:
    # DeltaTable.history would answer as well, but it blocks every thread of this process while it waits for the store.
    try:
        return again(lambda: open_store(place).read(_commit_name(version)), sleep)
    except ObjectMissing:
        raise PlaceUnavailable(f"{place}/{_commit_name(version)} was removed") from None


def _commit_name(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def _reached(table: DeltaTable, topic_id: str) -> int:
    reached = table.transaction_version(_application(topic_id))
    return BEGIN if reached is None else int(reached)


def _application(topic_id: str) -> str:
    return f"notary/{topic_id}"


@contextmanager
def as_ours(place: Place) -> Iterator[None]:
    """Raises the library's errors as ours: ArchiveContended, PlaceAccessDenied, PlaceUnavailable."""
    try:
        yield
    except NotaryError:
        raise
    except CommitFailedError as error:
        raise ArchiveContended(f"{place}: another process writes this table: {_first_line(error)}") from None
    except (DeltaError, OSError) as error:
        kind = PlaceAccessDenied if is_denied(str(error)) else PlaceUnavailable
        raise kind(f"{place}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
