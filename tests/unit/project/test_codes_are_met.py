"""Each stable code is met by a test that looks at what a client or an operator sees: an answer, or a command's output.

A test counts that has the code's name in a text, and lies where commands, servers and clients are run. Tests of inner
parts name codes as members of `Code`, which does not count: nobody sees that. Nor does a set of several codes: a
list of what is allowed, or must never come, is no meeting.

How each code is printed and answered is in tests/golden/seen/, for whoever reviews a change.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from replica.notary.codes import Code
from tests.golden.seen import CASE, FILES, FOLDER, commands, election_errors

TESTS = Path(__file__).parents[2]
OUTSIDE = ("integration", "runbooks", "faults", "lognode", "pipeline", "clients", "unit/cli")


def texts(source: str) -> Iterator[str]:
    """The texts of a program; its docstrings and its sets of several are left out."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    several = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Set) and len(node.elts) > 1
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in docstrings | several:
            continue
        if isinstance(node.value, bytes):  # of an answer as it was on the wire
            yield node.value.decode(errors="replace")
        elif isinstance(node.value, str):
            yield node.value


def met() -> set[str]:
    """The codes that tests of what people see have in a text."""
    words: set[str] = set()
    for folder in OUTSIDE:
        for file in sorted((TESTS / folder).rglob("*.py")):
            for text in texts(file.read_text()):
                words.update(re.findall(r"\b[A-Z][A-Z_]+\b", text))
    return words & set(Code.__members__)


def test_each_code_is_met_where_people_see_it() -> None:
    """Goal: no code that nobody has ever seen printed. Method: texts of tests against the catalogue."""
    assert set(Code.__members__) - met() == set()


def test_what_counts_as_met() -> None:
    """Goal: the test above can fail. Method: a text, a member of the enum, a docstring, sets."""
    source = '''def test() -> None:
    """NOT_ACTIVE"""
    assert Code.OVERLOADED
    assert "KEY_UNSAFE: x" in err
    assert codes == {"LOG_MISSING"}
    assert codes <= {"OVERLOADED", ("503", "USER_OVERLOADED")}
'''
    assert list(texts(source)) == ["KEY_UNSAFE: x", "LOG_MISSING"]


@pytest.mark.parametrize("name", FILES)
def test_each_code_is_printed_and_answered_as_it_was_read(name: str) -> None:
    """Goal: whoever changes what people see reads it. Method: what the product's own printer and renderer give, against
    the file; after reading, `python -m tests.golden.seen` writes it."""
    assert FILES[name]() == (FOLDER / name).read_text()


def test_no_code_is_left_out_of_what_was_read() -> None:
    """Goal: the test above cannot pass by finding nothing. Method: the first words of each printed error."""
    told = [line.partition(":")[0] for line in commands().splitlines() if line.endswith(f": {CASE}")]
    assert sorted(told) == sorted([*Code.__members__, *(kind.code for kind in election_errors()), "INTERNAL"])
