"""`notary audit` and `notary trace`: check that everything follows from the log, and show who did what."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ha.errors import HaError
from replica.cli.common import (
    ConfigChoice,
    JsonOption,
    err,
    find_config,
    load,
    make_table,
    out,
    print_json,
)
from replica.cli.log_source import AUTO, TABLES, TOPIC, SourceOption, Where, WorkOption, reporter
from replica.cli.pipeline import (
    DEFAULT_MASTER,
    MasterOption,
    PackagesOption,
    PythonArchiveOption,
    missing_packages,
    require_archive,
    require_pipeline,
    spark_choice,
)
from replica.cli.salvage import SalvagesOption, salvages_here, tell_lost
from replica.cli.trail import verified
from replica.failure import in_a_line
from replica.notary.errors import NotaryError, PlaceAccessDenied, PlaceUnavailable
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from pipeline.audit.audit import AuditReport
    from pipeline.tables.settled import Settled
    from replica.config.model import Config
    from replica.store.trail import Followed

AnswersOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--answers", help="JSON lines with the answers that clients got: histories, answers, receipts.", exists=True
    ),
]
NoDatabaseOption = Annotated[
    bool,
    typer.Option(
        "--no-database",
        help="Leave out the completions, in the database or in the ledgers here, and the operators' trail.",
    ),
]
WatermarkOption = Annotated[
    Path | None,
    typer.Option("--watermark", help="File that keeps how far all is verified; the next audit goes on there."),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many records to show at most.")]

FromOption = Annotated[
    str,
    typer.Option(
        "--log",
        help="`auto`: from the tables in the lake and the log's newest records where these suffice, without Spark; "
        "else Spark judges the log. Or only one of these: the `topic` or the `archive`, judged on Spark; the `tables`, "
        "as far as they are, without the record's bytes and the signature.",
    ),
]
trace_app = typer.Typer(help="Who submitted what, when, with the evidence.", no_args_is_help=True)


def audit(
    *,
    answers: AnswersOption = None,
    no_database: NoDatabaseOption = False,
    watermark: WatermarkOption = None,
    source: SourceOption = TOPIC,
    master: MasterOption = DEFAULT_MASTER,
    packages: PackagesOption = None,
    python_archive: PythonArchiveOption = None,
    work: WorkOption = None,
    salvage: SalvagesOption = None,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Judge the log again, and hold everything against it: signatures, completions, answers, receipts, epochs, density.
    Verify the operators' trail beside it.

    Exit code 0: nothing is wrong. 1: findings, or the audit could not be made.
    """
    require_pipeline()
    from pipeline.audit.audit import Scope, audit_log
    from pipeline.audit.watermark import load_watermark, save_watermark

    settings = load(find_config(config))
    where, progress = Where(source, spark_choice(master, packages, python_archive), work), reporter("audit", as_json)
    trail = None if no_database else _trail(settings)
    with where.job("audit", settings.data_dir) as (session, folder):
        scope = Scope(
            {} if no_database else settings.ledgers().addresses(),
            tuple(path.absolute() for path in answers or ()),
            tuple(key.raw for key in settings.notary_keys()) if answers else (),
            trail,
            None if watermark is None else load_watermark(watermark),
            salvages_here(settings, salvage or ()),
        )
        now_us = time.time_ns() // 1_000
        report = audit_log(session, where.log(settings), folder, scope, now_us=now_us, progress=progress)
    if watermark is not None and report.watermark is not None:
        save_watermark(watermark, report.watermark)
    if as_json:
        print_json(_document(report))
    else:
        _print(report)
    raise typer.Exit(EXIT_OK if report.clean else EXIT_FAILED)


@trace_app.command("state")
def trace_state(
    ref: Annotated[
        str, typer.Argument(help="The state: 64 hexadecimal digits of its transaction, a colon, its index.")
    ],
    *,
    limit: LimitOption = 100,
    source: FromOption = AUTO,
    master: MasterOption = DEFAULT_MASTER,
    packages: PackagesOption = None,
    python_archive: PythonArchiveOption = None,
    work: WorkOption = None,
    salvage: SalvagesOption = None,
    config: ConfigChoice = None,
) -> None:
    """Every request that wanted to consume a state or referred to it, as JSON."""
    from replica.notary.requests import parse_state_ref

    where = Where(source, spark_choice(master, packages, python_archive), work)
    _trace("of_state", parse_state_ref(ref), limit, where, salvage=salvage, config=config)


@trace_app.command("tx")
def trace_tx(
    tx_id: Annotated[str, typer.Argument(help="Transaction id, 64 hexadecimal digits.")],
    *,
    limit: LimitOption = 100,
    source: FromOption = AUTO,
    master: MasterOption = DEFAULT_MASTER,
    packages: PackagesOption = None,
    python_archive: PythonArchiveOption = None,
    work: WorkOption = None,
    salvage: SalvagesOption = None,
    config: ConfigChoice = None,
) -> None:
    """Every request under a transaction id, as JSON."""
    from replica.notary.requests import parse_tx_id

    where = Where(source, spark_choice(master, packages, python_archive), work)
    _trace("of_tx", parse_tx_id(tx_id), limit, where, salvage=salvage, config=config)


@trace_app.command("party")
def trace_party(
    name: Annotated[str, typer.Argument(help="X.500 name of the party, exactly as it signed it.")],
    *,
    limit: LimitOption = 100,
    source: FromOption = AUTO,
    master: MasterOption = DEFAULT_MASTER,
    packages: PackagesOption = None,
    python_archive: PythonArchiveOption = None,
    work: WorkOption = None,
    salvage: SalvagesOption = None,
    config: ConfigChoice = None,
) -> None:
    """The first requests of a party, as JSON."""
    where = Where(source, spark_choice(master, packages, python_archive), work)
    _trace("of_party", name, limit, where, salvage=salvage, config=config)


def _trace(
    kind: str, of: bytes | str, limit: int, where: Where, *, salvage: list[Path] | None, config: Path | None
) -> None:
    """`kind`: the function that makes the subject, in both modules. Standard error says which place answered."""
    settings = load(find_config(config))
    if where.source == AUTO:
        found = _settled(settings, kind, of, limit)
        if not isinstance(found, str):
            print_json(found.entries)
            tell_lost(found.lost)
            return
        err.print(f"Spark judges the log: {found}", markup=False)
        where = replace(where, source=TOPIC)
    if where.source == TABLES:
        require_archive("deltalake")
        from pipeline.tables import trace as from_tables
        from pipeline.tables.read import TablesView, lost_in

        tables = TablesView(settings.tables.folder)
        print_json(from_tables.trace_tables(tables, getattr(from_tables, kind)(of), limit))
        err.print(f"from {_name(settings, tables.offset)}", markup=False)
        tell_lost(lost_in(tables))
        return
    require_pipeline()
    from pipeline.audit.trace import trace
    from pipeline.judging import subjects

    subject = getattr(subjects, kind)(of)
    held = salvages_here(settings, salvage or ())
    with where.job("trace", settings.data_dir) as (session, folder):
        traced = trace(session, where.log(settings), folder, subject, limit, salvages=held)
    print_json(traced.entries)
    tell_lost(traced.lost)


def _settled(config: Config, kind: str, of: bytes | str, limit: int) -> Settled | str:
    """The answer without Spark, where it is that of a judgement of the whole log; else why it is not."""
    if missing := missing_packages("deltalake", "pyarrow", "numpy"):
        return f"not installed: {', '.join(missing)}, so tables cannot be looked into"
    from pipeline.judging import subjects
    from pipeline.sources.stretch import read_stretch
    from pipeline.sources.topic import look_at
    from pipeline.tables import trace as from_tables
    from pipeline.tables.read import TablesView, has_tables
    from pipeline.tables.settled import Question, settle

    place, log = config.tables.folder, config.log.settings
    try:
        if not has_tables(place):
            return f"there are no tables in {place}"
        tables = TablesView(place)
        view = look_at(log)
        if tables.topic_id != view.topic_id:
            return f"the tables in {place} are of another log"
        asked = Question(getattr(from_tables, kind)(of), getattr(subjects, kind)(of), limit)
        found = settle(tables, view.end, partial(read_stretch, log), asked)
    except (PlaceUnavailable, PlaceAccessDenied) as error:
        return in_a_line(error)
    if isinstance(found, str):
        return found
    tail = f", and {found.tail_records:,} newer records, none of which names it" if found.tail_records else ""
    err.print(f"from {_name(config, tables.offset)}{tail}", markup=False)
    return found


def _name(config: Config, offset: int) -> str:
    return f"the tables in {config.tables.folder} up to log offset {offset}"


def _trail(config: Config) -> Followed | None:
    """The operators' trail, verified; None, and a warning, where it cannot be read: the log is audited all the same."""
    try:
        return verified(config)
    except (NotaryError, HaError) as error:
        err.print(f"the operators' trail was not verified: {in_a_line(error)}", markup=False)
        return None


def _document(report: AuditReport) -> dict[str, Any]:
    import msgspec

    found = msgspec.to_builtins(report)
    return {"clean": report.clean, **found}


def _print(report: AuditReport) -> None:
    from pipeline.audit.findings import NOWHERE

    table = make_table("verified", ">count")
    for name, count in [
        (f"records from offset {report.from_offset}", report.end_offset - report.from_offset),
        ("requests whose signature was verified", sum(report.outcomes.values())),
        *((f"  judged {outcome}", count) for outcome, count in sorted(report.outcomes.items())),
        *((f"void records, {reason}", count) for reason, count in sorted(report.voids.items())),
        ("acts and registrations whose signature was verified", report.notes),
        *(() if report.trail_entries is None else [("entries of the operators' trail", report.trail_entries)]),
        *((f"lost records, offsets {one.first} to {one.last}", one.records) for one in report.lost),
        ("epochs in force", len(report.epochs)),
        ("completions compared", report.completions),
        ("answers and receipts compared", report.answers),
    ]:
        table.add_row(name, f"{count:,}")
    out.print(table)
    for one in report.lost:
        out.print(f"lost: {one}", markup=False)
    for finding in report.findings:
        place = "" if finding.offset == NOWHERE else f" at offset {finding.offset}"
        out.print(f"[bold red]{finding.code.value}[/]{place}: ", end="")
        out.print(finding.message, markup=False)
    total = sum(report.counts.values())
    out.print(
        f"[bold red]{total:,} finding{'s' if total != 1 else ''}[/]"
        if total
        else "[bold green]nothing is wrong[/]: no double spend"
    )
