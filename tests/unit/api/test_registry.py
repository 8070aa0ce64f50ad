"""The party registry's file: written whole, read strictly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledger_api.server.registry import ALWAYS, Registry, check_party, read_registry, write_registry
from replica.notary.errors import BadRequest, Code, ConfigError
from replica.notary.requests import make_request

KEY_A, KEY_B = "ab" * 32, "cd" * 32
PARTIES = {
    "O=Bank A,L=London,C=GB": [KEY_A],
    'CN=A \\"quoted\\" \\, name,O=Bänk Ü,C=DE': [KEY_A, KEY_B],
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Goal: names with anything legal in them survive the file. Method: quotes, commas, umlauts, several keys."""
    path = tmp_path / "parties.toml"
    write_registry(path, PARTIES)
    expected = {(party, bytes.fromhex(key)): ALWAYS for party, keys in PARTIES.items() for key in keys}
    assert read_registry(path) == expected
    assert [entry.name for entry in tmp_path.iterdir()] == ["parties.toml"]


def test_only_registered_pairs_are_known(tmp_path: Path) -> None:
    """Goal: a key is good for its own party only. Method: all pairs of two parties and two keys."""
    path = tmp_path / "parties.toml"
    write_registry(path, {"O=A": [KEY_A], "O=B": [KEY_B]})
    registry = Registry(path)
    known = [
        registry.period(party, bytes.fromhex(key)) is ALWAYS
        for party in ("O=A", "O=B", "O=C")
        for key in (KEY_A, KEY_B)
    ]
    assert known == [True, False, False, True, False, False]


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
        f'[parties]\n"O=A" = [{{key = "{KEY_A}", till = 2027-01-01T00:00:00Z}}]',
        f'[parties]\n"O=A" = [{{key = "{KEY_A}", until = "2027-01-01"}}]',
        f'[parties]\n"O=A" = [{{key = "{KEY_A}", until = 2027-01-01T00:00:00}}]',
        '[parties]\n"O=A" = [{until = 2027-01-01T00:00:00Z}]',
        f'[parties]\n"O=A" = [{{key = "{KEY_A}", from = 2027-01-01T00:00:00Z, until = 2026-01-01T00:00:00Z}}]',
        f'[parties]\n"O=A" = ["{KEY_A}", {{key = "{KEY_A}", until = 2027-01-01T00:00:00Z}}]',
    ],
)
def test_a_file_that_is_not_right_is_refused_and_changes_nothing(tmp_path: Path, text: str) -> None:
    """Goal: nobody gets in or out by a typing error. Method: one broken file each, at a reload."""
    path = tmp_path / "parties.toml"
    write_registry(path, {"O=A": [KEY_A]})
    registry = Registry(path)
    path.write_text(text)
    with pytest.raises(ConfigError):
        registry.reload()
    assert registry.period("O=A", bytes.fromhex(KEY_A)) is ALWAYS
    with pytest.raises(ConfigError):
        Registry(path)


def test_a_key_is_good_for_its_period_only(tmp_path: Path) -> None:
    """Goal: rotation with an overlap. Method: an old and a new key, before, at and behind each end; then a reload."""
    path, day_s = tmp_path / "parties.toml", 86_400.0
    path.write_text(
        "[parties]\n"
        f'"O=A" = [{{key = "{KEY_A}", until = 1970-01-03T00:00:00Z}}, {{key = "{KEY_B}", from = 1970-01-02T00:00:00Z}}]'
    )
    registry = Registry(path)
    good = [
        [period is not None and period.covers(now_s) for now_s in (0.0, day_s, 2 * day_s - 1, 2 * day_s)]
        for period in (registry.period("O=A", bytes.fromhex(key)) for key in (KEY_A, KEY_B))
    ]
    assert good == [[True, True, True, False], [False, True, True, True]]
    write_registry(path, {"O=A": [KEY_B]})
    registry.reload()
    assert registry.period("O=A", bytes.fromhex(KEY_A)) is None


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    """Goal: an error that names the file, not a trace. Method: bytes that are no UTF-8, and no file."""
    path = tmp_path / "parties.toml"
    with pytest.raises(ConfigError, match=r"parties\.toml"):
        read_registry(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"parties\.toml"):
        read_registry(path)


@pytest.mark.parametrize("parties", [{"Bank A": [KEY_A]}, {"O=A": ["abcd"]}, {"O=A": []}, {"O=" + "a" * 600: [KEY_A]}])
def test_nothing_wrong_is_written(tmp_path: Path, parties: dict[str, list[str]]) -> None:
    """Goal: the helper cannot make a file that the server refuses. Method: bad entries; the old file stays."""
    path = tmp_path / "parties.toml"
    write_registry(path, {"O=A": [KEY_A]})
    before = path.read_text()
    with pytest.raises(ConfigError):
        write_registry(path, parties)
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
                make_request(bytes(32), [], [], None, party)
        else:
            write_registry(path, {party: [KEY_A]})
            assert list(read_registry(path)) == [(party, bytes.fromhex(KEY_A))]
            assert make_request(bytes(32), [], [], None, party).party == party


def test_a_file_that_others_can_write_is_not_read_again_and_none_is_written(tmp_path: Path) -> None:
    """Goal: a key that somebody else added never counts. Method: a reload of a file with another key and a careless
    mode; then the product's own file, with an umask of 0."""
    path = tmp_path / "parties.toml"
    write_registry(path, {"O=A": [KEY_A]})
    registry = Registry(path)
    write_registry(path, {"O=A": [KEY_B]})
    path.chmod(0o664)
    with pytest.raises(ConfigError) as refused:
        registry.reload()
    assert refused.value.code is Code.TRUST_UNSAFE
    assert registry.period("O=A", bytes.fromhex(KEY_A)) is ALWAYS
    before = os.umask(0)
    try:
        write_registry(path, {"O=A": [KEY_B]})
    finally:
        os.umask(before)
    assert (path.stat().st_mode & 0o777, registry.reload()) == (0o640, 1)
