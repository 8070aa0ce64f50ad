"""A machine without Java: the error says so, and what works without."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.session import spark_session
from replica.notary.errors import ConfigError


@pytest.mark.parametrize("home", [None, "nothing-here"])
def test_a_job_without_java_says_what_works_without(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody searches in a trace of Spark's. Method: no `java` on the path; a JAVA_HOME without one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if home is None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / home))
    with pytest.raises(ConfigError, match=r"no Java was found.*archive run --engine process"):
        spark_session("test")
