"""What the participant answers to a submission or a look-up. A refusal is an answer, not an error."""

from __future__ import annotations

import msgspec

from replica.notary.errors import Code
from replica.notary.receipts import Receipt
from replica.notary.requests import TimeWindow
from replica.notary.rules import Conflict


class Notarised(msgspec.Struct, frozen=True, tag="notarised"):
    """Final: the same content under the same id is notarised for ever, at `log_offset`, where it first was.

    `record_offset` is this submission's own record; None when the recorded answer was given again without a new one
    (then `duplicate` is set), or for a look-up. `ledger_offset` is where its completion is, or, of a duplicate, that of
    the submission that was accepted; it may be told before it is published. None: not known, as for a look-up.
    """

    tx_id: bytes
    content_digest: bytes
    log_offset: int
    record_offset: int | None
    duplicate: bool
    receipt: Receipt
    ledger_offset: int | None = None


class Earlier(msgspec.Struct, frozen=True):
    """The submission that a command belongs to, and the ledger offset of its completion.

    Each is None where it is not known: the id if the completion is gone, the offset while it is under way.
    """

    submission_id: str | None
    ledger_offset: int | None


class DeduplicationBound(msgspec.Struct, frozen=True):
    """How far back deduplication remembers: for so many seconds, and all that was accepted above a ledger offset."""

    longest_s: float
    earliest_offset: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The verdict on this submission; `final` says whether the same request may get another one, submitted again.

    `code` is a name in the error catalogue; `record_offset` None when nothing was logged,
    and with it `ledger_offset`, where its completion is. `window` is the one that is closed, `earlier` is whose the
    command id is.
    """

    code: str
    tx_id: bytes
    record_offset: int | None = None
    conflicts: tuple[Conflict, ...] = ()
    judged_us: int | None = None  # the time a window was judged at, microseconds UTC
    bound: DeduplicationBound | None = None  # of a deduplication period that is too long
    window: TimeWindow | None = None
    earlier: Earlier | None = None
    ledger_offset: int | None = None

    @property
    def final(self) -> bool:
        """Whether the same content will never be notarised under this transaction id.

        Not after a window that was not open yet, or a command id that another transaction has: the same request may be
        notarised later. Time in the log never goes back, so a window that was found over stays so.
        """
        if self.code == Code.TIME_WINDOW_CLOSED.name:
            until_us = None if self.window is None else self.window.until_us
            return until_us is not None and self.judged_us is not None and self.judged_us >= until_us
        return self.code in Code.__members__ and Code[self.code].final


class NotNow(msgspec.Struct, frozen=True, tag="not_now"):
    """Not final: nothing is decided, or the outcome is not known. Send the same again after `retry_after_s`."""

    code: str
    detail: str
    retry_after_s: float


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """Not final: an asynchronous submission is recorded, and this attempt will have one completion, whatever happens.

    `estimate_s` is how long that takes at most, most likely. Without a completion by then, send the same again.
    """

    submission_id: str
    estimate_s: float


Decision = Notarised | Refused | NotNow
Answer = Decision | Accepted


class StateStatus(msgspec.Struct, frozen=True, tag="state"):
    """Which transaction consumed a state, and where in the log; both None while nothing did, as far as is decided."""

    state: bytes
    consumed_by: bytes | None = None
    log_offset: int | None = None
