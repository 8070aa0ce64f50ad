"""The state of a report that is made from the tables, kept beside it: the summary up to a log offset.

It only saves reading. It is used if it is whole, of these very tables, and if the newest request that it counted is
still there as it was. Otherwise the summary is made anew. It is not signed: whoever may write it may write the report.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import msgspec
import pyarrow as pa

from pipeline.reports.summary import SCHEMAS, Summary
from replica.notary.untrusted import UNREADABLE

NAME = "report.state"
VERSION = 2  # of the file, and of what a summary counts
_HASH_BYTES = 32


class Newest(msgspec.Struct, frozen=True):
    """The newest request that was counted."""

    log_offset: int
    tx_id: bytes
    content_digest: bytes
    sequence: int


class State(msgspec.Struct, frozen=True):
    """A summary up to a log offset, of tables with these ids, and the newest request in it."""

    topic_id: str
    table_ids: dict[str, str]
    offset: int
    newest: Newest | None
    tables: dict[str, bytes]  # of the summary, as Arrow streams
    version: int = VERSION

    @property
    def summary(self) -> Summary:
        """Raises what UNREADABLE and pyarrow raise for one that is none of ours."""
        found = {name: pa.ipc.open_stream(raw).read_all() for name, raw in self.tables.items()}
        if {name: table.schema for name, table in found.items()} != SCHEMAS:
            raise ValueError("it has other tables")
        return found


def encode_tables(summary: Summary) -> dict[str, bytes]:
    """The tables of a summary as they are kept."""
    return {name: _stream(table) for name, table in summary.items()}


def write_state(folder: Path, state: State) -> None:
    """Replace the state in a folder; a crash leaves the one before, or this one."""
    raw = msgspec.msgpack.encode(state)
    draft = folder / f".{NAME}-{uuid4().hex}"  # of this job alone: two reports may be made at once
    draft.write_bytes(sha256(raw).digest() + raw)
    draft.replace(folder / NAME)


def read_state(folder: Path) -> tuple[State, Summary] | str:
    """The state in a folder with its summary; or why there is none to go on from, as a part of a sentence."""
    try:
        raw = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return "there is no earlier one"
    except OSError as error:
        return f"its state cannot be read: {error.strerror}"
    digest, raw = raw[:_HASH_BYTES], raw[_HASH_BYTES:]
    if sha256(raw).digest() != digest:
        return "its state is damaged"
    try:
        if msgspec.msgpack.decode(raw).get("version") != VERSION:
            return "its state is of another release"
        state = msgspec.msgpack.decode(raw, type=State)
        return state, state.summary
    except (*UNREADABLE, pa.ArrowException, ValueError, AttributeError):
        return "its state is not one"


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())
