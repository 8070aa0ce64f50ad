"""Writes the tables of error codes into docs/errors.md: `python -m tests.golden.error_table`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from replica.notary.errors import Code
from tests.golden.seen import election_errors

_DOCS = Path(__file__).parents[2] / "docs"
IN_CLIENTS = (Code.ANSWER_UNREADABLE, Code.RECEIPT_INVALID, Code.LEDGER_CHANGED)  # no answer, and no replica's


def _table(head: str, rows: Iterable[str]) -> str:
    return f"| {head} |\n|{'---|' * (head.count('|') + 1)}\n" + "".join(f"| {row} |\n" for row in rows)


def answered() -> str:
    """The codes that the API answers with."""
    rows = (f"`{c.name}` | {c.status} | {c.retry.value} | {c.title}. | {c.remedy}" for c in Code if c.status)
    return _table("code | status | retry | what it means | what to do", rows)


def of_clients() -> str:
    """The codes that client libraries find by themselves."""
    rows = (f"`{c.name}` | {c.retry.value} | {c.title}. | {c.remedy}" for c in IN_CLIENTS)
    return _table("code | retry | what it means | what to do", rows)


def of_operators() -> str:
    """The codes that never leave the participant."""
    found = [c for c in Code if not c.status and c not in IN_CLIENTS]
    rows = [f"`{c.name}` | {c.retry.value} | {_exit(c.person)} | {c.title}. | {c.remedy}" for c in found]
    return _table("code | retry | replica | what it means | what to do", rows)


def of_election() -> str:
    """The codes of lock, election and log nodes."""
    rows = []
    for kind in election_errors():
        meaning = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        rows.append(f"`{kind.code}` | {_exit(not kind.retry)} | {meaning} | {kind.remedy}")
    return _table("code | replica | what it means | what to do", rows)


def _exit(person: bool) -> str:
    return "2" if person else "1"


ERRORS = _DOCS / "errors.md"
TABLES: list[tuple[Path, str, Callable[[], str]]] = [
    (ERRORS, "answers", answered),
    (ERRORS, "clients", of_clients),
    (ERRORS, "operators", of_operators),
    (ERRORS, "election", of_election),
]


def table_in(document: str, name: str) -> str:
    """The table that a document has between its markers of this name."""
    return document.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->\n")[0]


def write(path: Path, name: str, table: str) -> None:
    """Put a table between the markers of a document."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    head, _, rest = path.read_text().partition(start)
    path.write_text(head + start + table + end + rest.partition(end)[2])


if __name__ == "__main__":
    for path, name, make in TABLES:
        write(path, name, make())
