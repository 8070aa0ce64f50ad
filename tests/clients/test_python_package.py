"""`replicated-notary-client` as an application gets it: a wheel, in an environment with nothing else of ours."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from replicated_notary_client import Conflict, NotaryClient, NotNow, Refused, RetryPolicy, Usage
from tests.clients.programs import BUILD_MAX_S, CLIENTS, PYTHON_HOME, ROOT, build, run
from tests.clients.test_front_end import Ledger
from tests.worlds.api_world import ApiWorld, make_submission

PYTHON = PYTHON_HOME / "venv/bin/python"
DISTRIBUTIONS_MAX, INSTALLED_MAX_MIB = 16, 60  # the notary itself has 40 and 151
POLICY = RetryPolicy(deadline_s=0.5, timeout_s=0.01)
README = (CLIENTS / "python/README.md").read_text()

pytestmark = pytest.mark.timeout(BUILD_MAX_S)


@pytest.fixture(autouse=True)
def built() -> None:
    build("python")


def asked(script: str) -> object:
    """What a script prints in the environment, which has nothing of this clone."""
    done = subprocess.run([PYTHON, "-I", "-c", script], cwd="/", capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def blocks(name: str) -> str:
    (found,) = re.findall(rf"<!-- {name} -->\n```python\n(.*?)```", README, re.DOTALL)
    return str(found)


def test_it_brings_few_packages_and_nothing_of_the_replica() -> None:
    """Goal: a bank's application takes little in. Method: what is installed, its size, what can be imported."""
    names = asked(
        "import json; from importlib.metadata import distributions as d;"
        "print(json.dumps(sorted({one.name.lower() for one in d()} - {'pip', 'setuptools'})))"
    )
    assert isinstance(names, list)
    assert "replicated-notary-client" in names
    assert not {"replicated-notary", "confluent-kafka", "rocksdict", "psycopg", "pydantic"} & set(names)
    assert len(names) <= DISTRIBUTIONS_MAX, names
    (site,) = (PYTHON_HOME / "venv/lib").glob("*/site-packages")
    files = [path for path in site.rglob("*") if path.is_file() and not {"pip", "setuptools"} & set(path.parts)]
    assert sum(path.stat().st_size for path in files) <= INSTALLED_MAX_MIB * 2**20
    script = "import json, importlib.util as u; print(json.dumps([u.find_spec(n) is None for n in {!r}]))"
    assert asked(script.format(["replica", "ledger_api", "ha"])) == [True] * 3


def test_all_that_is_public_is_in_one_typed_namespace() -> None:
    """Goal: one place to import from. Method: where each public name comes from; the marker of types."""
    modules = asked(
        "import json, replicated_notary_client as c;"
        "print(json.dumps({n: getattr(getattr(c, n), '__module__', c.__name__) for n in c.__all__}))"
    )
    assert isinstance(modules, dict)
    own = {name for name, module in modules.items() if module.split(".")[0] == "replicated_notary_client"}
    assert set(modules) - own == {"Answer", "OnWait", "StreamResult"}  # aliases of types, which have no module
    (wheel,) = PYTHON_HOME.glob("*.whl")
    assert "replicated_notary_client/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_programs_are_checked_by_its_types(tmp_path: Path) -> None:
    """Goal: mistakes are found before they run. Method: mypy --strict over README and examples; a wrong program."""
    for name in ("example", "answers", "completions"):
        (tmp_path / f"{name}.py").write_text(blocks(name))
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", str(PYTHON))
    programs = [*map(str, sorted(tmp_path.glob("*.py"))), str(CLIENTS / "python/examples/failover.py")]
    run(*mypy, "--cache-dir", str(PYTHON_HOME / "mypy"), *programs)
    wrong = tmp_path / "wrong.py"
    program = "from replicated_notary_client import Party\nParty.from_file('O=A', None, 'a.key').sign(inputs=[1])\n"
    wrong.write_text(program)
    with pytest.raises(AssertionError, match="list-item"):
        run(*mypy, "--cache-dir", str(PYTHON_HOME / "mypy"), str(wrong))


def test_the_readmes_example_is_the_one_that_is_run() -> None:
    """Goal: the README works as printed. Method: compare it with the program that the tests of all clients run."""
    assert blocks("example") == (CLIENTS / "python/examples/notarise.py").read_text()


def test_the_package_has_the_notarys_version_and_bounds() -> None:
    """Goal: both are released together, and run with the same libraries. Method: compare the two pyproject.toml."""
    notary, client = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, CLIENTS / "python")
    )
    assert client["version"] == notary["version"]
    wanted = {re.split("[<>=]", text)[0] for text in client["dependencies"]}
    assert wanted - {"yarl"} <= {re.split(r"[<>=\[]", text)[0] for text in notary["dependencies"]}


async def test_the_readmes_answers_and_completions_are_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: what the README branches on happens. Method: each kind of answer; an offset of another ledger."""
    names: dict[str, Any] = {}
    for name in ("answers", "completions"):
        exec(compile(blocks(name), "README.md", "exec"), names)
    ledger = Ledger()
    async with ApiWorld(ledger).serve() as world, NotaryClient(world.endpoint, POLICY) as client:
        submission = make_submission()
        assert names["outcome"](await client.submit(submission)) == "notarised; its completion is at ledger offset 1"
        conflict = Conflict(bytes(36), bytes(32), Usage.INPUT)
        for answer, said in (
            (
                Refused("STATE_CONFLICT", bytes(32), 42, (conflict,), ledger_offset=2),
                "spent: input was consumed before",
            ),
            (Refused("COMMAND_ID_REUSED", bytes(32)), "COMMAND_ID_REUSED, at this attempt"),
            (Refused("TX_ID_REUSED", bytes(32)), "TX_ID_REUSED, for ever"),
            (NotNow("OVERLOADED", "full", 0.0), "nothing is decided, or not known"),
        ):
            ledger.answer = lambda _, answer=answer: answer
            assert names["outcome"](await client.submit(make_submission())).startswith(said)
        forged = msgspec.structs.replace(make_submission(), signature=bytes(64))
        assert names["outcome"](await client.submit(forged)).startswith("change the request")
        names["NotaryClient"] = partial(NotaryClient, policy=POLICY)
        printed = ""
        await names["read_on"](world.endpoint, 7)  # this ledger ends at 1: the offset is of another one
        reading = asyncio.create_task(names["read_on"](world.endpoint, 0))
        async with asyncio.timeout(10):
            while "1 NOTARISED" not in printed:
                printed += capsys.readouterr().out
                await asyncio.sleep(0.05)
        assert "cannot go on after 7: OFFSET_AFTER_END\n1 NOTARISED" in printed
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
