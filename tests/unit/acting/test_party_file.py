"""A file of parties and keys: written whole, read strictly."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from replica.acting.party_file import ALWAYS, check_party, read_party_file, write_party_file
from replica.notary.codes import Code
from replica.notary.errors import BadRequest, ConfigError
from replica.notary.requests import TIME_MAX_US, make_request
from tests.worlds.beginning import LEDGER

KEY_A, KEY_B = "ab" * 32, "cd" * 32
PARTIES = {
    "O=Bank A,L=London,C=GB": [KEY_A],
    'CN=A \\"quoted\\" \\, name,O=Bänk Ü,C=DE': [KEY_A, KEY_B],
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Goal: names with anything legal in them survive the file. Method: quotes, commas, umlauts, several keys."""
    path = tmp_path / "parties.toml"
    write_party_file(path, PARTIES)
    expected = {(party, bytes.fromhex(key)): ALWAYS for party, keys in PARTIES.items() for key in keys}
    assert read_party_file(path) == expected
    assert [entry.name for entry in tmp_path.iterdir()] == ["parties.toml"]


@pytest.mark.parametrize(
    "text",
    [
        "[parties",
        "",
        "parties = 1",
        f'[parties]\n"O=A" = ["{KEY_A}"]\n[more]\n',
        f'[parties]\n"Bank A" = ["{KEY_A}"]',
        f'[parties]\n"O=A, C=GB" = ["{KEY_A}"]',
        f'[parties]\n"o=A" = ["{KEY_A}"]',
        f'[parties]\n"2.5.4.10=A" = ["{KEY_A}"]',
        f'[parties]\n"" = ["{KEY_A}"]',
        '[parties]\n"O=A" = []',
        f'[parties]\n"O=A" = "{KEY_A}"',
        '[parties]\n"O=A" = ["abcd"]',
        '[parties]\n"O=A" = [1]',
        f'[parties]\n"O=A" = ["{KEY_A}"]\n"O=A" = ["{KEY_B}"]',
        f'[parties]\n"O=A" = [{{key = "{KEY_A}", from = 5}}]',
        f'[parties]\n"O=A" = [{{key = "{KEY_A}", till = 2027-01-01T00:00:00Z}}]',
        f'[parties]\n"O=A" = [{{key = "{KEY_A}", until = "2027-01-01"}}]',
        f'[parties]\n"O=A" = [{{key = "{KEY_A}", until = 2027-01-01T00:00:00}}]',
        '[parties]\n"O=A" = [{until = 2027-01-01T00:00:00Z}]',
        f'[parties]\n"O=A" = [{{key = "{KEY_A}", from = 2027-01-01T00:00:00Z, until = 2026-01-01T00:00:00Z}}]',
        f'[parties]\n"O=A" = ["{KEY_A}", {{key = "{KEY_A}", until = 2027-01-01T00:00:00Z}}]',
    ],
)
def test_a_file_that_is_not_right_is_refused(tmp_path: Path, text: str) -> None:
    """Goal: nobody gets in or out by a typing error. Method: one broken file each."""
    path = tmp_path / "parties.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_party_file(path)


def test_each_key_has_its_period(tmp_path: Path) -> None:
    """Goal: rotation with an overlap. Method: an old key with an end, a new one with a beginning; one before 1970."""
    path, day_us = tmp_path / "parties.toml", 86_400_000_000
    path.write_text(
        "[parties]\n"
        f'"O=A" = [{{key = "{KEY_A}", until = 1970-01-03T00:00:00Z}},'
        f' {{key = "{KEY_B}", from = 1970-01-02T00:00:00Z}}]\n'
        f'"O=B" = [{{key = "{KEY_A}", from = 0001-01-01T00:00:00Z}}]\n'
    )
    assert read_party_file(path) == {
        ("O=A", bytes.fromhex(KEY_A)): (0, 2 * day_us),
        ("O=A", bytes.fromhex(KEY_B)): (day_us, TIME_MAX_US),
        ("O=B", bytes.fromhex(KEY_A)): (0, TIME_MAX_US),
    }


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    """Goal: an error that names the file, not a trace. Method: bytes that are no UTF-8, and no file."""
    path = tmp_path / "parties.toml"
    with pytest.raises(ConfigError, match=r"parties\.toml"):
        read_party_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"parties\.toml"):
        read_party_file(path)


@pytest.mark.parametrize("parties", [{"Bank A": [KEY_A]}, {"O=A": ["abcd"]}, {"O=A": []}, {"O=" + "a" * 600: [KEY_A]}])
def test_nothing_wrong_is_written(tmp_path: Path, parties: dict[str, list[str]]) -> None:
    """Goal: the helper cannot make a file that an import refuses. Method: bad entries; the old file stays."""
    path = tmp_path / "parties.toml"
    write_party_file(path, {"O=A": [KEY_A]})
    before = path.read_text()
    with pytest.raises(ConfigError):
        write_party_file(path, parties)
    assert path.read_text() == before


def test_names_hold_what_requests_may_hold(tmp_path: Path) -> None:
    """Goal: one list of characters, the one of docs/formats.md. Method: every tenth character and all near the list's
    ends: what a request may name can be registered, and nothing else."""
    path = tmp_path / "parties.toml"
    listed = [*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
    near = {code + step for code in listed for step in (-1, 0, 1) if code + step >= 0}
    for code in sorted({*near, 0xAD, 0x200C, 0x200D, 0x0378, 0xE000, *range(0x100, 0x3000, 10)}):
        party = f"CN=A{chr(code)}B"
        if chr(code) in ',+"\\<>;=#':
            continue  # RFC 4514 has them escaped
        if code in listed:
            with pytest.raises(ConfigError):
                check_party(party)
            with pytest.raises(BadRequest):
                make_request(bytes(32), [], [], None, party, ledger_id=LEDGER)
        else:
            write_party_file(path, {party: [KEY_A]})
            assert list(read_party_file(path)) == [(party, bytes.fromhex(KEY_A))]
            assert make_request(bytes(32), [], [], None, party, ledger_id=LEDGER).party == party


def test_a_file_that_others_can_write_is_refused_and_none_is_written(tmp_path: Path) -> None:
    """Goal: a key that somebody else added never counts. Method: a careless mode; then the product's own file, with an
    umask of 0."""
    path = tmp_path / "parties.toml"
    write_party_file(path, {"O=A": [KEY_A]})
    path.chmod(0o664)
    with pytest.raises(ConfigError) as refused:
        read_party_file(path)
    assert refused.value.code is Code.TRUST_UNSAFE
    before = os.umask(0)
    try:
        write_party_file(path, {"O=A": [KEY_B]})
    finally:
        os.umask(before)
    assert (path.stat().st_mode & 0o777, len(read_party_file(path))) == (0o640, 1)


HOSTILE = [
    *(b"", b"\xff", b"[parties]", b"[parties", b"parties = 1", b"[[parties]]", b"a = " + b"[" * 100_000, b"x = 1e400"),
    *(
        b"[parties]\n%b = %b\n" % (name, keys)
        for name in (b'"CN=A"', b'""', b'"\\u200D"')
        for keys in (b"1", b"[1]", b'[""]')
    ),
    b'[parties]\n"CN=A" = [{key = 1}]\n',
    b'[parties]\n"CN=A" = [{key = "%b", from = 0001-01-01T00:00:00+23:59}]\n' % (b"00" * 32),
    b'[parties]\n"CN=A" = [{key = "%b", until = 9999-12-31T23:59:59-23:59}]\n' % (b"00" * 32),
    b'[parties]\n"CN=A" = [{key = "%b", from = nan}]\n' % (b"00" * 32),
]


@pytest.mark.parametrize("raw", HOSTILE)
def test_whatever_a_file_has_is_read_or_refused(raw: bytes, tmp_path: Path) -> None:
    """Goal: a hostile file ends in an error with a code. Method: nesting, numbers and times beyond all bounds."""
    path = tmp_path / "parties.toml"
    path.write_bytes(raw)
    with suppress(ConfigError):
        read_party_file(path)
