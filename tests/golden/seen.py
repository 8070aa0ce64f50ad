"""Each code as a person meets it, by what the product prints: `python -m tests.golden.seen` writes the files in seen/,
and the tables of docs/errors.md. Read them as whoever meets them first.

`seen/answers.txt`: what an application is answered over HTTP. `seen/commands.txt`: what a command prints on standard
error, what a replica that ends with the code leaves to its supervisor, and whether trying again can help.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
from rich.console import Console

import replica.log.raft.signing  # noqa: F401  (has an error of its own)
from ha.errors import HaError
from ha.invariant import InvariantBroken
from ledger_api.server.replies import PROBLEM, http_head, problem_reply, retry_after_header
from ledger_api.wire.problems import problem_document
from replica.cli import common
from replica.failure import exit_code
from replica.notary.codes import Code, Retry
from replica.notary.errors import ConfigError, NotaryError
from replica.notary.exit_codes import EXIT_CONFIGURATION

FOLDER = Path(__file__).parent / "seen"
CASE = "WHAT HAPPENED HERE"  # the detail, which is another one each time
RETRY_AFTER_S = 0.25
ROOT = Path(__file__).parents[2]
SOURCES = ("replica", "ledger_api", "pipeline")
Known = NotaryError | HaError | InvariantBroken


def answers() -> str:
    """Every answer of the API that is a problem, with status, headers and body."""
    return "\n".join(map(_answer, (code for code in Code if code.status)))


def commands() -> str:
    """Every code as a command prints it."""
    kinds = _kinds()
    errors: list[list[Known]] = [[InvariantBroken(CASE)]]
    errors += [[kind(CASE, code) for kind in kinds.get(code, [NotaryError])] for code in Code]
    errors += [[kind(CASE)] for kind in election_errors()]
    return "\n".join(map(_printed, errors))


@cache
def _kinds() -> dict[Code, list[type[NotaryError]]]:
    """As what each code is raised: a `ConfigError` says that the command line or a setting must be changed first."""
    found: dict[Code, set[bool]] = {}
    for path in (path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            for kind, name in _named_in(node):
                if name in Code.__members__:
                    found.setdefault(Code[name], set()).add(kind == ConfigError.__name__)
    return {code: [ConfigError if one else NotaryError for one in sorted(ways)] for code, ways in found.items()}


def _named_in(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Error class and code, where one is made with a code, or where a class has one."""
    match node:
        case ast.Call(func=ast.Name(id=kind), args=arguments) if kind[0].isupper():
            yield from ((kind, ast.unparse(one).removeprefix("Code.")) for one in arguments)
        case ast.ClassDef(name=kind, body=body):
            for line in body:
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "default_code":
                    yield kind, ast.unparse(line.value).removeprefix("Code.")


def election_errors() -> list[type[HaError]]:
    """The errors of `ha`, one for each code, in the order of their codes."""
    return [kind for _, kind in sorted({kind.code: kind for kind in reversed([*_below(HaError)])}.items())]


def _below(kind: type[HaError]) -> Iterator[type[HaError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _answer(code: Code) -> str:
    after_s = RETRY_AFTER_S if code.retry is Retry.SAME else None
    reply = problem_reply(problem_document(code, CASE, "example-1", retry_after_s=after_s), "example-1")
    head = http_head(reply.code, PROBLEM, "example-1", retry_after_header(after_s)).decode()
    head = re.sub(r"^Date: .*\r\n", "", head, flags=re.MULTILINE).strip().replace("\r\n", "\n")
    return f"{head}\n{msgspec.json.format(reply.content, indent=2).decode()}\n"


def _printed(ways: list[Known]) -> str:
    """Errors of one code: text and retry are the same, the exit code may not be."""
    exit_codes = []
    for error in ways:
        shown = io.StringIO()
        with contextlib.redirect_stderr(shown):
            kept, common.err = common.err, Console(stderr=True, soft_wrap=True, highlight=False)
            try:
                exit_codes.append(common.show_error(error))
            finally:
                common.err = kept
    stays_down = "; a replica ends with 2 and is not started again" if exit_code(ways[0]) == EXIT_CONFIGURATION else ""
    return f"{shown.getvalue()}[retry: {_retry(ways[0])}; exit code {' or '.join(map(str, exit_codes))}{stays_down}]\n"


def _retry(error: Known) -> str:
    match error:
        case NotaryError():
            return error.code.retry.value
        case HaError():
            return Retry.SAME.value if error.retry else Retry.NO.value
        case InvariantBroken():
            return Retry.NO.value


FILES = {"answers.txt": answers, "commands.txt": commands}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, make in FILES.items():
        (FOLDER / name).write_text(make())
