"""The archiver as a service: log and store away and back, and an age that no restart makes younger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.archive.follow import ArchiveOnce, follow_archive
from pipeline.archive.manifest import Manifest, load_manifest
from pipeline.archive.write import Archiver, BatchSize, OnStep
from pipeline.metrics import FollowerMetrics
from pipeline.sources.topic import look_at
from replica.log.in_memory.server import TimedTopic
from replica.log.in_memory.settings import MemoryLogSettings
from replica.notary.errors import ArchiveContended, ConfigError, NotaryError
from tests.unit.pipeline.test_follower_metrics import Clock, shown
from tests.worlds.archive_world import SIGNER, HeadsInMemory, some_log
from tests.worlds.served_log import served_log

VALUES = some_log(30)
DAY_S = 86_400.0


class Over(BaseException):
    """The test's story is told."""


@dataclass
class World:
    """A log behind a socket, a folder for its archive, and a job whose pauses are the story's turns."""

    folder: Path
    topic: TimedTopic
    log: MemoryLogSettings
    wall_s: float = 0.0
    heads: HeadsInMemory = field(default_factory=HeadsInMemory)
    clock: Clock = field(default_factory=Clock)
    opened: int = 0
    failures: list[str] = field(default_factory=list)

    def append(self, values: list[bytes]) -> None:
        for value in values:
            self.topic.store(value)

    def hide_log(self) -> None:
        self.log.socket_path.rename(self.folder / "hidden")

    def show_log(self) -> None:
        (self.folder / "hidden").rename(self.log.socket_path)

    def hide_store(self) -> None:
        (self.folder / "archive").rename(self.folder / "unmounted")
        (self.folder / "archive").write_bytes(b"")

    def unmount(self) -> None:
        (self.folder / "archive").rename(self.folder / "unmounted")

    def mount(self) -> None:
        assert not (self.folder / "archive").exists()
        (self.folder / "unmounted").rename(self.folder / "archive")

    def show_store(self) -> None:
        (self.folder / "archive").unlink()
        (self.folder / "unmounted").rename(self.folder / "archive")

    def follow(self, *story: Callable[[], None]) -> FollowerMetrics:
        """One life of the job: each pause carries out the next part of the story, and the job dies after the last."""
        metrics = FollowerMetrics("archive", lambda: look_at(self.log).end, self.clock)
        turns = iter(story)

        def sleep(_: float) -> None:
            turn = next(turns, None)
            if turn is None:
                raise Over
            turn()

        with pytest.raises(Over):
            follow_archive(
                self._ready,
                lambda: load_manifest(self.folder / "archive"),
                metrics,
                interval_s=30.0,
                tell_failure=lambda error, delay_s: self.failures.append(error.code.name),
                now_s=lambda: self.wall_s,
                sleep_s=sleep,
            )
        return metrics

    @contextmanager
    def _ready(self) -> Iterator[ArchiveOnce]:
        self.opened += 1
        yield self._archive_once

    def _archive_once(self, on_step: OnStep) -> Manifest:
        view = look_at(self.log)
        size = BatchSize(segment_records=10, segments=1)
        archiver = Archiver(self.log, self.folder / "archive", SIGNER, self.heads, size=size, on_step=on_step)
        with archiver.open(view, 1_000_000, "archive-1") as manifest:
            archiver.archive(manifest, view.end)
            return manifest

    def archived(self) -> list[bytes | None]:
        manifest = load_manifest(self.folder / "archive", SIGNER.public_key)
        return [record.value for segment in manifest.segments for record in manifest.records(segment.facts)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A log of thirty records, served by a thread."""
    with served_log("memory:1") as (topic, settings):
        world = World(tmp_path, topic, settings)
        world.append(VALUES)
        yield world


def test_log_and_store_go_away_and_come_back(world: World) -> None:
    """Goal: no outage ends the service, and each record is archived once. Method: hide the log, then the store; append
    meanwhile; each attempt after a failure opens everything anew."""
    metrics = world.follow(
        world.hide_log,
        lambda: None,
        lambda: (world.show_log(), world.append(VALUES[:3]))[0],
        world.hide_store,
        lambda: world.append(VALUES[3:5]),
        world.show_store,
        lambda: None,
    )
    assert world.failures == ["LOG_UNAVAILABLE"] * 2 + ["PLACE_UNAVAILABLE"] * 2
    assert world.opened == 1 + len(world.failures)
    assert world.archived() == [*VALUES, *VALUES[:5]]
    found = shown(metrics)
    assert (found["notary_archive_offset"], found["notary_archive_lag_records"]) == (34.0, 0.0)
    assert found['notary_archive_failures_total{code="LOG_UNAVAILABLE"}'] == 2.0


def test_no_other_archive_is_begun_where_one_was(world: World) -> None:
    """Goal: a disk that is unmounted gets no second archive in its place. Method: rename the folder away, and
    back, while records come."""
    world.follow(world.unmount, lambda: world.append(VALUES[:2]), world.mount, lambda: None)
    assert world.failures == ["NOT_POSSIBLE_NOW"] * 2
    assert world.archived() == [*VALUES, *VALUES[:2]]


def test_a_restart_during_an_outage_makes_the_archive_no_younger(world: World) -> None:
    """Goal: the alert on the age fires however often the job is started. Method: archive, a day passes, the log is
    away; a new process knows offset and age from the manifest. The age begins anew with the first success."""
    world.follow()
    newest_s = load_manifest(world.folder / "archive").newest_us / 1e6
    world.wall_s = newest_s + DAY_S
    world.hide_log()
    metrics = world.follow(lambda: None)
    found = shown(metrics)
    assert (found["notary_archive_age_seconds"], found["notary_archive_offset"]) == (
        pytest.approx(DAY_S, abs=1.0),
        29.0,
    )
    world.clock.now_s += 60.0
    assert shown(metrics)["notary_archive_age_seconds"] == pytest.approx(DAY_S + 60.0, abs=1.0)
    world.show_log()
    assert shown(world.follow())["notary_archive_age_seconds"] == 0.0


def test_each_signed_batch_is_a_success(world: World) -> None:
    """Goal: a long catching up does not look like an outage. Method: the age is back at 0 after each of three batches,
    though the run has not ended."""
    metrics = FollowerMetrics("archive", lambda: 30, world.clock)
    reached: list[float] = []

    class Noting(HeadsInMemory):
        def record(self, archive_id: str, head: object) -> None:
            reached.append(shown(metrics).get("notary_archive_offset", -2.0))

    world.heads = Noting()

    def stop(_: float) -> None:
        raise Over

    with pytest.raises(Over):
        follow_archive(
            world._ready,
            lambda: load_manifest(world.folder / "archive"),
            metrics,
            interval_s=1.0,
            tell_failure=lambda error, delay_s: None,
            now_s=lambda: 2.0,
            sleep_s=stop,
        )
    assert reached == [-2.0, 9.0, 19.0, 29.0]


@pytest.mark.parametrize(("error", "ends"), [(ConfigError("wrong"), True), (ArchiveContended("another"), False)])
def test_only_what_needs_a_person_ends_it(world: World, error: NotaryError, ends: bool) -> None:
    """Goal: the unit is not started again for nothing. Method: an error of each kind when the attempt begins."""

    @contextmanager
    def refusing() -> Iterator[ArchiveOnce]:
        raise error
        yield

    world._ready = refusing  # type: ignore[method-assign]
    if ends:
        with pytest.raises(ConfigError):
            world.follow()
    else:
        world.follow()
        assert world.failures == ["ARCHIVE_CONTENDED"]
