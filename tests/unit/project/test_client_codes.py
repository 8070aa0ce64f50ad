"""The catalogue of errors in the clients that are written in other languages, without building them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from replica.notary.codes import Code, Retry

CLIENTS = Path(__file__).parents[3] / "clients"
JAVA = CLIENTS / "java/src/main/java/org/replicatednotary/client/Code.java"
TYPESCRIPT = CLIENTS / "typescript/src/codes.ts"


@pytest.mark.parametrize(
    ("source", "line"), [(JAVA, r"^    ([A-Z_]+)\(Retry\.(NO|SAME)\)"), (TYPESCRIPT, r'^  ([A-Z_]+): "(no|same)"')]
)
def test_a_client_knows_every_code_that_an_application_can_meet(source: Path, line: str) -> None:
    """Goal: a new code reaches all clients. Method: compare names and retries with the catalogue."""
    known = {name: Retry(retry.lower()) for name, retry in re.findall(line, source.read_text(), re.MULTILINE)}
    assert {code.name for code in Code if code.status} - known.keys() == set()
    assert known == {name: Code[name].retry for name in known}
