"""In a terminal of 80 columns no table loses a character: numbers keep their line, texts go on in the next one."""

from __future__ import annotations

import ast
import io
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from replica import cli
from replica.cli import doctor, history, party, trail
from replica.cli.common import PIPE_WIDTH, fixed_width, make_table
from replica.config.load import load_config
from replica.config.model import Config
from replica.doctor.verdict import Finding, Severity
from replica.operators.party_book import PartyPage
from replica.store.bulletin import PastActivation
from tests.unit.cli.test_what_people_see import CONFIG

WIDTH = 80
LONG = "/var/lib/notary/replicas/r1/index is open to other users of this machine, which may read every state and party"
TX = "a89cbd0b1e052bc7a4c08abf43939e375327a6c35d08fba8f8239f693b8f10d9"


class Terminal(Console):
    """A terminal of 80 columns, as the commands use it, that keeps the tables it is given."""

    def __init__(self) -> None:
        self.shown = io.StringIO()
        super().__init__(file=self.shown, width=WIDTH, soft_wrap=True, highlight=False)
        self.tables: list[Table] = []

    def print(self, *objects: Any, **options: Any) -> None:
        self.tables += [one for one in objects if isinstance(one, Table)]
        super().print(*objects, **options)


def characters(text: str) -> Counter[str]:
    return Counter("".join(text.split()))


def check(table: Table) -> None:
    """Nothing is cut, wherever the lines end, and no number is broken."""
    shown = io.StringIO()
    Console(file=shown, width=WIDTH, highlight=False).print(table)
    printed = shown.getvalue()
    assert max(map(len, printed.splitlines())) <= WIDTH
    cells = [str(cell) for column in table.columns for cell in column.cells]
    heads = [str(column.header) for column in table.columns] if table.show_header else []
    wanted = characters(str(table.title or "") + "".join(Text.from_markup(cell).plain for cell in [*cells, *heads]))
    assert wanted <= characters(printed), printed
    numbers = [Text.from_markup(str(cell)).plain for one in table.columns if one.no_wrap for cell in one.cells]
    assert all(number in printed for number in numbers), printed


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], Terminal]:
    def make(module: ModuleType) -> Terminal:
        found = Terminal()
        monkeypatch.setattr(module, "out", found)
        return found

    return make


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    (tmp_path / "notary.toml").write_text(CONFIG.format(health_port=15992, database_port=1))
    (tmp_path / "database.password").touch(mode=0o600)
    return load_config(tmp_path / "notary.toml")


@pytest.mark.parametrize(
    ("terminal", "columns", "width"),
    [(True, "", None), (False, "80", None), (False, "", PIPE_WIDTH), (False, "wide", PIPE_WIDTH)],
)
def test_a_pipe_is_as_wide_as_columns_says(terminal: bool, columns: str, width: int | None) -> None:
    """Goal: who pages a table through a pipe can say how wide. Method: with a number, without, and with a word."""
    assert fixed_width(terminal, columns) == width


def test_doctor(terminal: Any, settings: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what is wrong, and what to do, in full. Method: findings with long paths."""
    shown = terminal(doctor)
    findings = [
        Finding("clock-synchronised", Severity.WARNING, LONG, f"chmod 700 {LONG.split(maxsplit=1)[0]}"),
        Finding("active", Severity.PROBLEM, "no replica answers", "systemctl start notary@r1: runbooks/failover.md"),
    ]

    def nothing(work: Any) -> None:
        work.close()

    monkeypatch.setattr(doctor, "load", lambda _: settings)
    monkeypatch.setattr(doctor, "find_config", lambda _: Path("notary.toml"))
    monkeypatch.setattr(doctor, "run", nothing)
    monkeypatch.setattr("replica.doctor.checks.examine", lambda _: findings)
    with pytest.raises(BaseException, match="1"):
        doctor.examine()
    (table,) = shown.tables
    check(table)
    assert f"to do: chmod 700 {LONG.split(maxsplit=1)[0]} " in shown.shown.getvalue(), "a path is broken over two lines"
    assert "2 checks: 1 problem, 1 warning, 0 well" in shown.shown.getvalue()


def test_history(terminal: Any, settings: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: times and reasons in full. Method: epochs of six digits, one that ended and one that was found over."""
    shown = terminal(history)
    at = datetime(2026, 11, 22, 21, 4, 5, 678901, tzinfo=UTC)
    reason = "activation_failed HA_LOCK_LOST: the server closed the connection unexpectedly, session 4711"
    past = [
        PastActivation(123_456, "notary-r1", at, at, at + timedelta(days=12), reason, None, None),
        PastActivation(123_457, "notary-r2", at, None, None, None, at + timedelta(hours=30), "notary-r3"),
        PastActivation(1, "notary-r1", datetime.fromtimestamp(0, UTC), None, at, "switchover", None, None),
    ]

    def answer(work: Any) -> tuple[list[PastActivation], None]:
        work.close()
        return past, None

    monkeypatch.setattr(history, "load", lambda _: settings)
    monkeypatch.setattr(history, "find_config", lambda _: Path("notary.toml"))
    monkeypatch.setattr(history, "run", answer)
    history.show()
    (table,) = shown.tables
    check(table)
    assert "2026-11-22 " in shown.shown.getvalue(), "a moment is broken over two lines"
    assert "1970" not in shown.shown.getvalue()
    assert "max 30:00:00.000" in shown.shown.getvalue(), "how long at most, where nobody saw the end"


def test_an_empty_trail_says_so(terminal: Any, settings: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no head without a table. Method: a trail without entries."""
    shown = terminal(trail)

    def answer(work: Any) -> list[bytes]:
        work.close()
        return []

    monkeypatch.setattr(trail, "load", lambda _: settings)
    monkeypatch.setattr(trail, "find_config", lambda _: Path("notary.toml"))
    monkeypatch.setattr(trail, "run", answer)
    trail.show()
    assert (shown.shown.getvalue(), shown.tables) == ("nobody has acted on this participant yet\n", [])


def test_a_log_without_parties_says_whose_keys_count(
    terminal: Any, settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a newcomer is not told that there are no parties. Method: nothing registered in the log."""
    shown = terminal(party)

    def answer(work: Any) -> PartyPage:
        work.close()
        return PartyPage("4c" * 16, [], 0, 0, [], False)

    monkeypatch.setattr(party, "load", lambda _: settings)
    monkeypatch.setattr(party, "find_config", lambda _: Path("notary.toml"))
    monkeypatch.setattr(party, "run", answer)
    party.show()
    assert "every request is refused" in " ".join(shown.shown.getvalue().split())
    assert shown.tables == []


def test_a_table_that_cuts_is_found() -> None:
    """Goal: the check can fail. Method: a column that may not wrap, and is too long."""
    table = Table("a", "b")
    table.columns[0].no_wrap = True
    table.add_row("x" * 100, "y")
    with pytest.raises(AssertionError):
        check(table)


def tables_in_the_source() -> list[tuple[str, list[str]]]:
    """Each table of a command whose heads stand in its source: the file with the line, and the heads."""
    found = []
    for path in sorted(Path(cli.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "make_table":
                heads = [ast.literal_eval(one) for one in node.args if isinstance(one, ast.Constant)]
                if heads:
                    found.append((f"{path.name}:{node.lineno}", heads))
    return found


@pytest.mark.parametrize(("place", "heads"), [pytest.param(*one, id=one[0]) for one in tables_in_the_source()])
def test_every_table_with_long_texts_and_large_numbers(place: str, heads: list[str]) -> None:
    """Goal: no table of any command cuts. Method: each one's heads, with long texts and numbers of ten digits."""
    table = make_table(*heads)
    table.add_row(*("1,498,378,123" if head.startswith(">") else f"{TX} {LONG}" for head in heads))
    check(table)


def test_every_table_is_made_by_the_one_function() -> None:
    """Goal: the tests above see all of them. Method: who names rich's class; and the tables are found at all."""
    makers = [path.name for path in Path(cli.__file__).parent.rglob("*.py") if " Table(" in path.read_text()]
    assert makers == ["common.py"]
    assert len(tables_in_the_source()) >= 20
