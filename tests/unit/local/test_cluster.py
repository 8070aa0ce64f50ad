"""What a local cluster writes into its configuration at each start, and what it leaves as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.participant import ParticipantFiles


def started(folder: Path, **changed: Any) -> dict[str, Any]:
    """The configuration after a start of a cluster without a database."""
    cluster = LocalCluster(ClusterSettings(folder=folder, **changed))
    files = ParticipantFiles(folder)
    cluster.log_kind, cluster.embedded = "raft", True
    try:
        files.write_config(cluster._values(files.settings()), None)
    finally:
        cluster._ports.close()
    return files.settings()


def test_what_an_operator_changes_survives_a_restart(tmp_path: Path) -> None:
    """Goal: `notary up` takes no setting back. Method: start; change, add and leave out settings; start again, and with
    options that name some of them."""
    first = started(tmp_path)
    assert (first["election"]["lease_s"], first["api_workers"], first["core"]["standby"]) == (0.9, 2, "following")
    path = ParticipantFiles(tmp_path).config_path
    text = path.read_text()
    for old, new in (
        ("lease_s = 0.9", "lease_s = 4.0\ntick_s = 0.1"),
        ("heartbeat_s = 0.15\n", ""),
        ("standby_read_pause_s = 0.05", "standby_read_pause_s = 0.2"),
        ("api_workers = 2", "api_workers = 1"),
        ('standby = "following"', 'standby = "disconnected"'),
        (first["replicas"][1]["api_url"], "https://notary.example:8443"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text)
    again = started(tmp_path)
    assert (again["election"]["lease_s"], again["election"]["tick_s"]) == (4.0, 0.1)
    assert "heartbeat_s" not in again["election"]
    assert (again["core"]["standby_read_pause_s"], again["core"]["standby"]) == (0.2, "disconnected")
    assert again["api_workers"] == 1
    assert [one["api_url"] for one in again["replicas"]] == [
        first["replicas"][0]["api_url"], "https://notary.example:8443", first["replicas"][2]["api_url"],
    ]  # fmt: skip
    assert again["database"] == first["database"]
    asked = started(tmp_path, api_workers=3, standby="following", further={"election": {"lease_s": 2.0}})
    assert (asked["api_workers"], asked["core"]["standby"], asked["election"]["lease_s"]) == (3, "following", 2.0)
