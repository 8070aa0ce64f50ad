"""Every option, argument and setting that names a file refuses a URL, before anything is written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from replica.cli.main import command
from replica.config.load import make_config
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.places import Remote
from tests.unit.config.test_log_settings import values

URL = "s3a://bucket/archive"
VALUES = values()


def _path_options(found: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of a command line for each optional parameter that names files or folders."""
    for parameter in found.params:
        if parameter.type_descriptor.annotation is Path and parameter.opts[0].startswith("-"):
            yield (*words, parameter.opts[0])
    for name, inner in getattr(found, "commands", {}).items():
        yield from _path_options(inner, (*words, name))


PLACES = [  # these take a `file:` URL, and a store of objects
    ("archive", "status", "--folder"),
    ("archive", "verify", "--folder"),
    ("log", "salvage", "--folder"),
    ("recovery", "copy", "--folder"),
    ("recovery", "copy", "--to"),
    ("recovery", "seed", "--folder"),
    ("recovery", "ship", "--to"),
    ("recovery", "verify", "--folder"),
    ("report", "--out"),
    ("restore", "plan", "--folder"),
    ("restore", "run", "--folder"),
]
OPTIONS = sorted(set(_path_options(command())))


def test_there_are_such_options() -> None:
    """Goal: the next test cannot pass for want of cases. Method: one of them, and their number."""
    assert ("audit", "--watermark") in OPTIONS
    assert len(OPTIONS) > 40


def _called(found: Any, words: tuple[str, ...]) -> Any:
    for word in words:
        found = found.commands[word]
    return found


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_a_url_is_no_local_path(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no command makes a folder `s3a:` and calls it done. Method: what each command gets when it is called."""
    monkeypatch.chdir(tmp_path)
    called = _called(command(), words[:-1])
    option = next(parameter for parameter in called.params if words[-1] in parameter.opts)
    given = [Path(URL)] if option.multiple else Path(URL)
    with pytest.raises(ConfigError) as refused:
        called.callback(**{option.name: given})
    assert refused.value.code is Code.PLACE_UNKNOWN
    assert list(tmp_path.iterdir()) == []


def _parsed(words: tuple[str, ...], place: str) -> Any:
    called = _called(command(), words[:-1])
    name = next(parameter.name for parameter in called.params if words[-1] in parameter.opts)
    needed = {
        "salvage": ["--to", "made.salvage"],
        "copy": [] if words[-1] == "--to" else ["--to", "/srv/site"],
        "ship": ["/"],
        "verify": ["/"] if words[0] == "recovery" else [],
        "seed": ["/", "--name", "r1"],
    }
    return called.make_context("it", [*needed.get(words[-2], []), words[-1], place]).params[name]


@pytest.mark.thorough
@pytest.mark.parametrize("words", PLACES, ids=" ".join)
def test_a_place_is_read_as_it_was_typed(words: tuple[str, ...]) -> None:
    """Goal: `file:` is taken, another host and scheme are not. Method: convert as the command line does."""
    assert _parsed(words, "file:///srv/archive") == Path("/srv/archive")
    for place in ("gs://bucket/archive", "file://elsewhere/archive"):
        with pytest.raises(ConfigError) as refused:
            _parsed(words, place)
        assert refused.value.code is Code.PLACE_UNKNOWN


@pytest.mark.parametrize("words", PLACES, ids=" ".join)
@pytest.mark.parametrize("url", [URL, "hdfs://namenode:8020/lake"])
def test_a_place_may_be_in_a_store_of_objects(words: tuple[str, ...], url: str) -> None:
    """Goal: whatever is written there is read there. Method: convert as the command line does."""
    found = _parsed(words, url)
    assert (type(found), found) == (Remote, url)


@pytest.mark.parametrize("words", [("recovery", "verify"), ("recovery", "seed")], ids=" ".join)
def test_a_shipped_checkpoint_is_read_where_it_was_shipped(words: tuple[str, ...], tmp_path: Path) -> None:
    """Goal: a checkpoint is named as its place is. Method: a store, a `file:` URL, an unknown scheme, no folder."""
    called, further = _called(command(), words), ["--name", "r1"] if "seed" in words else []

    def read(text: str) -> Any:
        return called.make_context("it", [text, *further]).params["checkpoint"]

    assert (type(read(URL)), read(URL)) == (Remote, URL)
    assert read(f"file://{tmp_path}") == tmp_path
    with pytest.raises(ConfigError) as refused:
        read("gs://bucket/checkpoint")
    assert refused.value.code is Code.PLACE_UNKNOWN
    with pytest.raises(typer.BadParameter, match="is not a folder"):
        read(str(tmp_path / "missing"))


def test_nothing_is_written_when_a_report_is_asked_for_elsewhere(tmp_path: Path) -> None:
    """Goal: code, exit code 2, and an empty folder. Method: the command as a process."""
    argv = [sys.executable, "-m", "replica.cli", "report", "--out", "gs://bucket/report"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("PLACE_UNKNOWN: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["s3a:/bucket", "gs://bucket/archive", "file://elsewhere/archive", URL])
def test_a_setting_refuses_a_url(place: str, tmp_path: Path) -> None:
    """Goal: the same for the configuration. Method: the archive's folder, except for a store, and the data folder."""
    for given in ({"archive": {"folder": place}}, {"data_dir": place})[place == URL :]:
        with pytest.raises(ConfigError) as refused:
            make_config(VALUES | given, tmp_path, "test")
        assert refused.value.code is Code.PLACE_UNKNOWN


def test_tables_refuse_what_archives_take(tmp_path: Path) -> None:
    """Goal: nothing is said to work that was never tried. Method: HDFS for each."""
    place = "hdfs://namenode:8020/notary"
    assert make_config(VALUES | {"archive": {"folder": place}}, tmp_path, "test").archive.folder == place
    with pytest.raises(ConfigError, match="tables are kept in a folder, in S3 or in Azure") as refused:
        make_config(VALUES | {"tables": {"folder": place}}, tmp_path, "test")
    assert refused.value.code is Code.PLACE_UNKNOWN


def test_a_setting_takes_a_file_url(tmp_path: Path) -> None:
    """Goal: `file:` names a local folder. Method: the archive's."""
    config = make_config(VALUES | {"archive": {"folder": "file:///srv/archive"}}, tmp_path, "test")
    assert config.archive.folder == Path("/srv/archive")


def test_the_archives_setting_takes_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an archive is kept where the operator has room. Method: by file and by environment, written out again."""
    config = make_config(VALUES | {"archive": {"folder": URL}}, tmp_path, "test")
    assert (type(config.archive.folder), config.archive.folder) == (Remote, URL)
    assert config.model_dump(mode="json")["archive"]["folder"] == URL
    monkeypatch.setenv("NOTARY_ARCHIVE__FOLDER", "s3://other/prefix")
    assert make_config(VALUES, tmp_path, "test").archive.folder == Remote("s3://other/prefix")
