"""Which profile `notary up` runs: embedded in an empty folder, else what the folder's cluster is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from replica.cli import up
from replica.cli.profiles import Profile
from replica.local.cluster import ClusterSettings

KEPT = "".join(f'[[replicas]]\nname = "r{number}"\n' for number in (1, 2))


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ClusterSettings]:
    """What would have been started, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    found: list[ClusterSettings] = []
    monkeypatch.setattr(up, "_serve", found.append)
    monkeypatch.setattr(up, "run", lambda _: None)
    return found


def test_a_new_cluster_is_embedded(started: list[ClusterSettings]) -> None:
    """Goal: nothing configured needs nothing installed. Method: an empty folder, without and with an option."""
    up.run_cluster()
    up.run_cluster(profile=Profile.REFERENCE, replicas=1)
    new, asked = started
    assert (new.log, new.embedded, new.replicas) == ("raft", True, 3)
    assert (asked.log, asked.embedded, asked.replicas) == ("kafka", False, 1)


def test_a_folder_that_holds_a_cluster_keeps_its_profile(started: list[ClusterSettings], tmp_path: Path) -> None:
    """Goal: a release with another default starts the cluster that is there. Method: a configuration in the folder."""
    folder = tmp_path / "data" / "local"
    folder.mkdir(parents=True)
    (folder / "notary.toml").write_text(KEPT)
    up.run_cluster()
    up.run_cluster(replicas=3)
    assert [(one.log, one.embedded, one.replicas) for one in started] == [(None, None, 2), (None, None, 3)]
