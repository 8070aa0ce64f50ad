"""What the participant answers to a submission or a look-up. A refusal is an answer, not an error."""

from __future__ import annotations

import msgspec

from replica.notary.codes import Code
from replica.notary.receipts import Receipt
from replica.notary.requests import TimeWindow
from replica.notary.rules import Conflict


class Notarised(msgspec.Struct, frozen=True, gc=False, tag="notarised"):
    """Final: the same content under the same id is notarised for ever, at `log_offset`, where it first was.

    `record_offset` is this submission's own record. It is None for a look-up, and when the recorded answer was given
    again without a new record; the latter sets `duplicate`. `ledger_offset` is where its completion is; for a
    duplicate, where the completion of the accepted submission is. An answer may name it before it is published. None:
    not known, as for a look-up.
    """

    tx_id: bytes
    content_digest: bytes
    log_offset: int
    record_offset: int | None
    duplicate: bool
    receipt: Receipt
    ledger_offset: int | None = None

    @property
    def code(self) -> str:
        """As in its JSON."""
        return "NOTARISED"

    @property
    def final(self) -> bool:
        """See `Refused.final`: this will never change."""
        return True


class DeduplicationBound(msgspec.Struct, frozen=True):
    """The limit of deduplication: acceptances of so many past seconds count, and all after a ledger offset."""

    longest_s: float
    earliest_offset: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The verdict on this submission. `final` says whether the same request, submitted again, may get another one.

    `code` is a name in the error catalogue. `record_offset`, and `ledger_offset` of its completion, are None when
    nothing was logged. `window` is the closed window. `accepted_offset` is that of the record that
    the command id belongs to.
    """

    code: str
    tx_id: bytes
    record_offset: int | None = None
    conflicts: tuple[Conflict, ...] = ()
    judged_us: int | None = None  # the time a window was judged at, microseconds UTC
    bound: DeduplicationBound | None = None  # of a deduplication period that is too long
    window: TimeWindow | None = None
    accepted_offset: int | None = None
    ledger_offset: int | None = None

    @property
    def final(self) -> bool:
        """Whether the same content will never be notarised under this transaction id.

        False for a window that is not open yet, and for a command id of another transaction: the same request may be
        notarised later. True for a window that has closed, because time in the log never goes back.
        """
        if self.code == Code.TIME_WINDOW_CLOSED.name:
            until_us = None if self.window is None else self.window.until_us
            return until_us is not None and self.judged_us is not None and self.judged_us >= until_us
        return self.code in Code.__members__ and Code[self.code].final


class NotNow(msgspec.Struct, frozen=True, tag="not_now"):
    """Not final: nothing is decided, or the outcome is not known. Send the same request after `retry_after_s`."""

    code: str
    detail: str
    retry_after_s: float

    @property
    def final(self) -> bool:
        """See `Refused.final`: there is no verdict yet, or it is not known."""
        return False

    @property
    def ledger_offset(self) -> None:
        """Not known."""
        return None


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """Not final: an asynchronous submission is recorded, and its record will have exactly one completion.

    An attempt that several replicas logged, where all serve, has one for each: at most one of them is NOTARISED.
    `estimate_s` is the probable upper bound of the time until then. Without a completion by then, send the same again.
    `log_offset` is where its record is in the log; None if it is recorded, but not in the log yet.
    """

    submission_id: str
    estimate_s: float
    log_offset: int | None = None


class AcceptedEarly(msgspec.Struct, frozen=True, tag="accepted_early"):
    """No answer yet: the log's leader has the record, at `transaction_id` (`view.seqno`), and may still lose it.

    A lost record is sent again, at another place, as long as the activation lasts. So only a completion is the outcome.
    """

    submission_id: str
    transaction_id: str
    estimate_s: float


Decision = Notarised | Refused | NotNow
Answer = Decision | Accepted | AcceptedEarly


class TxUnderstood(msgspec.Struct, frozen=True, tag="log_tx"):
    """What became of an entry of the log, as one node knows it: Unknown, Pending, Committed or Invalid."""

    transaction_id: str  # view.seqno
    status: str
    committed: str  # the newest that the node knows to be committed
    offset: int | None = None  # of a record, once it is committed and on the node's disk


class CommitUnderstood(msgspec.Struct, frozen=True, tag="log_commit"):
    """The newest entry that one node knows to be committed, and the first seqno of each committed view from the view
    asked for on; None: not asked for."""

    transaction_id: str  # view.seqno; 0.0 before the first
    view_history: tuple[int, ...] | None = None


class StateStatus(msgspec.Struct, frozen=True, tag="state"):
    """The transaction that consumed a state, and its log offset; both None if none is known to have consumed it."""

    state: bytes
    consumed_by: bytes | None = None
    log_offset: int | None = None
