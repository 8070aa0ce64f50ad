"""The parts of `notary index` that need Spark, and their reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from replica.cli.common import out, print_json
from replica.cli.log_source import Where
from replica.cli.work_folder import work_folder

if TYPE_CHECKING:
    from pipeline.audit.index_diff import IndexDiff
    from pipeline.jobs.rebuild import Rebuilt
    from replica.config.model import Config


def rebuild_on_spark(
    config: Config, folder: Path, where: Where, until_offset: int | None, progress: Callable[[str], None]
) -> tuple[Path, Rebuilt]:
    """Make a new index, and replace the old one once the new one is complete. Returns the old one's new path."""
    from replica.index.quarantine import quarantine_index

    with (
        where.job("index-rebuild", folder.parent) as (session, work),
        work_folder(folder.parent, f"{folder.name}.building-") as building,  # it is renamed from there into its place
    ):
        from pipeline.jobs.rebuild import rebuild_index

        log = where.log(config, until_offset)
        rebuilt = rebuild_index(session, log, building / "index", work, progress=progress)
        moved = quarantine_index(folder, time.time_ns() // 1_000)
        (building / "index").rename(folder)
    return moved, rebuilt


def diff_with_log(config: Config, folder: Path, where: Where, first: int) -> IndexDiff:
    """Make an index from the log, up to the position of the replica's index, and compare the two."""
    from replica.index.rocks import read_index

    with read_index(folder) as index:
        until_offset = -1 if index.position is None else index.position.offset
    with where.job("index-diff", folder.parent) as (session, work):
        from pipeline.audit.index_diff import diff_indexes
        from pipeline.jobs.rebuild import rebuild_index

        rebuild_index(session, where.log(config, until_offset), work / "index", work / "files")
        return diff_indexes(folder, work / "index", first)


def tell_rebuilt(moved: Path, rebuilt: Rebuilt, as_json: bool) -> None:
    """Print what was made, and where the old index is."""
    if as_json:
        print_json(
            {
                "applied_offset": rebuilt.position.offset,
                "epoch": rebuilt.position.epoch,
                "entries": rebuilt.entry_count,
                "tables": rebuilt.table_count,
                "contested_claims": rebuilt.contested_count,
                "requests_without_effect": rebuilt.dropped_count,
                "steps_s": {step: round(took_s, 3) for step, took_s in rebuilt.steps_s.items()},
                "moved_to": str(moved),
            }
        )
        return
    out.print(
        f"[bold green]rebuilt[/]: {rebuilt.entry_count:,} entries, applied to log offset {rebuilt.position.offset},"
        f" in {sum(rebuilt.steps_s.values()):.1f} s"
    )
    out.print(f"the old index is in [bold]{moved}[/]; delete that folder when nobody needs it any more")


def tell_diff(found: IndexDiff, as_json: bool) -> None:
    """Print whether there are differences, and the first of them."""
    shown = [
        {
            "key": difference.key.hex(),
            "offset": difference.offset,
            "index": None if difference.left is None else difference.left.hex(),
            "other": None if difference.right is None else difference.right.hex(),
        }
        for difference in found.first
    ]
    if as_json:
        print_json(
            {
                "same": found.same,
                "compared_to_offset": found.until_offset,
                "differences": found.difference_count,
                "unpublished_entries": found.unpublished_count,
                "first_offset": found.first_offset,
                "first": shown,
            }
        )
    elif found.same:
        out.print(f"[bold green]no difference[/] up to log offset {found.until_offset}")
    else:
        out.print(f"[bold red]{found.difference_count:,} differences[/] up to log offset {found.until_offset}", end="")
        out.print(f", {found.unpublished_count:,} entries without a completion")
        for item in shown:
            out.print(f"  offset {item['offset']}, {item['key']}: {item['index']} here, {item['other']} there")
