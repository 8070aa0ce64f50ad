"""Who may read a file with a secret, and who may write one that says whom to trust."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.secret_files import check_secret, check_trusted, open_not_for_others

OURS, ROOTS, ANOTHERS = 1000, 0, 1001


@pytest.mark.parametrize(
    ("owner", "mode", "safe"),
    [
        (OURS, 0o600, True),
        (OURS, 0o400, True),
        (OURS, 0o640, False),
        (ROOTS, 0o440, True),  # as Kubernetes mounts it
        (ROOTS, 0o640, True),
        (ROOTS, 0o660, False),
        (ROOTS, 0o644, False),
        (ANOTHERS, 0o440, False),
    ],
)
def test_a_group_may_read_what_root_hands_out(
    owner: int, mode: int, safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: keys from Kubernetes are taken, careless ones are not. Method: owner and mode, seen by account 1000."""
    path = tmp_path / "key"
    path.write_text("secret")
    path.chmod(mode)
    found = os.stat_result((*path.stat()[:4], owner, *path.stat()[5:]))
    monkeypatch.setattr(Path, "stat", lambda *_, **__: found)
    monkeypatch.setattr(os, "geteuid", lambda: OURS)
    if safe:
        check_secret(path)
    else:
        with pytest.raises(ConfigError) as refused:
            check_secret(path)
        assert refused.value.code is Code.KEY_UNSAFE


def test_root_itself_keeps_its_keys_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the rule for handed out files is no way around 0600. Method: root's file, seen by root."""
    path = tmp_path / "key"
    path.write_text("secret")
    path.chmod(0o640)
    found = os.stat_result((*path.stat()[:4], ROOTS, *path.stat()[5:]))
    monkeypatch.setattr(Path, "stat", lambda *_, **__: found)
    monkeypatch.setattr(os, "geteuid", lambda: ROOTS)
    with pytest.raises(ConfigError):
        check_secret(path)


@pytest.mark.parametrize("by_link", [False, True])
@pytest.mark.parametrize(
    ("mode", "safe"), [(0o600, True), (0o644, True), (0o440, True), (0o664, False), (0o620, False), (0o646, False)]
)
def test_only_its_owner_writes_what_says_whom_to_trust(tmp_path: Path, mode: int, safe: bool, by_link: bool) -> None:
    """Goal: nobody else adds a key. Method: modes of the file, also where a link leads to it, in a folder that is open
    to all, as Kubernetes' are."""
    tmp_path.chmod(0o777)
    path, named = tmp_path / "parties.toml", tmp_path / "linked.toml"
    path.touch()
    path.chmod(mode)
    named.symlink_to(path)
    if safe:
        check_trusted(named if by_link else path)
    else:
        with pytest.raises(ConfigError) as refused:
            check_trusted(named if by_link else path)
        assert refused.value.code is Code.TRUST_UNSAFE


@pytest.mark.parametrize(("mask", "mode"), [(0o000, 0o640), (0o022, 0o640), (0o077, 0o600)])
@pytest.mark.parametrize("how", ["wb", "ab"])
def test_what_names_parties_is_not_for_others(tmp_path: Path, mask: int, mode: int, how: str) -> None:
    """Goal: never more open than 0640, and as closed as the account wants. Method: new files under three umasks."""
    before = os.umask(mask)
    try:
        with open_not_for_others(tmp_path / "history.jsonl", how) as stream:
            stream.write(b"line\n")
    finally:
        os.umask(before)
    assert (tmp_path / "history.jsonl").stat().st_mode & 0o777 == mode


def test_every_history_that_a_command_writes_is_opened_like_that() -> None:
    """Goal: no command leaves a readable one. Method: the programs that write histories, all of them."""
    root = Path(__file__).parents[3] / "replica"
    writers = [text for text in (file.read_text() for file in root.rglob("*.py")) if " HistoryWriter(" in text]
    assert len(writers) >= 2
    for text in writers:
        assert text.count("open_not_for_others(") >= text.count(" HistoryWriter(")
