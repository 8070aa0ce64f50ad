"""Any content of a file that an operator names: a document, or an error of ours with exit code 2. No traceback."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from replica.acting.party_file import read_party_file
from replica.cli.main import main
from replica.config.load import load_config
from replica.notary.errors import BadRequest, ConfigError
from replica.notary.keys import read_keys
from replica.notary.receipts import make_receipts, receipt_to_document
from replica.notary.untrusted import read_bounded

ROOT = Path(__file__).parents[3]
DEEP = 100_000
DECODERS_RAISE = {"DecodeError", "TOMLDecodeError", "JSONDecodeError"}
HOSTILE = {
    "empty": b"",
    "no text": b"\xff\xfe\x00",
    "deep list": b"[" * DEEP,
    "deep list, closed": b"[" * DEEP + b"]" * DEEP,
    "deep object": b'{"receipt":' * DEEP,
    "deep part": b'{"receipt": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep extra": b'{"extra": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "deep TOML": b"a = " + b"[" * DEEP + b"]" * DEEP,
    "surrogate": b'{"receipt": "\\ud800"}',
    "numbers": b'{"receipt": {"leaf_index": ' + b"9" * 5_000 + b', "tree_size": 1e400}}',
    "NUL": b'{"receipt": "\\u0000"}\n\x00',
}
NOTARY = SigningKey(b"\x02" * 32)
KEY = bytes(NOTARY.verify_key).hex()
COMMANDS = {  # each way in which the command line reads a document from a file
    "a receipt": ["verify", "FILE", "--notary-key", KEY],
    "a request": ["verify", "GOOD", "--notary-key", KEY, "--request", "FILE"],
    "keys": ["verify", "GOOD", "--notary-keys", "FILE"],
    "submissions": ["submit", "FILE", "--endpoint", "http://127.0.0.1:9"],
    "a configuration": ["config", "check", "--config", "FILE"],
    "a configuration that is shown": ["config", "show", "--config", "FILE"],
}


def good_receipt() -> bytes:
    """One that verifies by KEY."""
    pairs = [(bytes(32), bytes(32))]
    (receipt,) = make_receipts(pairs, bytes.fromhex(KEY), lambda message: NOTARY.sign(message).signature)
    return msgspec.json.encode(receipt_to_document(receipt))


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_file_ends_a_command_with_a_traceback(
    command: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: exit code 2 and an error of ours. Method: each hostile file in each place where a command reads one."""
    (tmp_path / "hostile").write_bytes(HOSTILE[what])
    (tmp_path / "good").write_bytes(good_receipt())
    names = {"FILE": str(tmp_path / "hostile"), "GOOD": str(tmp_path / "good")}
    monkeypatch.setattr(sys, "argv", ["notary", *(names.get(word, word) for word in COMMANDS[command])])
    with pytest.raises(SystemExit) as ended:
        main()
    nothing_to_submit = (command, what) == ("submissions", "empty")
    assert ended.value.code == (0 if nothing_to_submit else 2)
    told = capsys.readouterr().err
    assert nothing_to_submit or told.startswith("CONFIG_INVALID: ")
    assert len(told) < 5_000


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("read", [read_party_file, read_keys, load_config])
def test_files_that_are_read_again_while_a_replica_runs(read: object, what: str, tmp_path: Path) -> None:
    """Goal: the old ones stay in force, which takes an error that is expected. Method: each hostile file."""
    (tmp_path / "file").write_bytes(HOSTILE[what])
    with pytest.raises(ConfigError):
        read(tmp_path / "file")  # type: ignore[operator]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass")))
def test_noise(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    """Goal: as above. Method: bytes and texts of every kind."""
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(raw)
    for read in (read_party_file, read_keys, load_config):
        with pytest.raises(ConfigError):
            read(path)


def test_a_file_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    """Goal: memory is bounded. Method: a sparse file larger than any document, and one that has no end."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    for path in (tmp_path / "large", Path("/dev/zero")):
        with pytest.raises(BadRequest, match="more than"):
            read_bounded(path, 1_000)


def test_whoever_catches_a_decoders_error_catches_deep_nesting_as_well() -> None:
    """Goal: the next reader does not forget it. Method: each `except` of the product that names a decoder's error."""
    forgetful = []
    for room in ("replica", "ha", "ledger_api", "haproxy", "pipeline"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Try) and (line := _forgets_depth(node)):
                    forgetful.append(f"{path.relative_to(ROOT)}:{line}")
    assert forgetful == []


def _forgets_depth(node: ast.Try) -> int:
    """The line of a handler for a decoder's error, where none of its `try` catches deep nesting; else 0."""
    caught = [(handler.lineno, _names(handler.type)) for handler in node.handlers]
    everything = set().union(*(names for _, names in caught))
    if everything & {"RecursionError", "UNREADABLE", "Exception"}:
        return 0
    return next((line for line, names in caught if names & DECODERS_RAISE), 0)


def _names(kind: ast.expr | None) -> set[str]:
    if kind is None:
        return {"Exception"}
    nodes = list(ast.walk(kind))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }
