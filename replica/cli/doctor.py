"""`notary doctor`: examines every part of a participant, and names the remedy for each finding."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, make_table, out, print_json, run
from replica.notary.errors import ConfigError
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

AllOption = Annotated[bool, typer.Option("--all", help="Show also what is well.")]
_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "dim"}


def examine(config: ConfigChoice = None, show_all: AllOption = False, as_json: JsonOption = False) -> None:
    """Check files, machine, database, request log, replicas and HAProxy; each finding says how to mend it.

    Changes nothing. Exit code 0 when nothing is worse than a warning, 1 when there is a problem.
    """
    from replica.doctor.checks import examine as judge
    from replica.doctor.checks import refused_configuration
    from replica.doctor.look import look
    from replica.doctor.verdict import Severity

    path = find_config(config)
    try:
        settings = load(path)
    except ConfigError as error:
        findings = refused_configuration(error.detail)
    else:
        findings = judge(run(look(settings)))
    problems = sum(finding.severity is Severity.PROBLEM for finding in findings)
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    if as_json:
        print_json({"problems": problems, "warnings": warnings, "findings": [asdict(found) for found in findings]})
        raise typer.Exit(EXIT_FAILED if problems else EXIT_OK)
    table = make_table("", "what was found, and what to do")
    for found in findings:
        if show_all or found.severity in (Severity.PROBLEM, Severity.WARNING):
            style = _STYLES[found.severity.value]
            told = f"[bold]{found.check}[/]: {escape(found.text)}"
            fix = f"\nto do: {escape(found.fix)}" if found.fix else ""
            table.add_row(f"[{style}]{found.severity.value}[/]", told + fix)
    if table.row_count:
        out.print(table)
        out.print()
    well = sum(finding.severity is Severity.OK for finding in findings)
    rest = len(findings) - problems - warnings - well
    out.print(
        f"{_count(len(findings), 'check')}: {_count(problems, 'problem')}, {_count(warnings, 'warning')}, {well} well; "
        f"{rest} found nothing to look at"
    )
    raise typer.Exit(EXIT_FAILED if problems else EXIT_OK)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
