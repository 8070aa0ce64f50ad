"""Writes the lists of error codes into docs/errors.md: `python -m tests.golden.error_table`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ha.errors import HaError
from replica.notary.codes import Code, Retry
from tests.golden.seen import election_errors

_DOCS = Path(__file__).parents[2] / "docs"
IN_CLIENTS = (Code.ANSWER_UNREADABLE, Code.RECEIPT_INVALID, Code.LEDGER_CHANGED)  # no answer, and no replica's


def _list(rows: Iterable[tuple[str, Iterable[str], str]]) -> str:
    """A line for each: code, what stands in parentheses, what it means and what to do."""
    return "".join(f"- `{code}` ({', '.join(filter(None, facts))}): {text}\n" for code, facts, text in rows)


def _retry(code: Code) -> str:
    return "same" if code.retry is Retry.SAME else ""


def _text(code: Code) -> str:
    return f"{code.title}. {code.remedy}"


def answered() -> str:
    """The codes that the API answers with."""
    return _list((c.name, (str(c.status), _retry(c)), _text(c)) for c in Code if c.status)


def of_clients() -> str:
    """The codes that client libraries find by themselves."""
    return _list((c.name, (c.retry.value,), _text(c)) for c in IN_CLIENTS)


def of_operators() -> str:
    """The codes that never leave the participant; each is printed with its remedy."""
    found = [c for c in Code if not c.status and c not in IN_CLIENTS]
    return _list((c.name, (_exit(c.person), _retry(c)), f"{c.title}.") for c in found)


def of_election() -> str:
    """The codes of lock, election and log nodes."""
    return _list((kind.code, (_exit(not kind.retry),), _meaning(kind)) for kind in election_errors())


def _meaning(kind: type[HaError]) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def _exit(person: bool) -> str:
    return "2" if person else "1"


ERRORS = _DOCS / "errors.md"
LISTS: list[tuple[Path, str, Callable[[], str]]] = [
    (ERRORS, "answers", answered),
    (ERRORS, "clients", of_clients),
    (ERRORS, "operators", of_operators),
    (ERRORS, "election", of_election),
]


def list_in(document: str, name: str) -> str:
    """The list that a document has between its markers of this name."""
    return document.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->\n")[0]


def write(path: Path, name: str, lines: str) -> None:
    """Put a list between the markers of a document."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    head, _, rest = path.read_text().partition(start)
    path.write_text(head + start + lines + end + rest.partition(end)[2])


if __name__ == "__main__":
    for path, name, make in LISTS:
        write(path, name, make())
