"""Kafka is one log among others: only its own rooms name it, so that another log needs no change anywhere else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = ("replica", "pipeline", "ledger_api", "ha", "haproxy")

ROOMS = (
    "replica/log/kafka/",
    "replica/local/",  # starts a broker for a local cluster
    "pipeline/sources/",  # Spark has a connector of its own for it
)
FILES = {
    "replica/log/settings.py": "the kinds of logs that can be chosen",
    "replica/log/open.py": "builds each kind by name",
    "replica/log/promises.py": "what an answer from each kind rests on",
    "replica/cli/config.py": "the setting that makes a topic survive a power cut",
    "replica/cli/init.py": "the example of a configuration",
    "replica/cli/profiles.py": "the profiles: which servers a participant is made of",
    "replica/cli/drill/copied.py": "the drill kills the brokers of the site that is lost",
    "replica/cli/drill/servers.py": "the drill ends the broker that leads the log",
    "replica/cli/topic.py": "commands that only a topic has; other logs refuse them",
    "pipeline/failures.py": "what Spark's connector says in Java's words",
}


def names_it(path: str) -> bool:
    return "kafka" in path.lower() or "kafka" in (ROOT / path).read_text(encoding="utf-8").lower()


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *SOURCES],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for path in listed.stdout.splitlines() if path.endswith((".py", ".sql", ".j2", ".html", ".js"))]


def test_only_its_own_rooms_name_kafka() -> None:
    """Goal: the seam stays a seam. Method: look for the word in every source file; the list names the files that may
    have it."""
    paths = [path for path in tracked() if (ROOT / path).exists()]
    assert len(paths) > 300  # it looks at something
    naming = {path for path in paths if not path.startswith(ROOMS) and names_it(path)}
    assert naming - FILES.keys() == set(), "say it of any log, or move it into replica/log/kafka"
    assert FILES.keys() - naming == set(), "no longer names it: take it off the list"


@pytest.mark.parametrize(
    ("options", "set_up"),
    [
        ("--exit", "scripts/setup.sh"),
        ("--profile postgres --exit", "scripts/setup.sh --without-java"),
        ("--profile raft", "scripts/setup.sh --without-java"),
        ("--profile embedded", "scripts/setup.sh --without-java"),
        ("--memory-log", "scripts/setup.sh --without-java"),
    ],
)
def test_java_is_installed_only_where_a_broker_runs(options: str, set_up: str) -> None:
    """Goal: profiles without Kafka need no Java. Method: what `make run` would do; what the set-up does with jars."""
    outside_make = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    planned = subprocess.run(
        ["make", "-n", "run", f"ARGS={options}"],
        cwd=ROOT,
        env=outside_make,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert [line.strip() for line in planned] == [set_up, f".venv/bin/notary demo {options}"]
    script = (ROOT / "scripts/setup.sh").read_text()
    assert [line for line in script.splitlines() if "java" in line and "WITH_JAVA" not in line and line[0] != "#"] == []
