"""Whether a cluster's workers share a job's work folder."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.jobs.shared import try_to_write, unshared
from replica.cli import log_source
from replica.cli.pipeline import SparkChoice
from replica.notary.codes import Code


def test_a_worker_that_can_write_leaves_nothing(tmp_path: Path) -> None:
    """Goal: no false alarm, and the folder as it was. Method: one task in a folder that is there."""
    assert list(try_to_write(tmp_path, 3)) == [{"host": socket.gethostname(), "problem": None}]
    assert list(tmp_path.iterdir()) == []


def test_a_worker_without_the_folder_says_so_and_makes_none(tmp_path: Path) -> None:
    """Goal: a worker does not work in a folder of its own. Method: none is there; a file in its place."""
    (tmp_path / "file").touch()
    found = [next(try_to_write(tmp_path / name, 0))["problem"] for name in ("none/deep", "file")]
    assert found == ["No such file or directory", "Not a directory"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_each_host_is_named_once() -> None:
    """Goal: which folder, which host, what to do. Method: answers of three hosts, one of them without fault."""
    answers = [("b", "Permission denied"), ("a", "No such file or directory"), ("c", None), ("b", "Permission denied")]
    error = unshared(Path("/work"), answers)
    assert error is not None and error.code is Code.CONFIG_INVALID
    assert "cannot write in /work: a: No such file or directory; b: Permission denied; name with --work" in error.detail
    assert unshared(Path("/work"), [("a", None), ("c", None)]) is None


@pytest.mark.parametrize(("master", "asked"), [("spark://h:1", 1), ("yarn", 1), ("sc://h", 1), ("local[2]", 0)])
def test_every_cluster_is_asked_and_this_machine_is_not(
    master: str, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no job begins on a cluster unasked, and none here waits for it. Method: count who is asked."""
    seen: list[Path] = []

    @contextmanager
    def session(app: str, where: SparkChoice) -> Iterator[str]:
        yield app

    monkeypatch.setattr(log_source, "spark", session)
    monkeypatch.setattr("pipeline.jobs.shared.check_shared", lambda spark, work: seen.append(work))
    with log_source.Where("topic", SparkChoice(master), tmp_path).job("audit", Path()) as (_, work):
        assert seen == [work] * asked
