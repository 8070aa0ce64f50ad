"""The lines of the feed: what a reader wants, and one JSON document for each completion or update.

A document is a function of its row. It is made once for all readers, unless a reader may not see all of its parties.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

import msgspec

from ledger_api.server.authorisation import Caller, may_see, may_see_parties, parties_shown
from ledger_api.wire.answers import NOTARISED
from ledger_api.wire.feed import CheckpointDocument, CompletionDocument, UpdateDocument
from ledger_api.wire.problems import ConflictDocument
from ledger_api.wire.submissions import DeduplicationDocument
from replica.notary.requests import format_state_ref
from replica.notary.rules import Conflict
from replica.notary.texts import format_time
from replica.store.interface import Completion

_encoder = msgspec.json.Encoder()
_conflicts = msgspec.msgpack.Decoder(tuple[Conflict, ...])


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader asks for: updates or completions, of one user or of all, of some parties or of all.

    `holder`: charged for the bytes that are held for this reader.
    """

    updates: bool = False
    user_id: str | None = None
    parties: frozenset[str] | None = None
    caller: Caller
    holder: Hashable = None


class Line(msgspec.Struct, frozen=True):
    """One document of a stream: its offset, its kind, and its JSON."""

    offset: int
    kind: str
    json: bytes


class Entry:
    """A completion at its ledger offset. Its documents are made once, when a reader wants them.

    A reader that may not see all the parties gets documents of its own. Only the conflicts in them, the largest part,
    are not made again.
    """

    __slots__ = ("_completion_line", "_conflicts", "_update_line", "completion", "offset")

    def __init__(self, offset: int, completion: Completion) -> None:
        self.offset = offset
        self.completion = completion
        self._completion_line: Line | None = None
        self._conflicts: msgspec.Raw | None = None
        self._update_line: Line | None = None

    def line(self, wanted: Wanted) -> Line | None:
        """The line for a reader; None when the completion is not for this reader."""
        completion = self.completion
        act_as = completion.act_as
        if wanted.parties is not None and wanted.parties.isdisjoint(parties_shown(wanted.caller, act_as)):
            return None
        if wanted.updates:
            return self._as_update(wanted.caller) if may_see_parties(wanted.caller, act_as) else None
        if wanted.user_id is not None and wanted.user_id != completion.user_id:
            return None
        return self._as_completion(wanted.caller) if may_see(wanted.caller, completion.user_id, act_as) else None

    def _as_completion(self, caller: Caller) -> Line:
        shown = parties_shown(caller, self.completion.act_as)
        if shown is not self.completion.act_as:
            return self._completion(shown)
        if self._completion_line is None:
            self._completion_line = self._completion(shown)
        return self._completion_line

    def _completion(self, parties: tuple[str, ...]) -> Line:
        document = completion_document(self.offset, self.completion, parties, self._conflicts)
        if self.completion.detail and self._conflicts is None and parties is not self.completion.act_as:
            self._conflicts = msgspec.Raw(_encoder.encode(document.conflicts))
        return Line(self.offset, "completion", _encoder.encode(document))

    def _as_update(self, caller: Caller) -> Line | None:
        completion = self.completion
        if completion.notarised_offset != completion.log_offset:
            return None  # refused, or notarised by an earlier record
        shown = parties_shown(caller, completion.act_as)
        if shown is not completion.act_as:
            return self._update(shown)
        if self._update_line is None:
            self._update_line = self._update(shown)
        return self._update_line

    def _update(self, parties: tuple[str, ...]) -> Line:
        return Line(self.offset, "update", _encoder.encode(update_document(self.offset, self.completion, parties)))


def completion_document(
    offset: int, completion: Completion, parties: tuple[str, ...], conflicts_json: msgspec.Raw | None = None
) -> CompletionDocument:
    """The document of a completion, from its row and those of its parties that are shown.

    `conflicts_json`: its conflicts, if they are rendered already.
    """
    if conflicts_json is None:
        found = _conflicts.decode(completion.detail) if completion.detail else ()
        conflicts = [ConflictDocument(format_state_ref(c.state), c.consumed_by_hash.hex(), c.usage) for c in found]
    else:
        conflicts = cast(list[ConflictDocument], conflicts_json)
    return CompletionDocument(
        offset=offset,
        user_id=completion.user_id,
        command_id=completion.command_id,
        act_as=list(parties),
        submission_id=completion.submission_id,
        tx_id=completion.tx_id.hex(),
        content_digest=completion.content_digest.hex(),
        code=completion.outcome,
        log_offset=completion.log_offset,
        notarised_offset=completion.notarised_offset,
        recorded_at=format_time(completion.recorded_us),
        conflicts=conflicts,
        deduplication=_deduplication(completion),
    )


def _deduplication(completion: Completion) -> DeduplicationDocument | None:
    duration_us, after = completion.deduplication_us, completion.deduplication_after
    if duration_us is None and after is None:
        return None
    return DeduplicationDocument(None if duration_us is None else duration_us / 1e6, after)


def update_document(offset: int, completion: Completion, parties: tuple[str, ...]) -> UpdateDocument:
    """The document of a notarised transaction, from its row and those of its parties that are shown."""
    assert completion.outcome == NOTARISED
    return UpdateDocument(
        offset=offset,
        tx_id=completion.tx_id.hex(),
        content_digest=completion.content_digest.hex(),
        act_as=list(parties),
        log_offset=completion.log_offset,
        recorded_at=format_time(completion.recorded_us),
    )


def checkpoint(offset: int) -> Line:
    """The checkpoint line: everything that matches up to this offset was sent."""
    return Line(offset, "checkpoint", _encoder.encode(CheckpointDocument(offset=offset)))


class LineWindow:
    """The next lines for one reader, as many as the bounds allow: at least one."""

    def __init__(self, wanted: Wanted, bytes_max: int, lines_max: int) -> None:
        self._wanted = wanted
        self._bytes_max = bytes_max
        self._lines_max = lines_max
        self.taken: list[Line] = []
        self.size_bytes = 0
        self.is_full = False

    def add(self, entries: Sequence[Entry], after: int) -> int:
        """Take what fits. Returns the offset up to which all that matches is taken; `after` when there is none."""
        for entry in entries:
            line = entry.line(self._wanted)
            if line is not None:
                size_bytes = self.size_bytes + len(line.json)
                if self.taken and size_bytes > self._bytes_max:
                    self.is_full = True
                    return after
                self.taken.append(line)
                self.size_bytes = size_bytes
            after = entry.offset
            if len(self.taken) == self._lines_max:
                self.is_full = True
                return after
        return after
