"""A copy that the first site's log outlived by some records: what an index knows of them goes to the second site."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner, Result

from pipeline import log_copy
from pipeline.log_copy import LogCopier, end_of
from pipeline.sources.topic import look_at
from replica.active.completions import completions_of
from replica.active.signer import create_key, load_signer
from replica.cli import pipeline as shared
from replica.cli.main import app
from replica.config.file import render_config
from replica.config.load import load_config
from replica.config.model import Config
from replica.following.apply import Applier
from replica.following.salvaged import read_salvages
from replica.index.rocks import RocksIndex
from replica.log.admin import StoredRecord
from replica.log.open import refill_log
from replica.log.postgres.settings import PostgresLogSettings
from replica.log.settings import LogSettings
from replica.notary.errors import ConfigError, LogCopyRefused, RestoreRefused, SalvageMissing
from replica.notary.position import encode_position
from replica.notary.rules import STATE_KEY, TX_KEY
from replica.notary.salvage import Salvage, decode_salvage, encode_salvage
from replica.store.postgres.migrate import migrate
from tests.integration.conftest import MakeDatabase
from tests.pipeline.test_log_copy import Sites, records
from tests.pipeline.test_salvage_commands import Killed, store_of
from tests.worlds.notary_logs import LogMaker, begun, request_of, state, tx

pytestmark = [pytest.mark.thorough, pytest.mark.kafka, pytest.mark.postgres]

COPIED, PUBLISHED, LAST = 8, 9, 11  # records in the copy; the last offset with a completion, and of the lost log


def some_log() -> LogMaker:
    """As ledgers begin, and at each further offset the transaction of its number, which spends the state of it."""
    maker = begun()
    for number in range(len(maker.values), LAST + 1):
        maker.submit(request_of(number, (number,)))
    return maker


@dataclass
class TwoSites:
    """A first site that lost its log, and kept an index and a database that know more than the second site's copy."""

    folder: Path
    source: PostgresLogSettings
    target: LogSettings

    @property
    def first(self) -> Config:
        return load_config(self.folder / "notary.toml")

    @property
    def second(self) -> Config:
        return load_config(self.folder / "second.toml")

    def types(self, *words: str, at: str = "notary") -> Result:
        return CliRunner().invoke(app, [*words, "--config", str(self.folder / f"{at}.toml")])

    def told(self, *words: str, at: str = "notary") -> dict[str, Any]:
        result = self.types(*words, "--json", at=at)
        assert result.exit_code == 0, result.output + repr(result.exception)
        found: dict[str, Any] = json.loads(result.output[result.output.index("{") :])
        return found

    def refused(self, *words: str, at: str = "notary") -> str:
        """What the command says that refuses; the copy is as it was."""
        before = records(self.target)
        error = self.types(*words, at=at).exception
        assert isinstance(error, RestoreRefused), error
        assert records(self.target) == before
        return str(error)

    def salvage(self, name: str = "tail.salvage") -> Salvage:
        """A salvage of the copy's end, in this file."""
        self.told("log", "salvage", "--copy", str(self.folder / "second.toml"), "--to", str(self.folder / name))
        return decode_salvage((self.folder / name).read_bytes())

    def finish(self, name: str = "tail.salvage", loss: int = 0) -> tuple[str, ...]:
        return "log", "copy", "--finish", "--salvage", str(self.folder / name), "--accept-loss", str(loss)


MakeSites = Callable[..., TwoSites]


@pytest.fixture
def two_sites(
    make_database: MakeDatabase,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> MakeSites:
    """Makes both sites; the second site's log is of this kind and has eight records, the archive so many of twelve."""
    monkeypatch.setattr(log_copy, "SETTLE_S", 0.0)
    monkeypatch.setattr(shared, "quiet_libraries", lambda: None)

    def make(kind: str, archived: int = 5) -> TwoSites:
        maker = some_log()
        servers = request.getfixturevalue("kafka_broker").bootstrap_servers if kind == "kafka" else ""
        sites = Sites(servers, make_database)
        source = sites.postgres()
        append(source, maker.log[:archived])
        target = sites.topic() if kind == "kafka" else sites.postgres()
        made = TwoSites(tmp_path, source, target)
        dsn = asyncio.run(_migrated(make_database))
        create_key(tmp_path / "notary.key")
        (tmp_path / "parties.toml").write_text("[parties]\n")
        for name, log in (("notary", source), ("second", target)):
            (tmp_path / f"{name}.toml").write_text(render_config(values_of(name, log, dsn), "test"))
        assert made.told("archive", "run", "--engine", "process")["archived_now"] == archived
        append(source, maker.log[archived:])
        refill_log(target, records(source)[:COPIED], 0, COPIED, lambda end: None, goes_on=True)
        lose(made, maker.log)
        gone = source.model_copy(update={"conninfo": "host=127.0.0.1 port=1 dbname=gone"})
        (tmp_path / "notary.toml").write_text(render_config(values_of("notary", gone, dsn), "test"))
        return made

    return make


async def _migrated(make_database: MakeDatabase) -> str:
    dsn = await make_database()
    await migrate(dsn, 1)
    return dsn


def append(log: PostgresLogSettings, values: list[tuple[int, bytes]]) -> None:
    at = [StoredRecord(offset, 1_000_000_000_000 + offset, None, value) for offset, value in values]
    refill_log(log, at, at[0].offset, at[-1].offset + 1, lambda end: None)


def values_of(name: str, log: LogSettings, dsn: str) -> dict[str, Any]:
    where = log.model_dump(mode="json", exclude_defaults=True)
    return {
        "data_dir": f"replicas-{name}",
        "notary_key_file": "notary.key",
        "endpoint": {"host": "127.0.0.1", "port": 1},
        "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
        "database": {"conninfo": dsn, "scope": conninfo_to_dict(dsn)["dbname"]},
        "log": {"kind": log.kind, log.kind: where},
        "log_copy": {"to": "second.toml"},
    }


def lose(made: TwoSites, log: list[tuple[int, bytes]]) -> None:
    """The first site's replica applied the whole log and published up to PUBLISHED."""
    topic_id = look_at(made.source).topic_id
    folder = made.first.replica_dir("r1")
    folder.mkdir(parents=True)
    index = RocksIndex(folder / "index")
    applier = Applier(index, topic_id)
    early = applier.apply(log[: PUBLISHED + 1])
    applier.apply(log[PUBLISHED + 1 :])
    index.close()

    async def publish() -> None:
        async with store_of(made.first) as store:
            await store.bind(topic_id)
            await store.published()
            await store.publish(completions_of(early), early.position)

    asyncio.run(publish())


@pytest.mark.parametrize("kind", ["kafka", "postgres"])
def test_what_an_index_knows_after_the_copys_end_stays_decided(two_sites: MakeSites, kind: str) -> None:
    """Goal: the second site decides nothing again that the first one answered. Method: salvage, finish, adopt, give the
    file to a replica there; it refuses a state that only the index had as spent, and knows the transaction again. A
    copier that comes back writes nothing."""
    made = two_sites(kind)
    before = records(made.target)
    salvage = made.salvage()
    assert (salvage.first, salvage.last, salvage.header.published) == (COPIED, LAST, PUBLISHED)
    assert made.told(*made.finish())["copy_end"] == LAST + 1
    lost = [salvage.lost_record(offset) for offset in range(COPIED, LAST + 1)]
    assert records(made.target)[:COPIED] == before
    assert [record.value for record in records(made.target)[COPIED:]] == lost
    assert look_at(made.target).end == LAST + 1  # its contract is that of a log that replicas may write

    file = str(made.folder / "tail.salvage")
    assert "adopt with --salvage" in made.refused("restore", "adopt", at="second")
    adopted = made.types("restore", "adopt", "--salvage", file, "--accept-loss", "0", at="second")
    assert adopted.exit_code == 0, adopted.output + repr(adopted.exception)
    assert made.types("index", "salvage", file, "--name", "r1", at="second").exit_code == 0
    maker = some_log()
    maker.barrier(2)
    maker.submit(request_of(90, (LAST,)))  # spends what only the index knows to be spent
    maker.submit(request_of(LAST, (LAST,)))  # the very transaction, sent again
    log = [(record.offset, record.value or b"") for record in records(made.target)]
    log += list(enumerate(maker.values[LAST + 1 :], LAST + 1))
    with pytest.raises(SalvageMissing):
        Applier(RocksIndex(made.folder / "without"), look_at(made.target).topic_id).apply(log)
    held = read_salvages(made.second.replica_dir("r1"))
    index = RocksIndex(made.folder / "anew")
    outcomes = [one for _, one in completions_of(Applier(index, look_at(made.target).topic_id, held).apply(log))]
    assert index.lookup([STATE_KEY + state(LAST), TX_KEY + tx(90)])[0] == tx(LAST) + LAST.to_bytes(8, "big")
    index.close()
    refused, repeated = outcomes[-2:]
    assert (refused.tx_id, refused.notarised_offset) == (tx(90), None)
    assert (repeated.tx_id, repeated.notarised_offset) == (tx(LAST), LAST)


class _Cut:
    """Kills the writer after so many lost records."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, settings: LogSettings, given: Any, first: int, end: int, *further: Any, **named: Any) -> str:
        part: list[StoredRecord] = [record for record in given if record.offset < first + self.left]
        if part:
            refill_log(settings, part, first, first + len(part), *further, **named)
        raise Killed


def test_an_archive_that_goes_further_than_the_copy(two_sites: MakeSites) -> None:
    """Goal: nothing is declared lost that is kept. Method: an archive with one record more than the copy."""
    made = two_sites("postgres", archived=COPIED + 1)
    words = ("log", "salvage", "--copy", str(made.folder / "second.toml"), "--to", str(made.folder / "tail.salvage"))
    assert "without --copy" in made.refused(*words)


@pytest.mark.parametrize("kind", ["kafka", "postgres"])
def test_a_finish_that_was_killed_goes_on(
    two_sites: MakeSites,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: each lost record once, and no half of them served. Method: kill the writer after two records; neither a
    finish without the file, nor with another one, nor an adoption goes on; the same command does, twice."""
    made = two_sites(kind)
    salvage, another = made.salvage(), made.salvage("another")
    with monkeypatch.context() as killed:
        killed.setattr(log_copy, "refill_log", _Cut(2))
        with pytest.raises(Killed):
            made.types(*made.finish())
    assert end_of(made.target) == COPIED + 2
    assert salvage.digest.hex() in made.refused("log", "copy", "--finish")
    assert salvage.digest != another.digest
    assert "is not one of this salvage" in made.refused(*made.finish("another"))
    third = ("log", "salvage", "--copy", str(made.folder / "second.toml"), "--to", str(made.folder / "third"))
    assert salvage.digest.hex() in made.refused(*third)
    with pytest.raises(LogCopyRefused, match="is not the log's"):
        LogCopier(made.source, made.target, lambda _: None).open()
    for _ in range(2):
        assert made.told(*made.finish())["copy_end"] == LAST + 1
    lost = [salvage.lost_record(offset) for offset in range(COPIED, LAST + 1)]
    assert [record.value for record in records(made.target)[COPIED:]] == lost


def test_a_salvage_of_another_end_is_refused(two_sites: MakeSites) -> None:
    """Goal: lost records come only after the record that they followed. Method: a salvage of another copy, one that
    follows another record, a loss that nobody accepted, completions that went on, the log itself, and a copy that
    went on: each is refused, and says what to do."""
    made = two_sites("postgres")
    salvage = made.salvage()
    signer = load_signer(made.first.archive.key_file)

    def changed(**fields: Any) -> tuple[str, ...]:
        (name,) = fields
        header = replace(salvage.header, **fields)
        (made.folder / name).write_bytes(encode_salvage(header, salvage.entries(), signer.sign))
        return made.finish(name)

    own = values_of("own", made.source, made.first.conninfo())
    (made.folder / "own.toml").write_text(render_config(own, "test"))
    follows = encode_position(replace(salvage.base, digest=bytes(32)))
    for words, said in (
        (changed(archive_id="another"), "the salvage continues another"),
        (changed(position=follows), f"record at offset {COPIED - 1} is not the one that the salvage follows"),
        (changed(published=PUBLISHED - 1), "make a new one: notary log salvage"),
        (made.finish(loss=3), "--accept-loss 0"),
        (made.finish()[:-2], "--accept-loss 0"),
        (
            ("log", "salvage", "--copy", str(made.folder / "own.toml"), "--to", str(made.folder / "own")),
            "and no copy of it",
        ),
    ):
        assert said in made.refused(*words), words
    with pytest.raises(ConfigError, match="go with --finish"):
        raise made.types("log", "copy", "--accept-loss", "0").exception or AssertionError
    further = records(made.target)[-1]
    refill_log(made.target, [replace(further, offset=COPIED)], COPIED, COPIED + 1, lambda end: None)
    assert f"record at offset {COPIED} is not one of this salvage" in made.refused(*made.finish())
