"""What needs no Spark runs where neither PySpark nor pandas is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.unit.cli.test_codes_of_commands import ARCHIVE_KEY
from tests.unit.cli.test_what_people_see import folder  # noqa: F401  (fixture)
from tests.worlds.archive_world import make_archive, some_log

pytestmark = pytest.mark.thorough

ENDS_S = 120
ROOT = Path(__file__).parents[3]
COMMANDS = """
import sys
from pathlib import Path

class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.modules["pyspark"] = None  # it can be neither found nor imported
sys.meta_path.insert(0, Absent())
from pipeline.tables.write import open_writer
from replica.cli.main import main
from tests.worlds.archive_world import some_log

with open_writer(Path("tables"), Path("tables.index"), "topic-1") as writer:
    writer.append(list(enumerate(some_log(20))))
for words in (
    "tables status",
    "tables run",
    "recovery copy --to copy",
    "recovery ship checkpoint --to site",
    "recovery verify site/1",
    "recovery seed site/1 --name r1",
    "log salvage --to tail.salvage",
):
    sys.argv = ["notary", *words.split()]
    try:
        main()
    except SystemExit as ended:
        print("code", ended.code, words, flush=True)
"""


def test_tables_recovery_and_salvage_need_no_spark(folder: Path) -> None:  # noqa: F811
    """Goal: the pages say so. Method: append to tables and run each command in a process that can import neither; what
    needs a server or a checkpoint ends for want of that."""
    pem = ARCHIVE_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "archive.key").touch(mode=0o600)
    (folder / "archive.key").write_bytes(pem)
    make_archive(folder / "archive", some_log(20))
    for name in ("checkpoint", "site/1"):
        (folder / name).mkdir(parents=True)
    argv = [sys.executable, "-c", COMMANDS]
    done = subprocess.run(
        argv, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=ENDS_S, check=False
    )
    told = done.stdout + done.stderr
    assert (done.returncode, told.count("code "), "Traceback" in told) == (0, 7, False), told
    assert "PIPELINE_MISSING" not in told and "pyspark" not in told, told
    assert "code 0 tables status" in told and "code 0 recovery copy" in told, told
