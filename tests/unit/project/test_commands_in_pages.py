"""Every `notary …` and `make …` on a page is a command that exists, with options that it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer import TyperException
from typer.core import TyperGroup

from replica.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "runbooks").glob("*.md")),
    *sorted((ROOT / "clients").glob("*/README.md")),
    *sorted((ROOT / "deploy").glob("**/README.md")),
]
CLI = typer.main.get_command(app)
WHOLE_MIN, NAMED_MIN = 120, 120
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
_ANY = {"Path", "str", "FileBinaryRead"}  # any text will do
_PLACEHOLDER = re.compile(r"\$.*|<.*>|[A-Z_]+")  # for a number, or for one of a few words
_SHELL = {"", "sh", "bash", "console"}
_COMMAND = re.compile(
    r"""(?:^|[|;&(`]|\b(?:do|then|until|while|exec|sudo|try)\ |['"$(]|\w=\S*\ )\s*  # where a command begins
        ((?:[\w./]*/)?(?:notary|make))(?=\s|$)
        ((?:"[^"\n]*"|'[^'\n]*'|<\w+>|[^|;&<>()'"\#`\n]|(?<=\S)\#)*)""",
    re.VERBOSE | re.MULTILINE,
)


class Printed(NamedTuple):
    """A command on a page. `whole`: to be copied as it stands; else it is a name in a sentence, and may be short."""

    page: str
    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def commands(text: str, page: str) -> Iterator[Printed]:
    """The commands of a page: those in blocks, and those that its sentences name."""
    for kind, part in parts(text):
        if kind in _SHELL:
            yield from (Printed(page, words, whole=True) for words in _in_shell(part))
        elif kind == "sentences":
            for named in re.findall(r"`([^`]+)`", part):
                yield from (Printed(page, words, whole=False) for words in _in_shell(" ".join(named.split())))


def parts(text: str) -> Iterator[tuple[str, str]]:
    """A page in pieces: the language of each block ("": none is given), or "sentences", and the lines."""
    kind, lines, fenced = "sentences", list[str](), False
    for line in [*text.splitlines(), ""]:
        fence = re.match(r" *```([a-z]*)", line)
        begins = "sentences" if fenced else fence[1] if fence else ""
        if fence is None:
            indented = line.startswith("    ") and not fenced
            begins = kind if fenced or not line else "" if indented else "sentences"
        if fence is not None or begins != kind:
            yield kind, "\n".join(lines) + "\n"
            kind, lines = begins, []
            fenced = not fenced if fence is not None else fenced
        if fence is None:
            lines.append(line)
    yield kind, "\n".join(lines) + "\n"


def _in_shell(text: str) -> Iterator[tuple[str, ...]]:
    for found in _COMMAND.finditer(text.replace("\\\n", " ")):
        arguments = re.sub(r"\s#.*|…", "", found[2])
        arguments = re.sub(r"[\[\]]", "", arguments)  # optional words of a synopsis
        arguments = re.sub(r"\s[12]?>.*|\s[12]$", "", arguments)
        try:
            words = shlex.split(arguments)
        except ValueError:  # it ends within a quotation of the shell around it
            words = shlex.split(arguments.replace("'", "").replace('"', ""))
        yield (Path(found[1]).name, *words)


def wrong(command: Printed) -> str:
    """What is wrong with a command; empty when nothing is."""
    program, *words = command.words
    if program == "make":
        named = [word for word in words if "=" not in word and not word.startswith("-")]
        return "" if set(named) <= TARGETS else f"no such target: {named}"
    try:
        _parse(CLI, words, whole=command.whole)
    except TyperException as error:
        return str(error)
    return ""


def _parse(command: Any, words: list[str], *, whole: bool) -> None:
    """Raises TyperException. Nothing is looked up on this machine: no file has to exist."""
    context = typer.Context(command, info_name=command.name)
    if isinstance(command, TyperGroup):
        if not words or words[0].startswith("-"):
            command.make_parser(context).parse_args(words)
            return
        found = command.get_command(context, words[0])
        if found is None:
            raise TyperException(f"no such command: {words[0]}")
        _parse(found, words[1:], whole=whole)
        return
    values, left, _ = command.make_parser(context).parse_args(list(words))
    if left:
        raise TyperException(f"too many words: {left}")
    for parameter in command.params:
        given = values.get(parameter.name)
        for one in given if isinstance(given, list | tuple) else [given]:
            is_text = isinstance(one, str) and not _PLACEHOLDER.fullmatch(one)
            if is_text and not any(name in parameter.bare_type() for name in _ANY):  # a number, or one of a few words
                parameter.process_value(context, given)
        if whole and parameter.required and not given and "help" not in values:
            raise TyperException(f"{parameter.name} is missing")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_command_on_a_page_is_one_that_exists(page: Path) -> None:
    """Goal: whoever copies a command gets no usage error. Method: the command line's own parser, without running it."""
    printed = {*commands(page.read_text(), page.name)}
    assert [f"{command}: {problem}" for command in printed if (problem := wrong(command))] == []


def test_the_pages_have_commands() -> None:
    """Goal: the test above cannot pass by finding nothing. Method: count those to copy, and those in sentences."""
    found = {command for page in PAGES for command in commands(page.read_text(), page.name)}
    assert sum(command.whole for command in found) > WHOLE_MIN
    assert sum(not command.whole for command in found) > NAMED_MIN


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```sh\nnotary switchover --too r2\n```\n", "No such option: --too"),
        ("```sh\nnotary switch-over\n```\n", "no such command"),
        ("```sh\nnotary keys create a b c\n```\n", "too many words"),
        ("```sh\nnotary haproxy render --keepalived third -o x\n```\n", "third"),
        ("```sh\nnotary store prune --up-to all\n```\n", "valid integer"),
        ("Ask `notary switchover --to`.\n", "requires an argument"),
        ("```sh\ntimeout 9 sh -c 'until notary statuss; do sleep 1; done'\n```\n", "no such command"),
        ("```sh\nnotary sign --imput x |\n    curl -sS x\n```\n", "No such option: --imput"),
        ("    .venv/bin/notary dokter   # what is wrong\n", "no such command"),
        ("Ask `notary doctor --jason`.\n", "No such option: --jason"),
        ("    make rum ARGS=--exit\n", "no such target"),
    ],
)
def test_a_misspelt_command_is_found(text: str, complaint: str) -> None:
    """Goal: the test above can fail. Method: one mistake of each kind, in each place where pages have commands."""
    assert [wrong(command) for command in commands(text, "x.md")] != [""]
    assert any(complaint in wrong(command) for command in commands(text, "x.md"))


MAIN_PAGES = [page for page in PAGES if page.parent in {ROOT, ROOT / "docs"}]
GROUPS = {name for name, command in CLI.commands.items() if isinstance(command, TyperGroup)}  # "`notary trace`"
PLAYED = [
    *(path for room in ("integration", "pipeline", "lognode") for path in (ROOT / "tests" / room).rglob("test_*.py")),
    *(ROOT / "tests/unit/cli" / name for name in ("test_config.py", "test_party.py", "test_codes_that_people_see.py")),
    *sorted((ROOT / "runbooks").glob("*.md")),
    *sorted((ROOT / "docs").glob("install*.md")),
]
"""What runs commands: tests on real servers, pages that tests play, and tests of commands that need no server."""

NOT_EXECUTED = {
    "recovery drill": "minutes; tests/pipeline/test_drill.py runs it, tests/unit/cli/test_drill.py its judgement",
}


def name_of(words: tuple[str, ...]) -> str:
    """The command's own words, without arguments."""
    command, names = CLI, list[str]()
    for word in words[1:]:
        if not isinstance(command, TyperGroup) or word not in command.commands:
            break
        names.append(word)
        command = command.commands[word]
    return " ".join(names)


def test_each_command_of_readme_and_docs_is_run_somewhere_or_has_a_reason() -> None:
    """Goal: a new command on a page gets its test. Method: those in blocks and in sentences, looked for in what is
    played."""
    found = {command for page in MAIN_PAGES for command in commands(page.read_text(), page.name)}
    named = {name_of(command.words) for command in found if command.words[0] == "notary"} - {""} - GROUPS
    played = "\n".join(re.sub(r"""["',\s]+""", " ", path.read_text()) for path in PLAYED)
    run = {name for name in named if re.search(rf"(?:notary|cli|run|\(|\*|argv = \[) ?{re.escape(name)}\b", played)}
    assert named - run == set(NOT_EXECUTED)
