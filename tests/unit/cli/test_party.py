"""`notary party` as a person meets it: each refusal with what to do, and the export with its verification."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from replica.active.noting import Noted
from replica.active.signer import create_key
from replica.log.memory import MemoryLog, MemoryTopic
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.parties import decode_party_note
from replica.notary.records import RegistrationRecord
from replica.operators.admin import NOTES_MAX, NotesAnswer, NotesCall, PartyListCall
from replica.operators.party_book import PartyKey, PartyPage
from tests.unit.cli.test_codes_that_people_see import told
from tests.unit.cli.test_what_people_see import folder, see, write  # noqa: F401  (fixtures)
from tests.worlds.signed_notes import BERT, FINE, log_of, registration
from tests.worlds.trails import kept_here

PARTY, KEY, OTHER_KEY = "O=Bank A,L=London,C=GB", "ab" * 32, "cd" * 32
FOR_EVER_US = 4 * 10**15


@pytest.fixture
def officer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:  # noqa: F811
    """Anna, whose key signs here; returns her public key."""
    kept_here(monkeypatch)
    key = create_key(folder / "anna.key").hex()
    (folder / "operators.toml").write_text(f'[[operators]]\nname = "anna"\npublic_key = "{key}"\n')
    write(folder, "[api]", '[operators]\nkey_file = "anna.key"\nkeys_file = "operators.toml"\n[api]')
    return key


class Active:
    """The active's admin listener: it has these keys, and logs what is sent to it, or refuses."""

    def __init__(self, patch: pytest.MonkeyPatch, *keys: PartyKey) -> None:
        self.page = PartyPage("4c" * 16, ["ef" * 32], 1, 9, list(keys), False)
        self.refusal = ""
        self.effective = True
        self.noted: list[str] = []
        patch.setattr("replica.acting.admin_calls.ask_admin", self._answer)
        patch.setattr("replica.acting.healths.healths_of", self._healths)

    async def _healths(self, *_: object) -> dict[str, object]:
        return {"r1": SimpleNamespace(leads=True)}

    async def _answer(self, _: object, name: str, call: object, *___: object, path: str) -> object:
        if isinstance(call, PartyListCall):
            return self.page
        if self.refusal:
            raise ConfigError(f"{name}: {self.refusal} (NOT_POSSIBLE_NOW)", Code.NOT_POSSIBLE_NOW)
        assert isinstance(call, NotesCall) and len(call.notes) <= NOTES_MAX
        self.noted += call.notes
        return NotesAnswer([Noted(40 + at, self.effective) for at in range(len(call.notes))])


def in_log(key: str = KEY, period_us: tuple[int, int] = (0, FOR_EVER_US)) -> PartyKey:
    """A registration of the log."""
    return PartyKey(PARTY, key, *period_us, "anna", "ef" * 32, 3, 7)


def test_without_a_key_of_ones_own_nobody_registers(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: it says which setting is missing. Method: each command that signs, where the notary's key would."""
    create_key(folder / "notary.key")
    active = Active(monkeypatch, in_log())
    (folder / "parties.toml").write_text(f'[parties]\n"{PARTY}" = ["{OTHER_KEY}"]\n')
    for words in (
        ("officers", KEY),
        ("add", PARTY, KEY),
        ("revoke", PARTY, KEY),
        ("rotate", PARTY, KEY, OTHER_KEY),
        ("import", "parties.toml"),
    ):
        seen = see("party", *words)
        assert (seen.code, told(seen.err, "CONFIG_INVALID")) == (2, True), words
        assert "set operators.key_file and operators.keys_file" in seen.err
    assert not active.noted


def test_while_no_replica_is_active_nobody_registers(officer: str, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: it says that only the active logs, and to try again. Method: no replica runs."""
    for words in (("add", PARTY, KEY), ("officers", "anna"), ("revoke", PARTY, KEY)):
        seen = see("party", *words)
        assert (seen.code, told(seen.err, "NOT_POSSIBLE_NOW")) == (2, True), words
        assert "no replica is active, and only the active logs registrations" in seen.err
    seen = see("party", "list")
    assert (seen.code, told(seen.err, "REPLICA_UNREACHABLE")) == (2, True)


def test_a_note_without_effect_is_no_success(officer: str, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: nobody believes to have set what the log does not say. Method: the active refuses; then it logs, and
    another note came before; then it has its effect."""
    active = Active(monkeypatch)
    active.refusal = f"{officer} is no officer's key"
    seen = see("party", "add", PARTY, KEY)
    assert (seen.code, told(seen.err, "NOT_POSSIBLE_NOW"), active.noted) == (2, True, [])
    assert f"r1: {officer} is no officer's key" in seen.err
    active.refusal, active.effective = "", False
    seen = see("party", "officers", "anna")
    assert (seen.code, told(seen.err, "NOT_POSSIBLE_NOW"), len(active.noted)) == (2, True, 1)
    assert "logged without effect at offset 40" in seen.err and "notary party list" in seen.err
    active.effective = True
    seen = see("party", "add", PARTY, KEY)
    assert (seen.code, "1 registered, at log offset 40" in seen.out) == (0, True)
    active.page = msgspec.structs.replace(active.page, keys=[in_log()])
    assert see("party", "add", PARTY, KEY.upper()).code == see("party", "revoke", PARTY, KEY).code == 0
    signed = [decode_party_note(bytes.fromhex(note)) for note in active.noted[1:]]
    assert [note.before for note in signed if isinstance(note, RegistrationRecord)] == [0, 3, 3]
    seen = see("party", "add", PARTY, KEY, "--json")
    assert json.loads(seen.out)["log_offsets"] == [40]


def test_what_others_wrote_is_shown_as_it_is(officer: str, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: no name hides or colours a part of itself, or breaks the list. Method: brackets, which names may have."""
    hostile = "O=[b]A[/x],C=GB"  # on one line of its column
    Active(monkeypatch, msgspec.structs.replace(in_log(), party=hostile, operator="[red]anna[/]"))
    seen = see("party", "list")
    flat = "".join(seen.out.split())
    assert (seen.code, hostile in flat, "[red]anna[/]" in flat) == (0, True, True), seen.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", PARTY, "ab"), "ab: a public key"),
        (("add", "Bank A", KEY), "is no X.500 name"),
        (("add", PARTY, KEY, "--until", "2020-01-01T00:00:00Z"), "the period ends before it begins"),
        (("add", PARTY, KEY, "--from", "tomorrow"), "tomorrow"),
        (("officers", "nobody"), "nobody: a public key"),
        (("revoke", PARTY, OTHER_KEY), "the log has no registration of key"),
        (("rotate", PARTY, KEY, KEY), "are the same"),
        (("rotate", PARTY, OTHER_KEY, KEY), "is not in force"),
    ],
)
def test_what_cannot_be_meant_is_named(  # type: ignore[no-untyped-def]
    officer: str,
    see,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    """Goal: a slip costs nothing. Method: one in each argument; the log gets nothing."""
    active = Active(monkeypatch, in_log())
    seen = see("party", *words)
    assert (seen.code, told(seen.err, "CONFIG_INVALID"), said in seen.err) == (2, True, True), seen.err
    assert not active.noted


def test_a_file_that_is_no_registry_is_not_imported(folder: Path, officer: str, see, monkeypatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: a foreign file is named, and nothing is registered. Method: none there; another's; a key that is none; then
    one that the log has in part, of which one differs."""
    active = Active(monkeypatch, in_log(), in_log(OTHER_KEY, (0, 5)))
    other = folder / "other.toml"
    for text, said in (
        (None, "cannot be read"),
        (f'[[operators]]\nname = "anna"\npublic_key = "{officer}"\n', "has one table, [parties]"),
        (f'[parties]\n"{PARTY}" = ["zz"]\n', "other.toml"),
        ("\0", "is no TOML file"),
    ):
        if text is not None:
            other.write_text(text)
        seen = see("party", "import", "other.toml")
        assert (seen.code, told(seen.err, "CONFIG_INVALID"), said in seen.err) == (2, True, True), seen.err
    assert not active.noted
    other.write_text(f'[parties]\n"{PARTY}" = ["{OTHER_KEY}", "{"12" * 32}"]\n')
    seen = see("party", "import", "other.toml")
    assert seen.code == 0 and f"left as it is: the log has another period for key {OTHER_KEY}" in seen.err
    assert "1 registered" in seen.out and len(active.noted) == 1


def test_an_export_goes_on_and_is_verified(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: a SIEM gets each act and registration once, and finds a change by what it has kept. Method: two exports by
    a cursor over a log that grows; the lines whole, in part, changed, cut; a cursor of another log, and none at all."""
    topic = MemoryTopic("a" * 16)
    monkeypatch.setattr("replica.log.open.open_log", lambda _: MemoryLog(topic))
    values = [value for _, value in log_of([*FINE, registration(BERT, 3)])]
    for value in values[:-1]:
        topic.store(value)
    first = see("party", "export", "--cursor-file", "siem.cursor")
    assert (first.code, len(first.out.splitlines())) == (0, len(FINE))
    topic.store(values[-1])
    second = see("party", "export", "--cursor-file", "siem.cursor")
    assert (second.code, [json.loads(line)["log_offset"] for line in second.out.splitlines()]) == (0, [5])
    assert see("party", "export", "--cursor-file", "siem.cursor").out == ""
    assert see("party", "export").out == first.out + second.out
    digest = second.err.split()[-1]
    lines = (first.out + second.out).splitlines(keepends=True)
    file = folder / "export.jsonl"
    for text, begun in ((lines, ""), (lines[2:], "after the line with digest")):
        file.write_text("".join(text))
        seen = see("party", "verify", "export.jsonl", "--head", digest)
        assert (seen.code, f"{len(text)} lines are whole" in seen.out, begun in seen.out) == (0, True, True)
    changed = [*lines[:2], lines[2].replace('"anna"', '"eve"'), *lines[3:]]
    for text, said in (
        (changed, "line 3 is not spelt"),
        ([*lines[:2], *lines[3:]], "line 3 does not name"),
        (lines[:-1], "line 4 is missing"),
    ):
        file.write_text("".join(text))
        seen = see("party", "verify", "export.jsonl", "--head", digest)
        assert (seen.code, told(seen.err, "TRAIL_BROKEN"), f"TRAIL_BROKEN: {said}" in seen.err) == (1, True, True)
    topic.recreate("b" * 16)
    seen = see("party", "export", "--cursor-file", "siem.cursor")
    assert (seen.code, seen.out) == (1, "") and "the position was read from topic id" in seen.err
    (folder / "siem.cursor").write_text("x")
    seen = see("party", "export", "--cursor-file", "siem.cursor")
    assert (seen.code, told(seen.err, "CONFIG_INVALID"), "siem.cursor" in seen.err) == (2, True, True)


def test_a_log_that_was_changed_is_found_by_the_cursor(folder: Path, see, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: an export does not go on over another history. Method: the last record that it read is another one now."""
    topic = MemoryTopic("a" * 16)
    monkeypatch.setattr("replica.log.open.open_log", lambda _: MemoryLog(topic))
    for _, value in log_of(FINE):
        topic.store(value)
    assert see("party", "export", "--cursor-file", "siem.cursor").code == 0
    topic.truncate(topic.end_offset - 1)
    topic.store(log_of([*FINE[:-1], msgspec.structs.replace(FINE[-1], operator="eve")])[-1][1])
    seen = see("party", "export", "--cursor-file", "siem.cursor")
    assert (seen.code, seen.out) == (1, "") and "is not the one that was applied" in seen.err
