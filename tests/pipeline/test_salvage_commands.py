"""A tail that the archive lacks, as an operator brings it back: real broker, real Postgres, real index."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from pipeline.archive.manifest import load_manifest
from pipeline.archive.restore import plan_restore, run_restore
from pipeline.archive.restore_plan import RestorePlan, Until
from pipeline.jobs.judge import judge_log
from pipeline.jobs.slices import served_log
from pipeline.sources.stretch import read_stretch
from pipeline.sources.topic import look_at
from replica.active.publisher import completions_of
from replica.active.signer import create_key, load_signer
from replica.config.load import load_config
from replica.config.model import Config
from replica.following.apply import Applier
from replica.following.salvaged import read_salvages
from replica.index.memory import MemoryIndex
from replica.index.rocks import RocksIndex, read_index
from replica.log.kafka.topic import create_topic
from replica.notary.codes import Code
from replica.notary.errors import RestoreRefused, SalvageDamaged, SalvageMissing, StoreMismatch
from replica.notary.position import begin, decode_position
from replica.notary.reading import read_records
from replica.notary.rules import STATE_KEY, TX_KEY
from replica.notary.salvage import Salvage, Salvages, decode_salvage
from replica.store.four_eyes import FourEyesRefused
from replica.store.postgres.store import PostgresStore
from tests.pipeline.test_commands import Operator, operator  # noqa: F401
from tests.worlds.archive_world import some_log
from tests.worlds.notary_logs import state, tx

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

VALUES = some_log(60)  # the first 40 are what the fixture's topic has
PUBLISHED, LAST = 50, 59
ENTRIES = 3 * (len(VALUES) - 3) + 2  # of each request; the officers, and a registration


class Killed(BaseException):
    """Stands for a kill."""


@asynccontextmanager
async def store_of(settings: Config) -> Any:
    """The replicas' store on a connection that nobody contends for."""

    class Session:
        @asynccontextmanager
        async def statement(self, name: str) -> Any:
            yield connection

    async with await psycopg.AsyncConnection.connect(settings.conninfo(), autocommit=True) as connection:
        yield PostgresStore(Session())


def lose(operator: Operator) -> Config:  # noqa: F811
    """Forty records archived, sixty applied, completions of 51 published; then the topic is gone."""
    settings = load_config(operator.config)
    assert operator.told("archive", "run")["archived_now"] == 40
    operator.produce(VALUES[40:])
    topic_id = asyncio.run(create_topic(settings.log.settings))
    folder = settings.replica_dir("r1")
    folder.mkdir(parents=True)
    index = RocksIndex(folder / "index")
    applier = Applier(index, topic_id)
    early = applier.apply(list(enumerate(VALUES[: PUBLISHED + 1])))
    applier.apply(list(enumerate(VALUES[PUBLISHED + 1 :], PUBLISHED + 1)))
    index.close()

    async def publish() -> None:
        async with store_of(settings) as store:
            await store.bind(topic_id)
            await store.published()
            await store.publish(completions_of(early), early.position)

    asyncio.run(publish())
    asyncio.run(operator.kafka.delete_topic(settings.log.settings.label))
    return settings


def forget(settings: Config) -> None:
    """The only index that is left is an old copy, of the first 44 records: nothing tells what seven decided."""
    folder = settings.replica_dir("r1") / "index"
    shutil.rmtree(folder)
    index = RocksIndex(folder)
    position = begin(load_manifest(settings.archive.folder).topic_id)
    applier = Applier(index, position.topic_id)
    applier.apply(list(enumerate(VALUES[:44])))
    index.close()


def adopt_by_two(operator: Operator, file: Path) -> None:  # noqa: F811
    """Adopt where four eyes are demanded: refused to one person, to one person twice, and for another salvage than was
    proposed; done by two people, once. Nothing that is refused has bound the database."""
    folder = operator.config.parent
    people = {name: create_key(folder / f"{name}.key").hex() for name in ("anna", "ben")}
    (folder / "operators.toml").write_text(
        "".join(f'[[operators]]\nname = "{name}"\npublic_key = "{key}"\n' for name, key in people.items())
    )

    def by(name: str) -> Operator:
        config = folder / f"by-{name}.toml"
        own = f'key_file = "{name}.key"\nkeys_file = "operators.toml"\nfour_eyes = ["restore-adopt"]\n'
        config.write_text(operator.config.read_text().replace("[operators]\n", "") + f"\n[operators]\n{own}")
        return replace(operator, config=config)

    anna, ben = by("anna"), by("ben")
    asked = ("restore", "adopt", "--salvage", str(file), "--accept-loss", "0")
    proposed = anna.types(*asked, "--propose", "--reason", "the topic is gone")
    assert proposed.exit_code == 0, proposed.output + repr(proposed.exception)
    number = proposed.output.split()[1].rstrip(";")
    changed = file.with_name("changed.salvage")
    changed.write_bytes(file.read_bytes() + b"\0")
    another = ("restore", "adopt", "--salvage", str(changed), "--accept-loss", "0")
    more = (*asked[:-1], "1")
    for who, words, code in (
        (ben, asked, Code.FOUR_EYES_NEEDED),
        (anna, (*asked, "--confirm", number), Code.FOUR_EYES_SAME_PERSON),
        (ben, (*another, "--confirm", number), Code.PROPOSAL_INVALID),
        (ben, (*more, "--confirm", number), Code.PROPOSAL_INVALID),
    ):
        refused = who.types(*words).exception
        assert isinstance(refused, FourEyesRefused) and refused.code is code, (words, refused)
    adopted = ben.types(*asked, "--confirm", number)
    assert adopted.exit_code == 0, adopted.output + repr(adopted.exception)
    again = ben.types(*asked, "--confirm", number).exception
    assert isinstance(again, FourEyesRefused) and again.code is Code.PROPOSAL_INVALID
    entries = json.loads(anna.types("trail", "list", "--json").output)
    told = [(one["operator"], one["phase"]) for one in entries if one["act"] == "restore-adopt"]
    assert told[-3:] == [("anna", "proposed"), ("ben", "begun"), ("ben", "done")]


def test_a_lost_tail_is_salvaged_restored_and_adopted(operator: Operator, tmp_path: Path) -> None:  # noqa: F811
    """Goal: from the archive's end on nothing is decided again. Method: an index and completions know more than the
    archive; salvage, restore (killed once), adopt; a new index is the one that was lost; the archive goes on."""
    settings = lose(operator)
    file = tmp_path / "tail.salvage"
    without = operator.types("restore", "plan")
    assert without.exit_code == 1 and "notary log salvage" in without.output.replace("\n", " ")
    saved = operator.told("log", "salvage", "--to", str(file))
    assert (saved["first"], saved["last"], saved["published"], saved["accept_loss"]) == (40, LAST, PUBLISHED, 0)
    assert saved["entries"] == 40  # twenty transactions of one state
    assert "exists already" in str(operator.types("log", "salvage", "--to", str(file)).exception)
    accepted = ("--salvage", str(file), "--accept-loss", "0")
    assert operator.types("restore", "plan", "--salvage", str(file)).exit_code == 1
    assert operator.types("restore", "plan", "--salvage", str(file), "--accept-loss", "1").exit_code == 1
    assert operator.types("restore", "plan", *accepted).exit_code == 0
    salvage = decode_salvage(file.read_bytes())
    kill_a_restore(settings, salvage)
    restored = operator.told("restore", "run", *accepted, "--resume", "--evidence", str(tmp_path / "evidence"))
    assert (restored["last"], look_at(settings.log.settings).end) == (LAST, LAST + 1)
    assert values_of(settings) == [*VALUES[:40], *[salvage.lost_record(offset) for offset in range(40, LAST + 1)]]

    for wrong in ((), ("--salvage", str(file)), ("--salvage", str(file), "--accept-loss", "3")):
        assert isinstance(operator.types("restore", "adopt", *wrong).exception, RestoreRefused)
    adopt_by_two(operator, file)
    assert operator.types("restore", "adopt", *accepted).exit_code == 0  # may be repeated
    topic_id = look_at(settings.log.settings).topic_id
    asyncio.run(bound_only_with(settings, topic_id, salvage))
    assert operator.types("topic", "check").exit_code == 0

    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    assert isinstance(
        operator.types("index", "salvage", str(tmp_path / "damaged"), "--name", "r1").exception, SalvageDamaged
    )
    assert operator.types("index", "salvage", str(file), "--name", "r1").exit_code == 0
    index = RocksIndex(tmp_path / "anew")
    held = read_salvages(settings.replica_dir("r1"))
    log = list(enumerate(values_of(settings)))
    applier = Applier(index, topic_id, held)
    applier.apply(log[:45])
    applier.apply(log[45:])
    assert index.entry_count == ENTRIES
    assert index.lookup([STATE_KEY + state(59), TX_KEY + tx(59)])[0] == tx(59) + (59).to_bytes(8, "big")
    index.close()
    published = asyncio.run(published_of(settings))
    assert published == read_records(begin(topic_id), log[: PUBLISHED + 1]).position
    assert operator.told("archive", "run")["archived_now"] == 20
    assert operator.told("archive", "verify")["findings"] == []
    assert [one.digest for one in read_salvages(settings.archive.folder).held.values()] == [salvage.digest]


@pytest.mark.thorough
def test_a_restored_topic_that_is_lost_again(operator: Operator, tmp_path: Path) -> None:  # noqa: F811
    """Goal: a second loss forgets nothing of the first. Method: lose the restored topic before the archive went on, and
    every index; the first salvage, which lies with the archive, supplies its entries again; without it nothing goes
    on."""
    settings = lose(operator)
    file, again = tmp_path / "tail.salvage", tmp_path / "again.salvage"
    operator.told("log", "salvage", "--to", str(file))
    accepted = ("--salvage", str(file), "--accept-loss", "0")
    operator.told("restore", "run", *accepted, "--evidence", str(tmp_path / "evidence"))
    assert operator.types("restore", "adopt", *accepted).exit_code == 0
    asyncio.run(operator.kafka.delete_topic(settings.log.settings.label))
    shutil.rmtree(settings.replica_dir("r1") / "index")
    saved = operator.told("log", "salvage", "--to", str(again))
    assert (saved["first"], saved["last"], saved["entries"], saved["accept_loss"]) == (40, LAST, 40, 0)
    first, second = (decode_salvage(path.read_bytes()) for path in (file, again))
    assert list(first.entries()) == list(second.entries())
    shutil.rmtree(settings.archive.folder / "salvages")
    refused = operator.types("log", "salvage", "--to", str(tmp_path / "third.salvage"))
    assert first.digest.hex() in str(refused.exception)


@pytest.mark.thorough
def test_jobs_on_spark_do_not_pass_over_a_lost_range(operator: Operator, spark: Any, tmp_path: Path) -> None:  # noqa: F811
    """Goal: no index or audit that forgets the tail. Method: judge a restored log on Spark; rebuild an index without
    the salvage, and with it: it is the one that was lost."""
    from pipeline.failures import explained
    from pipeline.jobs.rebuild import rebuild_index

    settings = lose(operator)
    file = tmp_path / "tail.salvage"
    operator.told("log", "salvage", "--to", str(file))
    operator.told(
        *("restore", "run", "--salvage", str(file), "--accept-loss", "0"), "--evidence", str(tmp_path / "evidence")
    )
    with pytest.raises(SalvageMissing, match="offset 40 was lost"), explained():
        judge_log(spark, served_log(settings.log.settings), tmp_path / "work")
    log = served_log(settings.log.settings)
    with pytest.raises(SalvageMissing, match="offset 40 was lost"), explained():
        rebuild_index(spark, log, tmp_path / "without", tmp_path / "work-without")
    held = Salvages([decode_salvage(file.read_bytes())])
    rebuilt = rebuild_index(spark, log, tmp_path / "anew", tmp_path / "work-with", salvages=held, ranges=3)
    with read_index(settings.replica_dir("r1") / "index") as lost, read_index(tmp_path / "anew") as anew:
        assert list(anew.entries) == list(lost.entries)
    index = MemoryIndex()
    applier = Applier(index, log.topic_id, held)
    applier.apply(list(enumerate(values_of(settings))))
    assert (rebuilt.position, rebuilt.entry_count) == (applier.position, ENTRIES)


@pytest.mark.thorough
def test_what_no_index_tells_is_counted_and_must_be_accepted(operator: Operator, tmp_path: Path) -> None:  # noqa: F811
    """Goal: nobody loses states unknowingly. Method: the only index that is left is an old copy."""
    settings = lose(operator)
    forget(settings)
    file = tmp_path / "tail.salvage"
    saved = operator.told("log", "salvage", "--to", str(file))
    assert (saved["applied"], saved["last"], saved["accept_loss"]) == (43, PUBLISHED, 7)
    assert saved["states_unknown"] == [tx(number).hex() for number in range(44, 51)]
    assert operator.types("restore", "plan", "--salvage", str(file), "--accept-loss", "0").exit_code == 1
    assert operator.types("restore", "plan", "--salvage", str(file), "--accept-loss", "7").exit_code == 0


def kill_a_restore(settings: Config, salvage: Salvage) -> None:
    """Restore up to within the lost range, and die."""
    manifest = load_manifest(settings.archive.folder)
    key = load_signer(settings.archive.key_file).public_key
    plan: RestorePlan = plan_restore(manifest, key, settings.log.settings, Until(), accept_loss=0, salvage=salvage)
    assert not plan.refused
    shorter = RestorePlan(plan.archive_id, plan.topic, plan.last, salvage=_Shorter(salvage, 45))  # type: ignore[arg-type]
    run_restore(manifest, shorter, settings.log.settings, lambda: 7, lambda offset: None)
    again = plan_restore(manifest, key, settings.log.settings, Until(), accept_loss=0, salvage=salvage)
    assert [check.name for check in again.refused] == ["target"]


class _Shorter:
    """The same salvage, as far as a restore came that was killed."""

    def __init__(self, salvage: Salvage, last: int) -> None:
        self.first, self.last, self.digest = salvage.first, last, salvage.digest
        self.lost_record = salvage.lost_record


def values_of(settings: Config) -> list[bytes]:
    end = look_at(settings.log.settings).end
    return [
        value for batch in read_stretch(settings.log.settings, 0, end) for value in batch.column("value").to_pylist()
    ]


async def bound_only_with(settings: Config, topic_id: str, salvage: Salvage) -> None:
    """No replica without the salvage serves, and no release that does not know of any."""
    async with store_of(settings) as store:
        with pytest.raises(SalvageMissing):
            await store.bind(topic_id)
        with pytest.raises(SalvageMissing):
            await store.bind(topic_id, ["00" * 32])
        with pytest.raises(StoreMismatch):
            await store.bind("another", [salvage.digest.hex()])
        await store.bind(topic_id, [salvage.digest.hex()])
    async with await psycopg.AsyncConnection.connect(settings.conninfo()) as connection:
        row = await (await connection.execute("SELECT topic_id FROM participant")).fetchone()
    assert row is not None and row[0] != topic_id  # which is all that a release before this one compares


async def published_of(settings: Config) -> Any:
    async with await psycopg.AsyncConnection.connect(settings.conninfo()) as connection:
        row = await (await connection.execute("SELECT published_position FROM participant")).fetchone()
    assert row is not None
    return msgspec.structs.replace(decode_position(row[0]))
