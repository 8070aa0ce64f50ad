"""`notary check`: reread the log, judge it again, and compare every answer of a history and every completion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from replica.cli.common import (
    ConfigChoice,
    JsonOption,
    err,
    find_config,
    load,
    make_table,
    out,
    print_json,
    quiet_libraries,
)
from replica.cli.salvage import salvages_here
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from rich.status import Status

    from replica.checker.check import Scope
    from replica.checker.completions import CompletionRow
    from replica.checker.findings import Report
    from replica.checker.history import Event
    from replica.config.model import Config
    from replica.store.facts import Export

PROGRESS_EVERY = 10_000
HistoriesArgument = Annotated[
    list[Path],
    typer.Argument(help="JSON lines of what clients sent and got as answers (docs/formats.md).", exists=True),
]
FirstOption = Annotated[
    int, typer.Option("--first-offset", min=0, help="Records below this log offset are older than the history.")
]
PartialOption = Annotated[
    bool, typer.Option("--partial", help="Clients that are not in the history used the notary at the same time.")
]
KeyOption = Annotated[
    str | None, typer.Option("--notary-key", help="The notary's public key in hexadecimal; else its key file's.")
]


def check_history(
    histories: HistoriesArgument,
    *,
    config: ConfigChoice = None,
    first_offset: FirstOption = 0,
    partial: PartialOption = False,
    notary_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every answer in a history, and every completion, against the log itself.

    The log is read from its start and judged by the reference judge, which shares no code with the notary's rules.
    Exit code 0: nothing is wrong. 1: findings, or the check could not be made.
    """
    quiet_libraries()
    settings = load(find_config(config))
    began_s = monotonic()
    from replica.checker.check import Scope

    asked = Scope(
        tokens=settings.api.tokens is not None,
        first_offset=first_offset,
        complete=not partial,
        all_serve=settings.serving == "all",
    )
    report = _check(settings, histories, asked, _public_keys(settings, notary_key))
    took_s = monotonic() - began_s
    if as_json:
        print_json(document(report, took_s))
    else:
        _print(report, took_s)
    raise typer.Exit(EXIT_FAILED if report.counts else EXIT_OK)


def _check(config: Config, histories: list[Path], asked: Scope, keys: list[bytes]) -> Report:
    """`asked`: the part of the scope that the caller knows. The database knows the rest."""
    import msgspec

    from replica.checker.check import check, receipt_verifier
    from replica.local.topic_reader import read_topic

    with config.ledgers().export() as export, err.status("reading the log") as status:
        scope = msgspec.structs.replace(
            asked,
            published_offset=export.published_offset,
            pruned_to=export.pruned_to,
        )
        return check(
            _events(histories),
            _with_progress(read_topic(config.log.settings, export.topic_id), status),
            completions=_completions(export),
            verify=receipt_verifier(*keys),
            scope=scope,
            salvages=salvages_here(config),
        )


def _with_progress(records: Iterator[tuple[int, bytes]], status: Status) -> Iterator[tuple[int, bytes]]:
    """The records, while a terminal shows how many have been read."""
    for offset, value in records:
        if offset % PROGRESS_EVERY == 0:
            status.update(f"reading the log: {offset:,} records judged")
        yield offset, value


def _completions(export: Export) -> Iterator[CompletionRow]:
    from replica.checker.completions import CompletionRow

    names = CompletionRow.__struct_fields__[1:]  # a completion may have more fields than are checked
    for ledger_offset, completion in export.rows:
        yield CompletionRow(ledger_offset, *[getattr(completion, name) for name in names])


def _events(histories: list[Path]) -> Iterator[Event]:
    from replica.checker.history import read_history

    with ExitStack() as stack:
        for path in histories:
            yield from read_history(stack.enter_context(path.open("rb")), str(path))


def _public_keys(config: Config, given: str | None) -> list[bytes]:
    from replica.notary.errors import BadRequest, ConfigError

    if given is None:
        return [key.raw for key in config.notary_keys()]
    from replica.notary.signatures import notary_key_from_hex

    try:
        return [notary_key_from_hex("--notary-key", given)]
    except BadRequest as error:
        raise ConfigError(error.detail) from None


def document(report: Report, took_s: float) -> dict[str, Any]:
    """The report as JSON: `clean`, findings with their evidence, and how much was looked at."""
    import msgspec

    findings = [
        {"code": finding.code.name, "message": finding.message, "evidence": finding.evidence}
        for finding in report.findings
    ]
    return {
        "clean": not report.counts,
        "findings": findings,
        "counts": report.counts,
        "summary": msgspec.to_builtins(report.summary),
        "took_s": round(took_s, 3),
    }


def _print(report: Report, took_s: float) -> None:
    summary = report.summary
    table = make_table("checked", ">count")
    for name, count in [
        ("records of the log", summary.records),
        ("operations of the history", summary.operations),
        *((f"  answered {code}", count) for code, count in sorted(summary.answers.items())),
        ("receipts verified", summary.receipts),
        ("completions compared", summary.completions),
        *((f"void records, {reason}", count) for reason, count in sorted(summary.voids.items())),
        ("epochs in force", len(summary.epochs)),
    ]:
        table.add_row(name, f"{count:,}")
    out.print(table)
    for finding in report.findings:
        out.print(f"[bold red]{finding.code.name}[/]: {escape(finding.message)}")
        out.print(f"  {finding.evidence}", markup=False)
    verdict = "[bold green]nothing is wrong[/]"
    if report.counts:
        verdict = f"[bold red]{sum(report.counts.values())} findings[/]"
    out.print(f"\n{verdict}, after {took_s:.1f} s")
