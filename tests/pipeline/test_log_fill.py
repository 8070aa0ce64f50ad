"""A log that a power cut left shorter than what was answered from it goes on itself, with lost records at its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pipeline import log_copy
from pipeline.sources.topic import look_at
from replica.active.completions import completions_of
from replica.active.signer import create_key
from replica.cli import pipeline as shared
from replica.cli.main import app
from replica.config.file import render_config
from replica.config.load import load_config
from replica.config.model import Config
from replica.following.apply import Applier
from replica.following.salvaged import read_salvages
from replica.index.memory import MemoryIndex
from replica.index.rocks import RocksIndex
from replica.log.admin import StoredRecord
from replica.log.open import refill_log
from replica.log.settings import LogSettings
from replica.notary.errors import ConfigError, RestoreRefused, SalvageMissing
from replica.notary.position import begin, encode_position
from replica.notary.reading import read_records
from replica.notary.salvage import Salvage, decode_salvage
from tests.integration.conftest import MakeDatabase
from tests.pipeline.test_log_copy import Sites, records
from tests.pipeline.test_log_copy_salvage import Killed, _migrated, some_log, store_of, values_of
from tests.pipeline.test_salvage_commands import bound_only_with
from tests.worlds.notary_logs import LogMaker, request_of, tx

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

LEFT, PUBLISHED, LAST, MARK, EXPOSED = 8, 9, 11, 13, 3
"""Records that are left; the last offset with a completion, that an index has, and that a replica noted."""


@dataclass
class CutSite:
    """A site whose log has eight records, all of it as the database, an index and a mark know more."""

    folder: Path
    log: LogSettings
    mark: str

    @property
    def config(self) -> Config:
        return load_config(self.folder / "notary.toml")

    def types(self, *words: str, at: str = "notary") -> Result:
        return CliRunner().invoke(app, [*words, "--config", str(self.folder / f"{at}.toml")])

    def told(self, *words: str, at: str = "notary") -> dict[str, Any]:
        result = self.types(*words, "--json", at=at)
        assert result.exit_code == 0, result.output + repr(result.exception)
        found: dict[str, Any] = json.loads(result.output[result.output.index("{") :])
        return found

    def salvaging(self, *more: str, name: str = "tail.salvage") -> tuple[str, ...]:
        marks = ("--mark", self.mark, "--exposed", str(EXPOSED))
        return "log", "salvage", *more, *marks, "--to", str(self.folder / name)

    @property
    def file(self) -> str:
        return str(self.folder / "tail.salvage")

    def salvage(self) -> Salvage:
        return decode_salvage(Path(self.file).read_bytes())


MakeSite = Callable[..., CutSite]


@pytest.fixture
def cut_site(
    make_database: MakeDatabase, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MakeSite:
    """Makes a site with a log of this kind, of which the first five records are archived."""
    monkeypatch.setattr(log_copy, "SETTLE_S", 0.0)
    monkeypatch.setattr(shared, "quiet_libraries", lambda: None)

    def make(kind: str, regrown: int = 0, archived: int = 5, *, outlives: bool = True) -> CutSite:
        servers = request.getfixturevalue("kafka_broker").bootstrap_servers if kind == "kafka" else ""
        sites = Sites(servers, make_database)
        log, another = (sites.topic() if kind == "kafka" else sites.postgres() for _ in range(2))
        dsn = asyncio.run(_migrated(make_database))
        create_key(tmp_path / "notary.key")
        (tmp_path / "parties.toml").write_text("[parties]\n")
        for name, settings in (("notary", log), ("another", another)):
            (tmp_path / f"{name}.toml").write_text(render_config(values_of("notary", settings, dsn), "test"))
        maker = some_log()
        append(log, maker.log[:archived])
        site = CutSite(tmp_path, log, "")
        if archived:
            assert site.told("archive", "run", "--engine", "process")["archived_now"] == archived
        append(log, maker.log[archived:LEFT])
        if regrown:  # as workers append that have not heard of the cut
            other = LogMaker(values=maker.values[:LEFT])
            other.sequence, other.activation_id = maker.sequence, maker.activation_id
            for number in range(regrown):
                other.submit(request_of(50 + number, (50 + number,)))
            append(log, other.log[LEFT:])
        if outlives:
            site.mark = outlived(site, maker)
        return site

    return make


def append(log: LogSettings, values: list[tuple[int, bytes]]) -> None:
    at = [StoredRecord(offset, 1_000_000_000_000 + offset, None, value) for offset, value in values]
    if at:
        refill_log(log, at, at[0].offset, at[-1].offset + 1, lambda end: None)


def outlived(site: CutSite, maker: LogMaker) -> str:
    """What the log's replica applied and published before the cut; and the mark that another one noted."""
    log_id = look_at(site.log).topic_id
    folder = site.config.replica_dir("r1")
    folder.mkdir(parents=True)
    index = RocksIndex(folder / "index")
    applier = Applier(index, log_id)
    early = applier.apply(maker.log[: PUBLISHED + 1])
    applier.apply(maker.log[PUBLISHED + 1 :])
    index.close()

    async def publish() -> None:
        async with store_of(site.config) as store:
            await store.bind(log_id)
            await store.published()
            await store.publish(completions_of(early), early.position)

    asyncio.run(publish())
    for number in range(LAST + 1, MARK + 1):
        maker.submit(request_of(number, (number,)))
    return encode_position(read_records(begin(log_id), maker.log).position).hex()


def judged(site: CutSite, log: LogSettings) -> list[tuple[bytes, int | None]]:
    """What a replica there makes of a state that only the index had as spent, and of that very transaction."""
    maker = LogMaker(values=[record.value or b"" for record in records(log)])
    maker.barrier(2)
    maker.submit(request_of(90, (LAST,)))
    maker.submit(request_of(LAST, (LAST,)))
    with pytest.raises(SalvageMissing):
        Applier(MemoryIndex(), look_at(log).topic_id).apply(maker.log)
    held = read_salvages(site.config.replica_dir("r1"))
    applied = Applier(MemoryIndex(), look_at(log).topic_id, held).apply(maker.log)
    outcomes = [one for _, one in completions_of(applied)]
    return [(one.tx_id, one.notarised_offset) for one in outcomes[-2:]]


@pytest.mark.parametrize(
    ("kind", "archived"),
    [("kafka", 5), *(pytest.param("postgres", count, marks=pytest.mark.thorough) for count in (5, 0))],
)
def test_a_log_that_was_cut_goes_on(cut_site: MakeSite, kind: str, archived: int) -> None:
    """Goal: what was answered stays decided, and no offset that was told is used again. Method: salvage, fill, adopt
    and import, each of them twice, as after a kill; nothing that is left changes; a replica judges by it."""
    site = cut_site(kind, archived=archived)
    before = records(site.log)
    said = site.told(*site.salvaging("--cut"))
    assert (said["first"], said["last"], said["applied"], said["mark"]) == (LEFT, MARK + EXPOSED, LAST, MARK)
    assert site.types(*site.salvaging("--cut")).exit_code != 0  # the file is there, and is never replaced
    accepted = ("--accept-loss", "0")
    assert isinstance(site.types("log", "fill", site.file, "--accept-loss", "1").exception, RestoreRefused)
    assert isinstance(site.types("restore", "adopt", "--salvage", site.file, *accepted).exception, RestoreRefused)
    for _ in range(2):
        assert site.told("log", "fill", site.file, *accepted)["log_end"] == MARK + EXPOSED + 1
    salvage = site.salvage()
    lost = [salvage.lost_record(offset) for offset in range(LEFT, MARK + EXPOSED + 1)]
    assert records(site.log)[:LEFT] == before
    assert [record.value for record in records(site.log)[LEFT:]] == lost
    assert isinstance(site.types("restore", "adopt").exception, RestoreRefused)
    for _ in range(2):
        adopted = site.types("restore", "adopt", "--salvage", site.file, *accepted)
        assert adopted.exit_code == 0, adopted.output + repr(adopted.exception)
        assert f"published up to offset {PUBLISHED}" in adopted.output
        assert site.types("index", "salvage", site.file, "--name", "r1").exit_code == 0
    assert judged(site, site.log) == [(tx(90), None), (tx(LAST), LAST)]

    asyncio.run(bound_only_with(site.config, look_at(site.log).topic_id, salvage))
    if archived:
        assert site.told("archive", "run", "--engine", "process")["archived_now"] == MARK + EXPOSED + 1 - archived


class _Cut:
    """Kills the writer after so many lost records."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, settings: LogSettings, given: Any, first: int, end: int, *further: Any, **named: Any) -> str:
        part: list[StoredRecord] = [record for record in given if record.offset < first + self.left]
        if part:
            refill_log(settings, part, first, first + len(part), *further, **named)
        raise Killed


@pytest.mark.thorough
def test_a_fill_that_was_killed_after_any_record_goes_on(cut_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: each lost record once. Method: one fill, killed after each further record: repeated with the same file it
    goes on; another file, a new salvage and an adoption are refused every time."""
    site = cut_site("postgres")
    site.told(*site.salvaging("--cut"))
    site.told(*site.salvaging("--cut", name="other"))
    salvage = site.salvage()
    for written in range(1, MARK + EXPOSED - LEFT + 2):
        with monkeypatch.context() as killed:
            killed.setattr(log_copy, "refill_log", _Cut(1))
            with pytest.raises(Killed):
                site.types("log", "fill", site.file, "--accept-loss", "0")
        assert look_at(site.log).end == LEFT + written
        for words in (
            ("log", "fill", str(site.folder / "other"), "--accept-loss", "0"),
            site.salvaging("--cut", name="third"),
            ("restore", "adopt"),
        ):
            assert isinstance(site.types(*words).exception, RestoreRefused), (written, words)
    for _ in range(2):
        assert site.told("log", "fill", site.file, "--accept-loss", "0")["log_end"] == MARK + EXPOSED + 1
    lost = [salvage.lost_record(offset) for offset in range(LEFT, MARK + EXPOSED + 1)]
    assert [record.value for record in records(site.log)[LEFT:]] == lost


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["kafka", "postgres"])
def test_a_log_that_grew_again_goes_on_in_another_one(cut_site: MakeSite, kind: str) -> None:
    """Goal: records that nobody was answered from are not put in place of those that somebody was. Method: two other
    records after the cut. The log is refused, with what to do; done so, a copy goes on, and the log is as it was."""
    site = cut_site(kind, regrown=2)
    before = records(site.log)
    refused = site.types(*site.salvaging("--cut")).exception
    assert isinstance(refused, RestoreRefused)
    assert f"notary log copy --until-offset {LEFT - 1} --to FILE" in str(refused)
    another = str(site.folder / "another.toml")
    copied = site.told("log", "copy", "--until-offset", str(LEFT - 1), "--to", another)
    assert copied["copied_records"] == LEFT
    assert site.told(*site.salvaging("--copy", another))["last"] == MARK + EXPOSED
    accepted = ("--salvage", site.file, "--accept-loss", "0")
    assert site.told("log", "copy", "--finish", "--to", another, *accepted)["copy_end"] == MARK + EXPOSED + 1
    adopted = site.types("restore", "adopt", *accepted, at="another")
    assert adopted.exit_code == 0, adopted.output + repr(adopted.exception)
    assert site.types("index", "salvage", site.file, "--name", "r1", at="another").exit_code == 0
    copy = load_config(site.folder / "another.toml").log.settings
    assert judged(site, copy) == [(tx(90), None), (tx(LAST), LAST)]
    assert records(site.log) == before


def test_a_site_without_any_source_is_told_so(cut_site: MakeSite) -> None:
    """Goal: nobody goes on as if nothing was lost. Method: no index, completion or mark; then a number that a person
    gives, of offsets that no answer can have reached: they are lost, with nothing known of them."""
    site = cut_site("postgres", archived=0, outlives=False)
    words = ("log", "salvage", "--cut", "--to", site.file)
    refused = site.types(*words).exception
    assert isinstance(refused, RestoreRefused) and str(refused).startswith("SALVAGE_SOURCELESS: no index")
    said = site.told(*words, "--exposed", "5")
    assert (said["first"], said["last"], said["entries"], said["accept_loss"]) == (LEFT, LEFT + 4, 0, 0)
    assert site.told("log", "fill", site.file, "--accept-loss", "0")["log_end"] == LEFT + 5


@pytest.mark.thorough
def test_what_cannot_be_a_cut_is_refused(cut_site: MakeSite) -> None:
    """Goal: `--cut` is for a log that is there and has all that is archived. Method: an archive that goes further; what
    is no position; two kinds of source."""
    site = cut_site("postgres", archived=LEFT)
    ahead = "archive-that-goes-further"
    gone = site.types(*site.salvaging("--cut", "--mark", "00"))
    assert isinstance(gone.exception, ConfigError) and "--mark is no position" in str(gone.exception)
    both = site.types(*site.salvaging("--cut", "--copy", str(site.folder / "another.toml")))
    assert isinstance(both.exception, ConfigError)
    shorter = load_config(site.folder / "another.toml").log.settings
    append(shorter, [(record.offset, record.value or b"") for record in records(site.log)[:3]])
    refused = site.types(*site.salvaging("--cut", name=ahead), at="another").exception
    assert isinstance(refused, RestoreRefused) and "restore from the archive" in str(refused)
