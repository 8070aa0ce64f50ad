"""A totally ordered, durable log with positions: all that the notary needs of it, for every kind of log.

Only committed records are read. Offsets are dense from 0. The result of an append is never a verdict: a record counts
only once it has been read back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from replica.notary.answers import CommitUnderstood, TxUnderstood
from replica.notary.codes import Code
from replica.notary.errors import LogRefused

LogRecords = Sequence[tuple[int, bytes]]
"""Records in log order as (offset, value); a value that the log has as null is read as b''."""


class LogMissing(LogRefused):
    """There is no such log. Servers that have just started may not know of it yet."""

    default_code = Code.LOG_MISSING
    person = False


class RoundTrip(msgspec.Struct, frozen=True):
    """How long one server of the log recently took to answer the writer, including the wait for copies."""

    mean_s: float
    p99_s: float


class LogWriter(Protocol):
    """Appends the records of one activation."""

    @property
    def failed_count(self) -> int:
        """Appends that the log gave up so far; each such record may still appear in the log."""

    @property
    def has_ended(self) -> bool:
        """Whether it takes nothing more, ever: it was closed, or it has failed. One that can connect again has not."""

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection to the log, as far as it knows. One that owes nothing opens another by itself."""

    def append(self, value: bytes) -> None:
        """Hand a record over, without waiting. Order is usual but not promised, and a record may be stored twice.

        Raises LogUnavailable when the bounded local queue is full or the writer is closed; then nothing was written.
        Raises InvariantBroken for more than RECORD_MAX_BYTES.
        """

    def append_all(self, values: Sequence[bytes]) -> None:
        """Append each value, together: fewer requests are less work for a broker.

        When it raises, some values may have been handed over.
        """

    async def close(self) -> None:
        """Purge what was not sent, and close without waiting for the rest. May be repeated."""


class LogReader(Protocol):
    """Reads forward from one offset."""

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        """The next records, at least one unless none comes within `wait_s`; never more than `max_records`.

        A read that is cancelled loses nothing: the next one returns its records. Raises LogUnavailable when the log
        cannot be reached or the reader is closed, and LogRefused when the log no longer has the next offset. A reader
        that has failed stays so; after LogUnavailable another one may be opened.
        """

    async def close(self) -> None:
        """Stop reading; a read under way ends. May be repeated."""


@runtime_checkable
class EarlyLogWriter(Protocol):
    """A `LogWriter` that can say where a record stands before it is committed."""

    def append_early(self, values: Sequence[bytes], appended: Callable[[Mapping[int, str]], None]) -> None:
        """As `append_all`. `appended` gets the places, `view.seqno`, by position in `values`, perhaps in parts.

        It is called when the leader has them, which may still lose them; never, or a second time with other places,
        where the leader changes.
        """


@runtime_checkable
class ConsensusLog(Protocol):
    """A log that the participant's own nodes agree on, and what such a log can be asked besides."""

    async def consensus(self) -> Mapping[str, object]:
        """The state of the node beside, under CCF's names. Raises LogUnavailable."""

    async def transaction(self, view: int, seqno: int) -> TxUnderstood:
        """What became of an entry, as the node beside knows it. Raises LogUnavailable."""

    async def commit(self, since_view: int | None = None) -> CommitUnderstood:
        """What the node beside knows to be committed, with the views from `since_view` on. Raises LogUnavailable."""


class LogEnd(NamedTuple):
    """Where the log ends, and for how long it has had no new record; None: that is not known."""

    offset: int
    quiet_s: float | None


@runtime_checkable
class TimedLog(Protocol):
    """A log whose servers know for how long it has been quiet, so that readers need not count that."""

    async def end_and_quiet(self) -> LogEnd:
        """As `RequestLog.agreed_end_offset`. No record came in the last `quiet_s`, not even one above the end.

        Raises LogUnavailable.
        """


@runtime_checkable
class ClockedLog(Protocol):
    """A log whose servers tell the time, for replicas that share no database."""

    async def agreed_wall_us(self) -> int | None:
        """The median of the servers' clocks, microseconds UTC; None where no majority told it."""


class Lifeline(Protocol):
    """What ends with this process, or by `close`, and is seen to end by the servers of a log."""

    async def close(self) -> None:
        """End it: from now on everybody may know that this activation is led by nobody. May be repeated."""


@runtime_checkable
class WatchingLog(Protocol):
    """A log whose servers see at once when the process of a replica ends."""

    def tie(self, activation_id: bytes) -> Lifeline:
        """Tie this process to an activation that it claims. Close the lifeline only once it leads no more with it."""

    async def open_shared_writer(self) -> LogWriter:
        """A writer for one of several that write, as claimants and workers: none moves the log to its own server."""

    async def wait_for_end(self, activation_id: bytes) -> None:
        """Return once the process that leads with this activation is seen to have ended; perhaps never."""


@runtime_checkable
class LogInDatabase(Protocol):
    """A log in a database, whose promotions may leave an old primary that still answers.

    A database is named as in a barrier: `<kind>:<system identifier>:<timeline>`.
    """

    @property
    def database(self) -> str | None:
        """The database that was reached last; None before that."""

    def require_database(self, named: str) -> None:
        """Refuse older primaries of this database from now on, open readers and writers included.

        `named`: what granted an epoch. A database of another system says nothing about this log's.
        """


class RequestLog(Protocol):
    """One request log."""

    @property
    def answer_times(self) -> Mapping[str, RoundTrip]:
        """How long each server takes to answer the open writer, by server name; empty where it is not measured."""

    async def check(self) -> str:
        """Check the log's contract and return its identity (topic id).

        Raises LogRefused naming every setting that is unsafe, LogTruncated when its first records are gone, and
        LogUnavailable when the log cannot be asked.
        """

    async def hazards(self) -> Sequence[str]:
        """What has become unsafe about the log: each broken rule of its contract, and first records that are gone.

        For a running replica: a hazard is reported, because ending all replicas would help nobody. Raises
        LogUnavailable and LogRefused.
        """

    async def end_offset(self) -> int:
        """The offset that the next record will get.

        Raises LogUnavailable, and LogRefused when the log is no longer the one that was checked.
        """

    async def agreed_end_offset(self) -> int:
        """The same, according to the leader that most brokers name. Ask this before declaring that records are gone.

        A broker that is cut off from its peers still calls itself the leader, and shows fewer records than there are.
        Raises LogUnavailable when the brokers do not agree, or too few answer.
        """

    async def open_reader(self, start_offset: int) -> LogReader:
        """A reader from `start_offset` on. Raises LogTruncated when that lies after the end or was cut off."""

    async def open_writer(self) -> LogWriter:
        """A writer that is connected, so that the first append does not wait. Raises LogUnavailable."""

    async def close(self) -> None:
        """Close whatever is open. May be repeated."""
