"""What each failure cost: a row for each, measured in this run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from replica.cli.common import make_table, out
from replica.local.recording import RecordingClient
from replica.notary.answers import Notarised

ASKED_AT_A_TIME = 16


class Failure(msgspec.Struct, kw_only=True, frozen=True):
    """One failure. `acknowledged`: notarised transactions that were asked for again afterwards.

    `lost`: those whose answer does not hold any more (RPO). `lost_though_kept`: those of them that a copy or an archive
    had: none may be. `rto_s`: seconds from the failure to the first transaction that was notarised after it; after the
    loss of all but an archive, until every replica is ready.
    """

    failure: str
    what: str
    acknowledged: int
    lost: int
    lost_though_kept: int
    rto_s: float

    @property
    def passed(self) -> bool:
        """Whether nothing was lost that the participant promises to keep."""
        return self.acknowledged > 0 and self.lost_though_kept == 0


class DrillReport(msgspec.Struct, kw_only=True):
    """What the drill found. Times in seconds.

    `covered`: notarised transactions that the copied archive had; `kept`: those still answered as before;
    `protected`: those whose states cannot be spent again. `lost`: notarised after the last copy, which nobody has.
    `recovery_point_s`: from the last archived record to the loss.
    """

    covered: int
    kept: int
    protected: int
    lost: int
    lost_found: int
    completions: int
    recovery_point_records: int
    recovery_point_s: float
    recovery_time_s: float
    steps_s: dict[str, float]

    @property
    def passed(self) -> bool:
        """Whether nothing that the copied archive covered was lost."""
        return self.covered > 0 and self.kept == self.covered and self.protected == self.covered

    def failure(self) -> Failure:
        """The same as a row of the table."""
        return Failure(
            failure="site-archive",
            what=f"site and log gone; the archive was copied {self.recovery_point_s:.0f} s before",
            acknowledged=self.covered + self.lost + self.lost_found,
            lost=self.lost + self.covered - self.kept,
            lost_though_kept=self.covered - min(self.kept, self.protected),
            rto_s=self.recovery_time_s,
        )


async def find_lost(client: RecordingClient, acknowledged: Mapping[bytes, int]) -> dict[bytes, int]:
    """Those of the transactions that are no longer notarised at the offset that was answered."""
    left, lost = iter(acknowledged.items()), {}

    async def ask() -> None:
        for tx_id, offset in left:
            answer = await client.look_up(tx_id)
            if not isinstance(answer, Notarised) or answer.log_offset != offset:
                lost[tx_id] = offset

    async with asyncio.TaskGroup() as group:
        for _ in range(ASKED_AT_A_TIME):
            group.create_task(ask())
    return lost


def show(failures: Sequence[Failure], archive: DrillReport | None, path: Path | None) -> None:
    """Print the table, with more about the loss of everything but an archive; write it to a file if one is named."""
    if archive is not None:
        _show_archive(archive)
    table = make_table(
        "failure", "what failed", ">acknowledged", ">lost (RPO)", ">served after (RTO)", title="Failures"
    )
    for row in failures:
        table.add_row(row.failure, row.what, f"{row.acknowledged:,}", f"{row.lost:,}", f"{row.rto_s:.1f} s")
    out.print()
    out.print(table)
    bad = [row.failure for row in failures if not row.passed]
    out.print(f"[bold red]FAILED[/]: records were lost that were kept: {', '.join(bad)}" if bad else "[green]passed[/]")
    if path is not None:
        document = {} if archive is None else msgspec.to_builtins(archive)
        document |= {"failures": msgspec.to_builtins(failures), "passed": not bad}
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


def _show_archive(report: DrillReport) -> None:
    table = make_table("what", ">", title="Recovery from the archive")
    rows = {
        "transactions that the copied archive covered": f"{report.covered:,}",
        "still answered as before": f"{report.kept:,}",
        "states of them that cannot be spent again": f"{report.protected:,}",
        "lost: notarised after the last copy": f"{report.lost:,}",
        "completions in the new database": f"{report.completions:,}",
        "recovery point": f"{report.recovery_point_records:,} records, {report.recovery_point_s:.1f} s",
        "recovery time": f"{report.recovery_time_s:.1f} s",
        **{f"  {name}": f"{took_s:.1f} s" for name, took_s in report.steps_s.items()},
    }
    for name, value in rows.items():
        table.add_row(name, value)
    out.print()
    out.print(table)
