"""Our own code as one archive, which goes with a job to a cluster: its workers have no notary installed.

What our code imports (numpy, pyarrow, msgspec, RocksDB's binding) is of compiled code and of one kind of machine, so
workers have that installed: docs/pipeline.md, *On a Spark cluster*.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

ARCHIVE_NAME = "replicated_notary.zip"
PACKAGES = ("ha", "ledger_api", "pipeline", "replica")  # what tasks import, and what that imports
_ROOT = Path(__file__).parents[1]
_ANY_DATE = (2020, 1, 1, 0, 0, 0)  # the same code gives the same bytes


@cache
def package_archive() -> Path:
    """The archive, made at the first call of this process in a folder for temporary files, and gone with the process.

    Spark's workers fetch it from there while a session lasts.
    """
    folder = Path(tempfile.mkdtemp(prefix="notary-shipped-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / ARCHIVE_NAME
    write_archive(path, _ROOT)
    return path


def write_archive(path: Path, root: Path) -> None:
    """Write the modules of PACKAGES below `root` to a zip file that Python imports from."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for module in sorted((root / package).rglob("*.py")):
                archive.writestr(zipfile.ZipInfo(str(module.relative_to(root)), _ANY_DATE), module.read_bytes())
