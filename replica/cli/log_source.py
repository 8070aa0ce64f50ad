"""The log that a command of the pipeline reads, and the folder where its tasks may leave files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import say
from replica.cli.pipeline import SparkChoice, archive_public_key, spark
from replica.cli.work_folder import work_folder
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.jobs.slices import LogSlices
    from replica.config.model import Config

AUTO, TOPIC, ARCHIVE, TABLES = "auto", "topic", "archive", "tables"
WORK_PREFIX = "pipeline-"
SourceOption = Annotated[str, typer.Option("--log", help="Read the log from the `topic`, or from the `archive`.")]
WorkOption = Annotated[
    Path | None,
    typer.Option("--work", help="Folder that all Spark workers reach, for their files; else one beside the data."),
]


@dataclass(frozen=True, slots=True)
class Where:
    """The source of a job's log, the Spark that runs it, and the folder where its tasks may leave files."""

    source: str
    on: SparkChoice
    work: Path | None

    @contextmanager
    def job(self, app: str, beside: Path) -> Iterator[tuple[SparkSession, Path]]:
        """A session, and a new folder for the files that tasks exchange, by default `beside` the data; gone afterwards.

        Removes first what killed jobs left there. Raises ConfigError, also where workers cannot write in it.
        """
        with spark(app, self.on) as session, work_folder(self.work or beside, WORK_PREFIX) as work:
            if not self.on.master.startswith("local"):
                from pipeline.jobs.shared import check_shared

                check_shared(session, work)
            yield session, work

    def log(self, config: Config, until_offset: int | None = None) -> LogSlices:
        """The log as jobs read it. Raises ConfigError, ArchiveDamaged, LogRefused and LogUnavailable."""
        from pipeline.jobs.slices import OFFSET_MAX, archived_log, served_log

        until = OFFSET_MAX if until_offset is None else until_offset
        if self.source == TOPIC:
            return served_log(config.log.settings, until)
        if self.source == ARCHIVE:
            return archived_log(config.archive.folder, archive_public_key(config, None), until)
        raise ConfigError(f"--log is {TOPIC} or {ARCHIVE}, not {self.source!r}")


def reporter(part: str, as_json: bool) -> Callable[[str], None]:
    """Prints the progress of a job for people; prints nothing for programs."""
    return (lambda text: None) if as_json else lambda text: say(part, text)
