"""A second site's log with the records of this one, at the same offsets: what the second site goes on from.

One ordered writer, the one that restores use (`refill_log`). The target is the only state: whoever is killed goes on
after the target's last record, once its newest records have been compared with the source's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

import msgspec

from pipeline.archive.segment import archived_digest, records_of
from pipeline.follow import Succeeded, keep_following
from pipeline.metrics import FollowerMetrics
from pipeline.sources.stretch import read_stretch
from pipeline.sources.topic import TopicView, look_at
from replica.log.admin import StoredRecord
from replica.log.interface import LogMissing
from replica.log.open import finish_refill, refill_log
from replica.log.settings import LogSettings
from replica.notary.errors import ConfigError, LogCopyRefused, NotaryError

COMPARED_RECORDS = 1_000  # of the target's newest, and its first one, before a copy goes on
RUN_RECORDS = 50_000  # copied between two looks at both logs
SETTLE_S = 2.0  # what a writer that was killed has sent is in the target by then


class LogCopier:
    """Copies one log into another that nobody else writes. `sleep_s` waits seconds.

    Every method raises LogCopyRefused when the target is no copy of the source, or somebody else writes to it; and
    LogUnavailable and RestoreRefused, after which a new copier goes on.
    """

    def __init__(self, source: LogSettings, target: LogSettings, sleep_s: Callable[[float], None]) -> None:
        self._source = source
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
        source, target = look_at(self._source), _seen(self._target)
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
        source, first = look_at(self._source), self._following
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
