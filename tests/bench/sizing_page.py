"""The tables of docs/reference-deployment.md: what was measured, and the machines that a target needs.

    python -m tests.bench.sizing_page                                # of build/bench.json, for the usual target
    python -m tests.bench.sizing_page --sizing-target 8000 12000     # single requests, batched submissions a second
    python -m tests.bench.sizing_page --into docs/reference-deployment.md

The figures of a page can be read back, so that a test derives the machines again.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.bench.machines import (
    DAY_S,
    FREE_SHARE,
    UTILISATION,
    Deployment,
    Each,
    Measured,
    Part,
    SizingError,
    deployment_for,
    highest_target,
)

BEGIN, END = "<!-- sizing -->\n", "<!-- end of sizing -->\n"
THREAD = "the active core's busiest thread"
TARGET = (5_000.0, 10_000.0)
GB = 1e9
Row = Sequence[str]


def render(measured: Measured, target: Each) -> str:
    """The page's part between BEGIN and END. Raises SizingError."""
    needed = deployment_for(measured, target)
    return (
        "\n".join([*_costs(measured), "", *_bytes(measured, target), "", *_machines(measured, needed, target)]) + "\n"
    )


def parse(page: str) -> tuple[Measured, Each]:
    """What was measured, and the target, as `render` wrote them. Raises SizingError for what is not its own."""
    try:
        costs, disk, network, machines = _tables(page)
        thread = next(row for row in costs if row[0] == THREAD)
        measured = Measured(
            tps=_each(costs[0][2:4]),
            parts={
                row[0]: Part(int(_number(row[1])), _each(row[2:4]), _number(row[4]))
                for row in costs[1:]
                if row is not thread
            },
            core_thread_us=_each(thread[2:4]),
            disk_bytes={row[0]: _number(row[1]) for row in disk[1:]},
            network_bytes={row[0]: _each(row[1:3]) for row in network[1:]},
        )
        return measured, _each(machines[0][2:4])
    except (ValueError, IndexError, StopIteration) as error:
        raise SizingError(f"not a page of sizing: {error!r}") from error


def _costs(measured: Measured) -> Iterable[str]:
    heads = [f"at {_count(measured.tps.single)} single/s", f"at {_count(measured.tps.batch)} batched/s"]
    yield from _head("part, on each of its machines", "processes", *heads, "peak memory")
    for name, part in measured.parts.items():
        yield _row(name, f"{part.processes}", *_both(part.cpu_us, "{:.1f} µs"), f"{part.memory_mib:.0f} MiB")
    yield _row(THREAD, "", *_both(measured.core_thread_us, "{:.1f} µs"), "")


def _bytes(measured: Measured, target: Each) -> Iterable[str]:
    days = [f"a day at {_count(rate)}/s" for rate in (target.single, target.batch)]
    yield from _head("kept by", "a transaction", "10⁹ transactions", *days)
    for place, size in measured.disk_bytes.items():
        a_day = _both(target.times(size * DAY_S / GB), "{:,.0f} GB")
        yield _row(place, f"{size:.0f} bytes", f"{size:,.0f} GB", *a_day)
    yield ""
    ways = [f"{_count(target.single)} single/s", f"{_count(target.batch)} batched/s"]
    yield from _head("sent by", "a single request", "a batched submission", *ways)
    for way, each in measured.network_bytes.items():
        rates = each.times(target).times(8e-6)
        yield _row(way, *_both(each, "{:.0f} bytes"), *_both(rates, "{:,.0f} Mbit/s"))


def _machines(measured: Measured, needed: Deployment, target: Each) -> Iterable[str]:
    heads = [f"cores, {_count(target.single)} single/s", f"cores, {_count(target.batch)} batched/s"]
    yield from _head("machine", "how many", *heads, "memory", "volume for 10⁹ transactions")
    for machine in needed.machines:
        volume = f"{machine.volume_bytes:,.0f} GB" if machine.volume_bytes else ""
        memory = f"{machine.memory_mib:,.0f} MiB"
        yield _row(machine.role.name, f"{machine.role.machines}", *_both(machine.cores, "{:.2f}"), memory, volume)
    ends, busy = highest_target(measured), needed.core_thread_busy.times(100)
    yield ""
    yield (
        f"Processors and memory are {100 * UTILISATION:.0f} % busy at that target, "
        f"{100 * FREE_SHARE:.0f} % of a volume stays free, and `api_workers` is {needed.front_ends}. "
        f"{THREAD.capitalize()} is {busy.single:.0f} % busy with single requests and {busy.batch:.0f} % with batches; "
        f"it ends at {_count(ends.single)} and {_count(ends.batch)}/s, however many processors there are."
    )


def _head(*cells: str) -> Iterable[str]:
    yield _row(*cells)
    yield "|---" * len(cells) + "|"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _both(each: Each, form: str) -> tuple[str, str]:
    return form.format(each.single), form.format(each.batch)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _tables(page: str) -> list[list[Row]]:
    """The cells of each table, its head first and without the line below that."""
    found = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    cells = [[[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()] for table in found]
    return [[rows[0], *rows[2:]] for rows in cells]


def _each(cells: Row) -> Each:
    return Each(_number(cells[0]), _number(cells[1]))


def _number(cell: str) -> float:
    """The first number of a cell."""
    found = re.search(r"\d[\d,]*(?:\.\d+)?", cell)
    if found is None:
        raise ValueError(f"no number in {cell!r}")
    return float(found[0].replace(",", ""))


def add_target(parser: argparse.ArgumentParser) -> None:
    """The option that names the target."""
    parser.add_argument(
        "--sizing-target",
        type=float,
        nargs=2,
        default=TARGET,
        metavar=("SINGLE", "BATCHED"),
        help="submissions a second that the derived machines are for, by single requests or by batches",
    )


def main() -> None:
    """Print the tables of a run's figures, or put them into a page."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sizing_page", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="what a run of the bench wrote")
    parser.add_argument("--into", type=Path, help="a page, whose tables are replaced")
    add_target(parser)
    arguments = parser.parse_args()
    measured = msgspec.convert(json.loads(arguments.json.read_text())["sizing"], Measured)
    tables = render(measured, Each(*arguments.sizing_target))
    if arguments.into is None:
        print(tables, end="")
        return
    arguments.into.write_text(replaced(arguments.into.read_text(), tables))


def replaced(page: str, tables: str, begin: str = BEGIN, end: str = END) -> str:
    """A page with other tables between two lines. Raises SizingError for one that has no place for them."""
    if begin not in page or end not in page:
        raise SizingError(f"no lines {begin.strip()} and {end.strip()} in the page")
    return page.partition(begin)[0] + begin + tables + end + page.partition(end)[2]


if __name__ == "__main__":
    main()
