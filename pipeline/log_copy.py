"""A second site's log with the records of this one, at the same offsets: what the second site goes on from.

One ordered writer, the one that restores use (`refill_log`). The target is the only state: whoever is killed goes on
after the target's last record, once its newest records have been compared with the source's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import msgspec

from pipeline.archive.restore import lost_records
from pipeline.archive.segment import archived_digest, records_of
from pipeline.follow import Succeeded, keep_following
from pipeline.metrics import FollowerMetrics
from pipeline.sources.stretch import read_stretch
from pipeline.sources.topic import TopicView, look_at, value_at
from replica.log.admin import StoredRecord
from replica.log.interface import LogMissing
from replica.log.open import finish_refill, refill_log
from replica.log.settings import LogSettings
from replica.notary.errors import ConfigError, LogCopyRefused, NotaryError, RestoreRefused
from replica.notary.position import BEGIN, Position, begin
from replica.notary.reading import read_records
from replica.notary.records import record_digest
from replica.notary.salvage import Salvage, salvage_named

COMPARED_RECORDS = 1_000  # of the target's newest, and its first one, before a copy goes on
RUN_RECORDS = 50_000  # copied between two looks at both logs
SETTLE_S = 2.0  # what a writer that was killed has sent is in the target by then


class LogCopier:
    """Copies one log into another that nobody else writes. `sleep_s` waits seconds.

    Every method raises LogCopyRefused when the target is no copy of the source, or somebody else writes to it; and
    LogUnavailable and RestoreRefused, after which a new copier goes on.
    """

    def __init__(
        self, source: LogSettings, target: LogSettings, sleep_s: Callable[[float], None], until: int | None = None
    ) -> None:
        """`until`: the last offset that is copied. For a log that was cut, and has other records afterwards."""
        self._source = source
        self._until = until
        self._target = target
        self._sleep_s = sleep_s
        self._source_id: str | None = None
        self._following = 0  # the offset that the target gets next

    @property
    def last(self) -> int:
        """The last offset that the target is known to have; -1 when it has none."""
        return self._following - 1

    def open(self) -> None:
        """Find where the target ends, and compare its newest records with the source's."""
        refuse_itself(self._source, self._target)
        source, target = self._look(), _seen(self._target)
        self._source_id = source.topic_id
        if target is None:
            return
        if target.first:
            raise LogCopyRefused(f"{self._target.label} begins at offset {target.first}, and not at 0")
        self._following = target.end
        if target.end:
            self._sleep_s(SETTLE_S)
            self._refuse_other_writer()
        self._refuse_beyond(source)
        self._compare(0, min(1, target.end))
        self._compare(max(0, target.end - COMPARED_RECORDS), target.end)

    def copy(self, on_record: Callable[[int], None], *, goes_on: bool) -> int:
        """Copy what the source has now; returns the number of records copied. `on_record` gets the target's end.

        `goes_on`: more follow. A last copy, without, leaves the target as a log that replicas may write.
        """
        source, first = self._look(), self._following
        if source.topic_id != self._source_id:
            raise LogCopyRefused(f"the log is another one now: {source.topic_id}, it was {self._source_id}")
        self._refuse_other_writer()
        self._refuse_beyond(source)
        while self._following < source.end:
            end = min(source.end, self._following + RUN_RECORDS)
            refill_log(self._target, self._records(end), self._following, end, on_record, goes_on=True)
            self._following = end
            on_record(end)
        if not goes_on:
            finish_refill(self._target)
        return self._following - first

    def _look(self) -> TopicView:
        """The source, as if it ended after the last offset that is copied."""
        if self._until is None:
            return look_at(self._source)
        source = look_at(self._source, any_contract=True)
        return replace(source, end=min(source.end, self._until + 1))

    def _records(self, end: int) -> Iterator[StoredRecord]:
        return _records(self._source, self._following, end)

    def _refuse_other_writer(self) -> None:
        end = end_of(self._target)
        if end != self._following:
            raise LogCopyRefused(
                f"{self._target.label} ends at offset {end}, and the copy ended at {self._following}: somebody else"
                " writes to it"
            )

    def _refuse_beyond(self, source: TopicView) -> None:
        if self._following > source.end:
            raise LogCopyRefused(
                f"{self._target.label} ends at offset {self._following}, and the log at {source.end}: it is no copy, or"
                " the log lost its end"
            )

    def _compare(self, first: int, end: int) -> None:
        pairs = zip(_records(self._source, first, end), _records(self._target, first, end), strict=True)
        for ours, theirs in pairs:
            found = (
                theirs if self._target.keeps_times else msgspec.structs.replace(theirs, timestamp_ms=ours.timestamp_ms)
            )
            if archived_digest(found) != archived_digest(ours):
                raise LogCopyRefused(f"the record at offset {ours.offset} of {self._target.label} is not the log's")


def lag_s(source: LogSettings, last: int, now_s: float) -> float:
    """Seconds since the oldest record after `last` came into the source; 0 when there is none. `now_s`: UTC.

    Raises LogUnavailable and LogRefused.
    """
    if look_at(source).end <= last + 1:
        return 0.0
    (oldest,) = _records(source, last + 1, last + 2)
    return max(0.0, now_s - oldest.timestamp_ms / 1e3)


def _records(settings: LogSettings, first: int, end: int) -> Iterator[StoredRecord]:
    for batch in read_stretch(settings, first, end) if first < end else ():
        yield from records_of(batch)


def _seen(settings: LogSettings) -> TopicView | None:
    try:
        return look_at(settings, any_contract=True)
    except LogMissing:
        return None


def follow_copy(
    source: LogSettings,
    target: LogSettings,
    metrics: FollowerMetrics,
    *,
    interval_s: float,
    tell_failure: Callable[[NotaryError, float], None],
    now_s: Callable[[], float],
    sleep_s: Callable[[float], None],
) -> NoReturn:
    """Copy for ever, looking every `interval_s`. Raises an error that needs a person first.

    `tell_failure` gets the error and the seconds until the next attempt; `now_s`: wall clock, UTC.
    """

    def attempt(succeeded: Succeeded) -> None:
        copier = LogCopier(source, target, sleep_s)
        copier.open()
        while True:
            copier.copy(lambda end: succeeded(end - 1), goes_on=True)
            succeeded(copier.last)
            sleep_s(interval_s)

    def failed(error: NotaryError, delay_s: float) -> None:
        tell_failure(error, delay_s)
        metrics.failed(error.code)
        if not metrics.knows_offset:  # a restart makes the copy look no younger
            with suppress(NotaryError):
                end = end_of(target)
                for newest in _records(target, max(0, end - 1), end):
                    metrics.resumed(newest.offset, now_s() - newest.timestamp_ms / 1e3)

    keep_following(attempt, metrics.succeeded, failed, sleep_s)


def refuse_itself(source: LogSettings, target: LogSettings) -> None:
    """Raise ConfigError when both names are those of one log."""
    found = _seen(target)
    if found is not None and found.topic_id == look_at(source).topic_id:
        raise ConfigError(f"{target.label} is the log itself, {found.topic_id}: name the second site's")


def end_of(target: LogSettings) -> int:
    """The offset that the copy gets next; 0 when there is no log yet."""
    found = _seen(target)
    return 0 if found is None else found.end


# ---- when the log is lost ----


def kept_by(copy: LogSettings, lost_id: str, demanded: Collection[str]) -> tuple[str, Position]:
    """The copy's id, and the position of a reader of the log `lost_id` after the copy's last record. Reads all of it.

    `demanded`: digests, in hexadecimal, of the salvages that the lost log had. Raises RestoreRefused when it is no copy
    of that log, or ends with a lost record of another salvage; and LogUnavailable.
    """
    view = look_at(copy, any_contract=True)
    if view.topic_id == lost_id:
        raise RestoreRefused(f"{copy.label} is the log of the database or the index, {lost_id}, and no copy of it")
    if view.first:
        raise RestoreRefused(f"{copy.label} begins at offset {view.first}, and not at 0: it is no copy")
    refuse_begun(copy, view.end, demanded)
    position = begin(lost_id)
    for batch in read_stretch(copy, 0, view.end) if view.end else ():
        values = (value or b"" for value in batch.column("value").to_pylist())
        position = read_records(position, zip(batch.column("offset").to_pylist(), values, strict=True)).position
    return view.topic_id, position


def refuse_begun(log: LogSettings, end: int, demanded: Collection[str]) -> None:
    """Raise RestoreRefused where the log ends with a lost record of a salvage that is not among these digests."""
    named = _named_last(log, end)
    if named not in (None, *demanded):
        raise RestoreRefused(
            f"{log.label} ends with a lost record of salvage {named}: notary log fill, or log copy --finish, was begun"
            " with that file, and goes on with it only"
        )


def finish_copy(target: LogSettings) -> None:
    """Make the copy a log that replicas may write; what was answered after its end is lost.

    Raises RestoreRefused when it ends with a lost record: others of its salvage may be due, at offsets that new records
    must not get. Raises LogUnavailable.
    """
    end = end_of(target)
    if (named := _named_last(target, end)) is not None:
        raise RestoreRefused(
            f"the record at offset {end - 1} of {target.label} was lost: finish with --salvage, the file {named}"
        )
    finish_refill(target)


def finish_with_salvage(
    target: LogSettings,
    salvage: Salvage,
    *,
    accept_loss: int | None,
    published: int | None,
    sleep_s: Callable[[float], None],
    on_record: Callable[[int], None],
) -> None:
    """Put the lost records after the end of a copy, or of a log that was cut; read them back, and make it a log that
    replicas may write.

    May be repeated, whatever was killed when. `accept_loss`, `published`: as a restore takes them. `on_record` gets the
    log's end. Raises RestoreRefused before anything is written, when the salvage is not of this log's end; and when
    somebody else writes. Raises LogUnavailable.
    """
    sleep_s(SETTLE_S)
    view = look_at(target, any_contract=True)
    if problem := _not_due(view, salvage, accept_loss, published) or _not_before(target, view.end, salvage):
        raise RestoreRefused(f"{target.label}: {problem}")
    end = salvage.last + 1
    if view.end < end:
        try:
            lost = lost_records(salvage, _last_ms(target, salvage.base.offset), view.end)
            refill_log(target, lost, view.end, end, on_record, goes_on=True)
        except RestoreRefused as error:  # which says to delete the new log; this one is the only one that is left
            raise RestoreRefused(
                f"not all lost records up to offset {salvage.last} came into {target.label}, or somebody else writes to"
                " it. Keep this log; stop notary-log-copy and every replica there, and repeat with the same salvage"
            ) from error
    found = end_of(target)
    problem = f"it ends at offset {found}, due was {end}: somebody else writes to it" if found != end else ""
    if problem := problem or _not_before(target, end, salvage):
        raise RestoreRefused(f"{target.label}: {problem}")
    finish_refill(target)


def _named_last(log: LogSettings, end: int) -> str | None:
    """The digest, in hexadecimal, of the salvage that the last record below `end` names; None if it names none."""
    named = salvage_named(end - 1, value_at(log, end - 1)) if end else None
    return None if named is None else named.hex()


def _not_due(view: TopicView, salvage: Salvage, accept_loss: int | None, published: int | None) -> str:
    """Why a log that is seen so does not get the lost records of this salvage; empty if it does."""
    header, loss = salvage.header, salvage.header.accepted_loss
    if not salvage.first <= view.end <= salvage.last + 1:
        return (
            f"it ends at offset {view.end}, the salvage is of offsets {salvage.first} to {salvage.last}. Nothing may"
            " copy or write there any more; make a salvage of this end: notary log salvage --cut, of a copy --copy"
        )
    if accept_loss != loss:
        return f"{header.states_unknown} transactions whose states nobody knows; to accept that: --accept-loss {loss}"
    if view.end == salvage.last + 1:
        return ""  # all of them are there already
    if header.archive_id != view.topic_id:
        return (
            f"the salvage continues {header.archive_id}, and this log is {view.topic_id}: make one of it with"
            " notary log salvage --cut, of a copy with --copy"
        )
    if published not in (None, header.published):
        return (
            f"completions are published up to offset {published}; when the salvage was made, {header.published}. Stop"
            " all replicas and make a new one: notary log salvage"
        )
    return ""


def _not_before(target: LogSettings, end: int, salvage: Salvage) -> str:
    """Why the records below `end` are not those that the salvage follows, and its lost ones; empty if they are."""
    border = salvage.base.offset
    if border != BEGIN and record_digest(value_at(target, border)) != salvage.base.digest:
        return f"its record at offset {border} is not the one that the salvage follows: name the file of this log"
    for record in _records(target, salvage.first, end):
        if record.value != salvage.lost_record(record.offset):
            return (
                f"its record at offset {record.offset} is not one of this salvage: another one was begun with, or a job"
                " copied on. Keep this log; name the file that was begun with, or make one of this end"
            )
    return ""


def _last_ms(target: LogSettings, border: int) -> int:
    """When the last record that was copied came into the log; all lost records carry that."""
    return next((record.timestamp_ms for record in _records(target, border, border + 1)), 0) if border != BEGIN else 0
