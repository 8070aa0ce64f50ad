"""`scripts/test.sh`: what it repeats, what it never repeats, and what it reports about that. With small sample
tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from replica.local.process import ServerEnded, ServerFailed
from tests.promises import PromiseBroken, breaks_a_promise

pytestmark = pytest.mark.thorough  # each runs pytest, twice and more

ROOT = Path(__file__).parents[3]
SAMPLES = """
from pathlib import Path
import pytest
from replica.local.process import ServerEnded
from tests.promises import PromiseBroken

def times(name):
    with open(name, "a") as file:
        file.write("x")
    return Path(name).stat().st_size

def late(name):
    if times(name) == 1:
        raise TimeoutError("late")

@pytest.fixture
def breaks_when_it_ends():
    yield
    if times("teardown") == 1:
        raise PromiseBroken("a finding")

"""
LATE = 'def test_late(): late("late")\n'
FINDING = 'def test_finding():\n    if times("finding") == 1: raise PromiseBroken("a finding")\n'
GROUPED = (
    "def test_grouped():\n"
    '    if times("grouped") == 1: raise ExceptionGroup("tasks", [OSError(), PromiseBroken("a lost answer")])\n'
)
HIDDEN = (
    "def test_hidden():\n"
    '    if times("hidden") > 1: return\n'
    '    try: raise ServerEnded("r1 ended with code 1")\n'
    '    except ServerEnded as error: raise TimeoutError("it did not return") from error\n'
)
AT_THE_END = "def test_at_the_end(breaks_when_it_ends): pass\n"
MISSED_GOAL = """
from tests.faults.recorder import Scenario

pytestmark = pytest.mark.scenario("F1", "an outage", outage_goal_s=0.1)

def holds_but_for(outage_s, scenario):
    scenario.fired("a kill")
    scenario.checked(1)
    scenario.outages_s.append(outage_s)

def test_too_long(scenario): holds_but_for(0.251 if times("long") == 1 else 0.1, scenario)
def test_as_long_as_a_busy_machine_may_make_it(scenario): holds_but_for(0.25, scenario)
"""
ALWAYS = "def test_always(): assert False\n"
FOLDERS = {"core": "unit", "clusters": "integration", "faults-quick": "faults"}
MANY = "".join(f'def test_late_{at}(): late("late{at}")\n' for at in range(4))


@dataclass(frozen=True)
class Ran:
    """The script's exit code, what its last line says was repeated, and how often each sample ran."""

    code: int
    repeated: str
    runs: dict[str, int]


def run_script(folder: Path, samples: str, phase: str = "clients", *options: str) -> Ran:
    """Run the script itself in a project of its own, whose tests of one phase are these samples."""
    tests = folder / "tests" / FOLDERS.get(phase, phase)
    tests.mkdir(parents=True, exist_ok=True)
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/test.sh", folder / "scripts/test.sh")
    for name in ("__init__.py", "conftest.py", "log_kind.py", "lossy_disk.py", "promises.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["slow: x", "thorough: x"]\n')
    (tests / "__init__.py").touch()
    (tests / "test_samples.py").write_text(SAMPLES + samples)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    # These tests do not depend on other plugins, which take nine tenths of the time.
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin,pytest_asyncio.plugin"}
    done = subprocess.run(
        ["bash", "scripts/test.sh", *options, phase],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    runs = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file() and "." not in path.name}
    return Ran(done.returncode, done.stdout.splitlines()[-1].partition("; ")[2], runs)


def test_what_was_late_runs_once_more_and_the_last_line_names_it(tmp_path: Path) -> None:
    """Goal: a retry is counted and named. Method: a test that fails once; one that passes runs once only."""
    ran = run_script(tmp_path, LATE + 'def test_well(): times("well")\n')
    assert ran == Ran(0, "repeated: 1 tests/clients/test_samples.py::test_late", {"late": 2, "well": 1})


def test_real_servers_in_two_processes_are_repeated_and_clusters_run_in_a_phase_of_their_own(tmp_path: Path) -> None:
    """Goal: neither a retry, nor a broken promise, nor a test is lost. Method: each phase on tests with and without the
    mark of a cluster; a phase of two folders, the first with a late one."""
    marked = "@pytest.mark.cluster\n" + ALWAYS
    other = tmp_path / "late/tests/lognode"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "test_other.py").write_text("def test_other(): pass\n")
    assert run_script(tmp_path / "late", LATE + marked, "integration").runs == {"late": 2}
    assert run_script(tmp_path / "finding", FINDING + LATE, "integration") == Ran(
        1, "repeated: 0", {"finding": 1, "late": 1}
    )
    clusters = run_script(tmp_path / "clusters", LATE + marked, "clusters")
    assert (clusters.code, clusters.runs) == (1, {})
    assert clusters.repeated == "repeated: 1 tests/integration/test_samples.py::test_always"


def test_each_test_is_quick_or_of_the_rest(tmp_path: Path) -> None:
    """Goal: CI, which runs the quick ones and then the rest, loses none and runs none twice. Method: one of each."""
    samples = 'def test_quick(): times("quick")\n@pytest.mark.thorough\ndef test_rest(): times("rest")\n'
    assert run_script(tmp_path / "quick", samples) == Ran(0, "repeated: 0", {"quick": 1})
    assert run_script(tmp_path / "rest", samples, "clients", "--rest").runs == {"rest": 1}


def test_a_quick_test_that_computes_for_long_fails_and_one_that_waits_does_not(tmp_path: Path) -> None:
    """Goal: the core phase stays quick, and a busy machine fails nothing. Method: a smaller bound; one
    that computes for longer, in a child as well; one that waits; one that is left out."""
    samples = (
        "import subprocess, sys, time\nfrom tests import conftest\n"
        "conftest.CORE_S_MAX, conftest.MILLION_S = 0.2, 10.0\n"
        "def compute():\n    end_s = time.process_time() + 0.4\n    while time.process_time() < end_s: pass\n"
        "def test_computes(): compute()\n"
        "def test_child():\n    code = 'import time\\nwhile time.process_time() < 0.4: pass'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True)\n"
        'def test_waits():\n    time.sleep(0.4)\n    times("well")\n'
        "@pytest.mark.thorough\ndef test_thorough():\n    compute()\n    times('well')\n"
    )
    ran = run_script(tmp_path, samples, "core", "--all")
    failed = json.loads((tmp_path / ".pytest_cache/v/cache/lastfailed").read_text())
    assert (ran.code, ran.runs) == (1, {"well": 2})
    assert [name.partition("::")[2] for name in failed] == ["test_computes", "test_child"]


def test_a_broken_promise_is_never_forgiven(tmp_path: Path) -> None:
    """Goal: no second try, wherever it hides. Method: one of each shape, which would pass if it ran again."""
    ran = run_script(tmp_path, FINDING + GROUPED + HIDDEN + AT_THE_END + LATE)
    assert ran == Ran(1, "repeated: 0", dict.fromkeys(("finding", "grouped", "hidden", "teardown", "late"), 1))
    final = (tmp_path / "build/never-repeated").read_text().split()
    names = [name.partition("::")[2] for name in final]
    assert names == ["test_finding", "test_grouped", "test_hidden", "test_at_the_end"]


def test_a_missed_goal_is_never_forgiven(tmp_path: Path) -> None:
    """Goal: a scenario that holds but for its goal fails, once and for all. Method: an outage that would be short when
    it is repeated; the fault scenarios' own plugin."""
    for folder in ("tests/faults", "tests/faults/lab"):
        (tmp_path / folder).mkdir(parents=True)
        for path in (ROOT / folder).glob("*.py"):
            if not path.name.startswith("test_"):  # or the real scenarios would run here
                (tmp_path / folder / path.name).symlink_to(path)
    for name in ("closing.py", "ends.py", "model", "waiting.py", "watched.py", "worlds"):
        (tmp_path / "tests" / name).symlink_to(ROOT / "tests" / name)
    assert run_script(tmp_path, MISSED_GOAL, "faults-quick") == Ran(1, "repeated: 0", {"long": 1})


def test_what_fails_twice_has_failed_and_many_failures_are_no_bad_luck(tmp_path: Path) -> None:
    """Goal: the bounds of patience. Method: one that always fails; four that fail once."""
    always = run_script(tmp_path / "always", ALWAYS)
    assert (always.code, always.repeated) == (1, "repeated: 1 tests/clients/test_samples.py::test_always")
    assert run_script(tmp_path / "many", MANY) == Ran(1, "repeated: 0", {f"late{at}": 1 for at in range(4)})


def test_what_is_deterministic_is_never_repeated(tmp_path: Path) -> None:
    """Goal: a pure test that fails once has failed. Method: a phase of pure tests."""
    assert run_script(tmp_path, LATE, "core") == Ran(1, "repeated: 0", {"late": 1})


def test_a_promise_is_recognised_wherever_it_hides() -> None:
    """Goal: neither groups nor chains hide it, and being late is none. Method: one error of each shape."""
    broken = PromiseBroken("x")
    chained = TimeoutError()
    chained.__context__ = ExceptionGroup("g", [ValueError(), ExceptionGroup("h", [broken])])
    for error in (broken, chained, ServerEnded("r1")):
        assert breaks_a_promise(error)
    for error in (ServerFailed("late"), TimeoutError(), AssertionError()):
        assert not breaks_a_promise(error)


def test_whole_clusters_are_marked() -> None:
    """Goal: none is late because of a neighbour. Method: every module of integration tests that starts one."""
    modules = [path for path in (ROOT / "tests/integration").rglob("test_*.py") if "LocalCluster(" in path.read_text()]
    assert modules
    assert [path.name for path in modules if "pytest.mark.cluster" not in path.read_text()] == []
