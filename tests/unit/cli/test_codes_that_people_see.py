"""Codes of the catalogue as a person meets them: a command line, what it prints, its exit code. No server runs."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.audit.audit import AuditReport
from pipeline.audit.findings import Finding, FindingCode
from replica.active.signer import create_key
from replica.cli import audit
from replica.notary.codes import Code
from tests.unit.cli.test_what_people_see import folder, see, write  # noqa: F401  (fixtures)
from tests.worlds.trails import PEOPLE, kept_here, trail_of

OPERATORS = '[operators]\nfour_eyes = ["prune"]\nkeys_file = "operators.toml"\n{}\n[api]'


def told(text: str, code: str) -> bool:
    """Whether the code stands first, and its remedy follows on a line of its own."""
    line = next((line for line in text.splitlines() if line.startswith(f"{code}: ")), None)
    return line is not None and Code[code].remedy in text


def test_an_act_without_a_reason(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: it is refused before anything is asked of a server. Method: each command that needs only its words."""
    write(folder, "[api]", "[operators]\nreason_required = true\n[api]")
    for words in (("resume",), ("switchover",), ("store", "prune"), ("keys", "rotate", "new.key")):
        if words[0] == "keys":
            create_key(folder / "notary.key")
        seen = see(*words)
        assert (seen.code, told(seen.err, "REASON_MISSING")) == (2, True), words
    assert not (folder / "new.key").exists()
    assert "at most 200 characters" in see("resume", "--reason", "x" * 201).err


def test_an_act_of_one_person_where_two_are_wanted(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: nothing is done alone. Method: without a confirmation; a confirmation without a key of one's own."""
    write(folder, "[api]", OPERATORS.format(""))
    key = create_key(folder / "notary.key").hex()
    (folder / "operators.toml").write_text(f'[[operators]]\nname = "anna"\npublic_key = "{key}"\n')
    seen = see("store", "prune")
    assert (seen.code, told(seen.err, "FOUR_EYES_NEEDED")) == (1, True)
    seen = see("store", "prune", "--propose")
    assert (seen.code, "operators.key_file" in seen.err) == (2, True)
    seen = see("doctor", "--json")
    found = {one["check"]: one["text"] for one in json.loads(seen.out)["findings"]} if seen.out else {}
    assert "four eyes need 2" in found["operator-keys"]


def test_a_trail_that_does_not_answer(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: what needs its entry says that it was not done. Method: no database; required, and by its nature."""
    create_key(folder / "notary.key")
    seen = see("trail", "record", "party-change", "--reason", "bank 7 is new")
    assert (seen.code, told(seen.err, "TRAIL_UNAVAILABLE"), "was not done" in seen.err) == (1, True, True)
    write(folder, "[api]", "[operators]\ntrail_required = true\n[api]")
    seen = see("store", "prune")
    assert (seen.code, told(seen.err, "TRAIL_UNAVAILABLE")) == (1, True)
    assert see("trail", "record", "a b", "--reason", "x").code == 2


def test_a_trail_that_was_changed(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: an export is verified with nothing but keys. Method: whole; a kept cursor; changed; another's key; cut."""
    keys = [f"{name}={bytes(key.verify_key).hex()}" for name, key in PEOPLE.items()]
    options = [word for key in keys for word in ("--key", key)]
    lines = trail_of({}, {"who": "ben"}, {"who": "notary"})
    export = folder / "trail.jsonl"
    export.write_bytes(b"\n".join(lines) + b"\n")
    assert see("trail", "verify", "trail.jsonl", *options).code == 0
    head = json.loads(see("trail", "verify", "trail.jsonl", *options, "--json").out)["head"]
    assert see("trail", "verify", "trail.jsonl", *options, "--head", head).code == 0
    for text in (
        b"\n".join(lines).replace(b'"machine"', b'"another"', 1),
        b"\n".join([lines[0], lines[2]]),
        b"\n".join(lines[:2]),
    ):
        export.write_bytes(text)
        seen = see("trail", "verify", "trail.jsonl", *options, "--head", head)
        assert (seen.code, told(seen.err, "TRAIL_BROKEN"), "TRAIL_BROKEN: entry" in seen.err) == (1, True, True)
    export.write_bytes(b"\n".join(lines))
    seen = see("trail", "verify", "trail.jsonl", *options[:2])
    assert (seen.code, "TRAIL_BROKEN: entry 2 is signed by a key that is nobody's" in seen.err) == (1, True)
    assert see("trail", "verify", "trail.jsonl", "--key", "anna=00").code == 2
    assert see("trail", "verify", "trail.jsonl", *options, "--head", "3:00").code == 2


def test_codes_of_files_and_settings(folder: Path, see) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: code, remedy and exit code of what is found before any server is asked. Method: one mistake each."""
    create_key(folder / "open.key")
    (folder / "open.key").chmod(0o644)
    seen = see("keys", "show", "open.key")
    assert (seen.code, told(seen.err, "KEY_UNSAFE")) == (2, True)
    create_key(folder / "notary.key")
    (folder / "parties.toml").touch()
    (folder / "parties.toml").chmod(0o666)
    seen = see("party", "import", "parties.toml")
    assert (seen.code, told(seen.err, "TRUST_UNSAFE")) == (2, True)
    with pytest.MonkeyPatch.context() as patch:
        kept_here(patch)
        seen = see("store", "prune")
    assert (seen.code, told(seen.err, "NOT_POSSIBLE_NOW")) == (2, True)
    write(folder, 'conninfo = "host=127.0.0.1', 'conninfo = "host=db.example')
    seen = see("status")
    assert (seen.code, told(seen.err, "PLAINTEXT_EXPOSED")) == (2, True)
    write(folder, 'kind = "memory"\nmemory.socket_path = "nobody.sock"', 'kafka.bootstrap_servers = "127.0.0.1:1"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTARY_ENDPOINT__HOST", "notary.example")
        patch.setenv("NOTARY_API__TLS", '{"certificate_file": "a", "key_file": "b"}')
        seen = see("status")
    assert (seen.code, told(seen.err, "API_OPEN")) == (2, True)


@pytest.mark.parametrize(("entries", "shown"), [(None, False), (0, True), (3, True)])
def test_an_audit_says_what_is_wrong_and_where(
    monkeypatch: pytest.MonkeyPatch, entries: int | None, shown: bool
) -> None:
    """Goal: findings are read by people; a trail that was not read is not taken for an empty one. Method: a report with
    a finding at an offset and one of the trail, which has none; with the trail and without."""
    found = [
        Finding(FindingCode.TRAIL_BROKEN, -1, "entry 1 is gone"),
        Finding(FindingCode.NOTE_SIGNATURE_INVALID, 5, "the signature under the name 'eve' is not that of the key"),
        Finding(FindingCode.NOT_AN_OFFICER, 6, "the key 00, under the name 'eve', was no officer's"),
    ]
    counts = {one.code.name: 1 for one in found}
    report = AuditReport(7, 0, {}, {}, 2, entries, [], 0, 0, counts, found, None)
    printed = StringIO()
    monkeypatch.setattr(audit, "out", Console(file=printed, width=200))
    audit._print(report)
    lines = printed.getvalue().splitlines()
    assert lines[-4:] == [
        "TRAIL_BROKEN: entry 1 is gone",
        "NOTE_SIGNATURE_INVALID at offset 5: the signature under the name 'eve' is not that of the key",
        "NOT_AN_OFFICER at offset 6: the key 00, under the name 'eve', was no officer's",
        "3 findings",
    ]
    assert any("entries of the operators' trail" in line for line in lines) is shown
