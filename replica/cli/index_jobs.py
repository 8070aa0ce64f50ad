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
) -> tuple[Path | None, Rebuilt]:
    """Make a new index, which replaces the old one once it is complete. Returns where the old one is now, if any."""
    from replica.following.salvaged import read_salvages
    from replica.index.quarantine import quarantine_index

    folder.parent.mkdir(parents=True, exist_ok=True)
    salvages = read_salvages(folder.parent)
    with (
        where.job("index-rebuild", folder.parent) as (session, work),
        work_folder(folder.parent, f"{folder.name}.building-") as building,  # it is renamed from there into its place
    ):
        from pipeline.jobs.rebuild import rebuild_index

        log = where.log(config, until_offset)
        rebuilt = rebuild_index(session, log, building / "index", work, salvages=salvages, progress=progress)
        moved = quarantine_index(folder, time.time_ns() // 1_000) if folder.is_dir() else None
        (building / "index").rename(folder)
    return moved, rebuilt


def diff_with_log(config: Config, folder: Path, where: Where, first: int) -> IndexDiff:
    """Make an index from the log, up to the position of the replica's index, and compare the two."""
    from replica.following.salvaged import read_salvages
    from replica.index.rocks import read_index
    from replica.notary.position import offset_of

    salvages = read_salvages(folder.parent)
    with read_index(folder) as index:
        until_offset = offset_of(index.position)
    with where.job("index-diff", folder.parent) as (session, work):
        from pipeline.audit.index_diff import diff_indexes
        from pipeline.jobs.rebuild import rebuild_index

        log = where.log(config, until_offset)
        rebuild_index(session, log, work / "index", work / "files", salvages=salvages)
        return diff_indexes(folder, work / "index", first)


def tell_rebuilt(moved: Path | None, rebuilt: Rebuilt, as_json: bool) -> None:
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
                "moved_to": None if moved is None else str(moved),
            }
        )
        return
    out.print(
        f"[bold green]rebuilt[/]: {rebuilt.entry_count:,} entries, applied to log offset"
        f" {rebuilt.position.offset}, in {sum(rebuilt.steps_s.values()):.1f} s"
    )
    if moved is not None:
        out.print(f"the old index is in [bold]{moved}[/]; delete that folder when nobody needs it any more")


def tell_diff(found: IndexDiff, as_json: bool) -> None:
    """Print whether there are differences, and the first of them."""
    if as_json:
        print_json(_document(found))
        return
    if not found.difference_count and not found.unpublished_count:
        out.print(f"[bold green]no difference[/] up to log offset {found.until_offset}")
        return
    out.print(f"[bold red]{found.difference_count:,} differences[/] up to log offset", end="")
    out.print(f" {found.until_offset}, {found.unpublished_count:,} entries without a completion")
    for item in _shown(found):
        out.print(f"  offset {item['offset']}, {item['key']}: {item['index']} here, {item['other']} there")


def _shown(found: IndexDiff) -> list[dict[str, object]]:
    return [
        {
            "key": difference.key.hex(),
            "offset": difference.offset,
            "index": None if difference.left is None else difference.left.hex(),
            "other": None if difference.right is None else difference.right.hex(),
        }
        for difference in found.first
    ]


def _document(found: IndexDiff) -> dict[str, object]:
    return {
        "same": found.same,
        "compared_to_offset": found.until_offset,
        "differences": found.difference_count,
        "unpublished_entries": found.unpublished_count,
        "first_offset": found.first_offset,
        "first": _shown(found),
    }
