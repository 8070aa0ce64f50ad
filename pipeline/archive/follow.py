"""The archiver as a service: it survives whatever may pass, and a restart makes the archive look no younger."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import NoReturn

from pipeline.archive.manifest import Manifest
from pipeline.archive.write import OnStep, Step
from pipeline.follow import Succeeded, keep_following
from pipeline.metrics import FollowerMetrics
from replica.notary.errors import ArchiveDamaged, NotaryError

ArchiveOnce = Callable[[OnStep], Manifest]
"""Archives what the log has now, and returns the manifest."""


def follow_archive(
    ready: Callable[[], AbstractContextManager[ArchiveOnce]],
    load: Callable[[], Manifest],
    metrics: FollowerMetrics,
    *,
    interval_s: float,
    tell_failure: Callable[[NotaryError, float], None],
    now_s: Callable[[], float],
    sleep_s: Callable[[float], None],
) -> NoReturn:
    """Archive for ever, every `interval_s`. Raises an error that needs a person first.

    `ready` opens what an attempt needs, Spark for one; it is closed and opened again after each failure. `load` reads
    the manifest. `tell_failure` gets the error and the seconds until the next attempt; `now_s`: wall clock, UTC.
    """

    def resume(manifest: Manifest) -> None:
        metrics.resumed(manifest.last, now_s() - manifest.newest_us / 1e6)

    def attempt(succeeded: Succeeded) -> None:
        def on_step(step: Step, manifest: Manifest) -> None:
            if step is Step.OPENED:
                resume(manifest)
            elif step is Step.VOUCHED:
                succeeded(manifest.last)

        with ready() as archive_once:
            while True:
                if metrics.knows_offset:
                    with suppress(ArchiveDamaged):  # what else is wrong with it the archiver says
                        load()  # refuses to begin another archive where the disk of this one is not mounted any more
                succeeded(archive_once(on_step).last)
                sleep_s(interval_s)

    def failed(error: NotaryError, delay_s: float) -> None:
        tell_failure(error, delay_s)
        metrics.failed(error.code)
        if not metrics.knows_offset:  # the log or Spark failed before the manifest was read
            with suppress(NotaryError):
                resume(load())

    keep_following(attempt, metrics.succeeded, failed, sleep_s)
