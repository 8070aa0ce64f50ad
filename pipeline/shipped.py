"""What goes with a job to a cluster: our own code, jars by their coordinates, and a Python as an archive.

Workers have no notary installed. What our code imports (numpy, pyarrow, msgspec, RocksDB's binding) is of compiled code
and of one kind of machine, so it is installed on the workers or comes as an archive of a whole Python environment:
docs/pipeline.md, *On a Spark cluster*.
"""

from __future__ import annotations

import atexit
import posixpath
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from replica.notary.errors import ConfigError

ARCHIVE_NAME = "replicated_notary.zip"
PACKAGES = ("ha", "ledger_api", "pipeline", "replica")  # what tasks import, and what that imports
ENVIRONMENT = "environment"  # folder where each worker unpacks the Python that came with the job
PYTHON_IN_IT = "bin/python"
SHIPPED_PYTHON = f"./{ENVIRONMENT}/{PYTHON_IN_IT}"  # seen from where a worker runs
_ENVIRONMENT_FORMS = (".tar.gz", ".tgz")  # Spark unpacks them with the system's tar; of others it loses files' modes
_COORDINATES = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+", re.ASCII)
_ROOT = Path(__file__).parents[1]
_ANY_DATE = (2020, 1, 1, 0, 0, 0)  # the same code gives the same bytes


@cache
def package_archive() -> Path:
    """The archive, made at the first call of this process in a folder for temporary files, and gone with the process.

    Spark's workers fetch it from there while a session lasts.
    """
    path = _folder() / ARCHIVE_NAME
    write_archive(path, _ROOT)
    return path


def write_archive(path: Path, root: Path) -> None:
    """Write PACKAGES below `root`, with the SQL and data that they read, to a zip file that Python imports from."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for file in sorted((root / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.writestr(zipfile.ZipInfo(str(file.relative_to(root)), _ANY_DATE), file.read_bytes())


@cache
def environment_here() -> Path:
    """A folder in which SHIPPED_PYTHON is this process's Python; gone with the process.

    Spark's JVM asks the Python sources for their plans beside the driver, by the very name that workers know.
    """
    folder = _folder()
    python = folder / SHIPPED_PYTHON
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P "$@"\n')
    python.chmod(0o755)
    return folder


def check_packages(packages: Sequence[str]) -> None:
    """Raise ConfigError unless each is GROUP:ARTIFACT:VERSION, as Maven's repositories name a jar."""
    for one in packages:
        if not _COORDINATES.fullmatch(one):
            raise ConfigError(f"--packages {one}: give GROUP:ARTIFACT:VERSION")


def check_environment(path: Path) -> None:
    """Raise ConfigError unless workers can unpack this file, and find a Python in it. Reads it up to there."""
    if not path.name.endswith(_ENVIRONMENT_FORMS):
        raise ConfigError(f"--python-archive {path}: its name has to end with {' or '.join(_ENVIRONMENT_FORMS)}")
    if not path.is_file():
        raise ConfigError(f"--python-archive {path}: there is no such file")
    try:
        with tarfile.open(path, "r:gz") as archive:
            found = any(posixpath.normpath(entry.name) == PYTHON_IN_IT for entry in archive)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"--python-archive {path} cannot be read: {error}") from None
    if not found:
        raise ConfigError(f"--python-archive {path}: it has no {PYTHON_IN_IT}; docs/pipeline.md says how to make one")


def _folder() -> Path:
    """A new folder for temporary files that goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="notary-shipped-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
