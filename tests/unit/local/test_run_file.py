"""The run file distinguishes a running cluster from one whose supervisor is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from replica.local.process import ServerFailed
from replica.local.run_file import FILE_NAME, ProcessIdentity, ReplicaRun, RunFile, find_cluster, this_process


def run_of(supervisor: ProcessIdentity) -> RunFile:
    return RunFile(
        supervisor=supervisor,
        endpoint="http://127.0.0.1:8000",
        config_path=Path("notary.toml"),
        replicas=(ReplicaRun(name="R1", pid=11, api_port=8_001, health_port=9_001),),
        postgres_port=5_433,
        postgres_pid=12,
        log_address="127.0.0.1:9092",
        log_pids=(13,),
        haproxy_pid=14,
        haproxy_stats_socket=Path("admin.sock"),
    )


def test_a_running_cluster_is_found(tmp_path: Path) -> None:
    """Goal: other commands find the cluster. Method: write as ourselves, read back, remove."""
    run = run_of(this_process())
    run.write(tmp_path)
    assert find_cluster(tmp_path) == run
    RunFile.remove(tmp_path)
    with pytest.raises(ServerFailed, match="no cluster runs"):
        find_cluster(tmp_path)


def test_a_killed_supervisor_is_noticed(tmp_path: Path) -> None:
    """Goal: a file left behind is not believed. Method: name a process, end it, look before and after collecting it."""
    with subprocess.Popen(["sleep", "60"]) as process:
        run_of(ProcessIdentity.of(process.pid)).write(tmp_path)
        assert find_cluster(tmp_path).supervisor.pid == process.pid
        process.kill()
    with pytest.raises(ServerFailed, match="has ended"):
        find_cluster(tmp_path)


def test_a_process_id_that_was_given_again_is_somebody_else(tmp_path: Path) -> None:
    """Goal: the id alone proves nothing. Method: our own id with another start time."""
    me = this_process()
    run_of(me.model_copy(update={"started_ticks": me.started_ticks + 1})).write(tmp_path)
    with pytest.raises(ServerFailed, match="has ended"):
        find_cluster(tmp_path)


def test_a_file_of_another_release_is_refused(tmp_path: Path) -> None:
    """Goal: no guessing at unknown content. Method: a JSON document of another shape."""
    (tmp_path / FILE_NAME).write_text('{"pid": 1}')
    with pytest.raises(ServerFailed, match="not written by this release"):
        find_cluster(tmp_path)
