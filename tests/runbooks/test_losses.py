"""Runbooks of losses that are mended from the archive: the topic, and a whole site. See test_runbooks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from ledger_api.client import NotaryClient
from replica.config.load import load_config
from replica.index.rocks import RocksIndex
from replica.local.cluster import ClusterSettings
from replica.local.participant import DATABASE, OWNER, ROLE, ParticipantFiles
from replica.notary.answers import Notarised, Refused
from replica.notary.requests import parse_state_ref
from replica.notary.rules import STATE_KEY
from tests.faults.audit import audit
from tests.runbooks.conftest import staged, under_load
from tests.runbooks.stage import Stage
from tests.runbooks.test_runbooks import about, says
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]


SPENT_EVERY = 10  # of the lost successes, one has its states spent again; all of them are looked up


async def history_before(stage: Stage) -> Path:
    """The clients' answers, all of them archived."""
    async with under_load(stage, "before") as load:
        await asyncio.sleep(3.0)
    process = await asyncio.create_subprocess_exec(
        *("notary", "archive", "run"), cwd=stage.cluster.folder, env=stage.environment({})
    )
    assert await process.wait() == 0
    return load.history


@pytest.mark.only_kafka("a lost topic; a lost log on Postgres: tests/pipeline/test_postgres_log.py")
async def test_topic_loss(folder: Path) -> None:
    """Goal: a deleted topic comes back with every answer. Method: archive, delete it under the replicas, play."""
    async with staged(ClusterSettings(folder=folder / "topic-loss", topics_deletable=True)) as stage:
        cluster = stage.cluster
        history = await history_before(stage)
        variables = {"REPLICAS": " ".join(cluster.replicas)}
        await cluster.kafka.delete_topic(cluster.topic)
        await stage.play("topic-loss", "Checks", **variables)
        printed = await stage.play("topic-loss", "Steps", "Stop and look", **variables)
        assert "nothing is lost" in printed
        await stage.play("topic-loss", "Steps", "Nothing is lost", **variables)
        await stage.play("topic-loss", "Steps", "Start", **variables)
        await stage.play("topic-loss", "Verification", **variables)
        await audit(cluster, [history])
        async with under_load(stage, "after"):
            await asyncio.sleep(5.0)
    stage.assert_all_played("topic-loss", elsewhere="A tail is lost")


@pytest.mark.only_kafka("a lost topic; a lost log on Postgres: tests/pipeline/test_postgres_log.py")
async def test_topic_loss_with_a_lost_tail(folder: Path) -> None:
    """Goal: what the archive lacks stays notarised and spent, at its offsets. Method: archive, go on under load, delete
    the topic under the replicas, play; check every answer ever given; spend states of the lost tail again."""
    async with staged(ClusterSettings(folder=folder / "lost-tail", topics_deletable=True)) as stage:
        cluster = stage.cluster
        archived = await history_before(stage)
        async with under_load(stage, "unarchived") as load:
            await asyncio.sleep(4.0)
        variables = {"REPLICAS": " ".join(cluster.replicas)}
        await cluster.kafka.delete_topic(cluster.topic)
        await stage.play("topic-loss", "Checks", **variables)
        await stage.play("topic-loss", "Steps", "Stop and look", **variables)
        saved = json.loads((cluster.folder / "salvage.json").read_text())
        assert saved["entries"] > 20, saved
        assert (saved["accept_loss"], saved["applied"] >= saved["published"]) == (0, True), saved
        await stage.play("topic-loss", "Steps", "A tail is lost", **variables)
        await stage.play("topic-loss", "Steps", "Start", **variables)
        await stage.play("topic-loss", "Verification", **variables)
        summary = await audit(cluster, [archived, load.history])
        assert summary["outcomes"]["LOST"] == saved["last"] - saved["first"] + 1
        assert await spent_again(stage, load.history, saved["first"]) > 10
        async with under_load(stage, "after"):
            await asyncio.sleep(5.0)
        await forget_the_salvage(stage)
    stage.assert_all_played("topic-loss", elsewhere="Nothing is lost")


async def spent_again(stage: Stage, history: Path, first_lost: int) -> int:
    """Look each lost success up, and spend the states of some of them in another transaction; how many there were."""
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    sent = {(one["process"], one["op"]): one for one in lines if one["type"] == "invoke" and "content" in one}
    won = {
        sent[one["process"], one["op"]]["tx_id"]: one
        for one in lines
        if one["type"] == "ok" and one["log_offset"] >= first_lost and (one["process"], one["op"]) in sent
    }
    party = stage.cluster.parties[0]
    async with NotaryClient(stage.cluster.endpoint) as client:
        for number, (tx_id, ok) in enumerate(won.items()):
            inputs = sent[ok["process"], ok["op"]]["content"].get("inputs", [])
            found = await client.look_up(bytes.fromhex(tx_id))
            assert isinstance(found, Notarised), (tx_id, found)
            assert found.log_offset == ok["log_offset"], (tx_id, found)
            for state in inputs if number % SPENT_EVERY == 0 else ():
                answer = await client.submit(party.sign(os.urandom(32), [parse_state_ref(state)]))
                assert isinstance(answer, Refused), (state, answer)
                assert answer.code == "STATE_CONFLICT", answer
    return len(won)


async def forget_the_salvage(stage: Stage) -> None:
    """A replica that was not given the file does not read past the range, with a new index, and does not serve."""
    replica = (await stage.cluster.passives())[0]
    await replica.stop()
    where = stage.cluster.config.replica_dir(replica.name)
    shutil.rmtree(where / "salvages")
    shutil.rmtree(where / "index")
    replica.start()
    await eventually(lambda: says(replica, "SALVAGE_MISSING"), 60.0)
    await replica.stop()


@pytest.mark.only_kafka("the second site's log is a topic; other kinds: tests/pipeline/test_log_copy.py")
async def test_log_copy(folder: Path) -> None:
    """Goal: a second site goes on with the copied log, and every answer holds. Method: copy under load, kill the job;
    lose the log, all indexes and the replicas; play; the second site's configuration takes the place of the first."""
    async with staged(_copying(folder / "log-copy")) as stage:
        cluster = stage.cluster
        second = _second_site(stage)
        async with under_load(stage, "log-copy") as load:
            for _ in range(2):
                await stage.play("log-copy", "Steps", "Start the job again")
                await stage.play("log-copy", "Verification")
            await stage.play("log-copy", "Checks")
        lost = cluster.kafka_settings
        await eventually(lambda: copied(stage), 60.0)
        for replica in cluster.replicas.values():
            await replica.stop()
            shutil.rmtree(cluster.config.replica_dir(replica.name) / "index")
        await cluster.kafka.delete_topic(lost.topic)
        await stage.play("log-copy", "Steps", "The first site is lost", SECOND=str(second))
        await stage.play("log-copy", "Steps", "No index survives", SECOND=str(second))
        await _serve_at(stage, second)
        await audit(cluster, [load.history])
        async with under_load(stage, "after"):
            await asyncio.sleep(5.0)
    stage.assert_all_played("log-copy", elsewhere="An index of the first site survives")


@pytest.mark.only_kafka("as test_log_copy; other kinds: tests/pipeline/test_log_copy_salvage.py")
async def test_log_copy_with_a_lost_tail(folder: Path) -> None:
    """Goal: what was not copied stays notarised and spent, at its offsets. Method: copy, stop the job, go on under
    load, lose the log, play; check every answer ever given; spend states of the lost tail again."""
    async with staged(_copying(folder / "lost-tail")) as stage:
        cluster = stage.cluster
        second = _second_site(stage)
        variables = {"SECOND": str(second), "REPLICAS": " ".join(cluster.replicas)}
        archived = await history_before(stage)
        await stage.play("log-copy", "Steps", "Start the job again")
        await eventually(lambda: copied(stage), 60.0)
        await stage.play("log-copy", "Steps", "The first site is lost", **variables)  # stops the job
        async with under_load(stage, "not-copied") as load:
            await asyncio.sleep(4.0)
        for replica in cluster.replicas.values():
            await replica.stop()
        await cluster.kafka.delete_topic(cluster.topic)
        await stage.play("log-copy", "Steps", "An index of the first site survives", **variables)
        saved = json.loads((cluster.folder / "salvage.json").read_text())
        assert (saved["entries"] > 20, saved["accept_loss"]) == (True, 0), saved
        await _serve_at(stage, second)
        await audit(cluster, [archived, load.history])
        assert await spent_again(stage, load.history, saved["first"]) > 10
        async with under_load(stage, "after"):
            await asyncio.sleep(5.0)


def _copying(folder: Path) -> ClusterSettings:
    further = {"log_copy": {"to": "second.toml", "interval_s": 0.5}}
    return ClusterSettings(folder=folder, topics_deletable=True, further=further)


def _second_site(stage: Stage) -> Path:
    """The configuration of a second site: another topic, all else is the first one's."""
    second = stage.cluster.folder / "second.toml"
    here, there = rf'^#? *topic = "{stage.cluster.topic}"', 'topic = "second-site"'
    text, found = re.subn(here, there, stage.cluster.config_path.read_text(), flags=re.MULTILINE)
    assert found == 1
    second.write_text(text)
    return second


async def _serve_at(stage: Stage, second: Path) -> None:
    """The second site's configuration takes the place of the first one's, and its replicas start."""
    cluster = stage.cluster
    second.replace(cluster.config_path)
    cluster.config = load_config(cluster.config_path)
    for replica in cluster.replicas.values():
        replica.start()
    await cluster.wait_for_active()


@pytest.mark.only_kafka("the second site's log is a topic; the term knows nothing of a log's kind")
async def test_site_term(folder: Path) -> None:
    """Goal: of two sites the one with the term serves. Method: play the first term, under load; the second site's term:
    the first one's replicas start and refuse; then the term goes back, as nothing was served."""
    async with staged(ClusterSettings(folder=folder / "site-term", topics_deletable=True)) as stage:
        cluster = stage.cluster
        second = cluster.folder / "second.toml"
        await cluster.postgres.ensure_database("witness", ROLE)
        server, variables = cluster.postgres, {"REPLICAS": " ".join(cluster.replicas), "SECOND": str(second)}
        witness = make_conninfo(host=server.machine.address, port=server.port, dbname="witness", user=ROLE)
        password = f"{ROLE}.password"
        plain = cluster.config_path.read_text()
        for file, name in ((cluster.config_path, "first"), (second, "second")):
            site = (
                f'[site]\nname = "{name}"\nwitness = "{witness}"\nwitness_password_file = "{password}"\nlease_s = 5.0\n'
            )
            file.write_text(re.sub(r"(?m)^#\[site\]$", site, plain))
        topic = rf'^#? *topic = "{cluster.topic}"'
        second.write_text(re.sub(topic, 'topic = "second-site"', second.read_text(), flags=re.MULTILINE))
        await cluster.kafka.create_topic("second-site")
        async with under_load(stage, "site-term"):
            await stage.play("site-term", "Steps", "Begin", **variables)
            await stage.play("site-term", "Verification")
            await stage.play("site-term", "Checks")
        await stage.play("site-term", "Steps", "The second site takes over", **variables)
        for replica in cluster.replicas.values():
            replica.start()
        await eventually(lambda: all_say(stage, "taken_over"), 60.0)
        assert await cluster.active() is None
        assert "HA_SITE_TAKEN_OVER" in await stage.play("site-term", "Checks")
        for replica in cluster.replicas.values():
            await replica.stop()
        await stage.play("site-term", "Steps", "The second site did not serve after all", **variables)
        await stage.play("site-term", "Verification")
        assert await all_say(stage, "in_term")
    stage.assert_all_played("site-term")


async def all_say(stage: Stage, standing: str) -> bool:
    """Whether every replica says so of its site."""
    found = (await stage.cluster.healths()).values()
    return all(health is not None and health.site == standing for health in found)


async def copied(stage: Stage) -> bool:
    """Whether the second site's log has all that the log has."""
    process = await asyncio.create_subprocess_exec(
        *("notary", "log", "copy", "--status", "--json"),
        cwd=stage.cluster.folder,
        env=stage.environment({}),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    return bool(json.loads(printed)["behind_records"] == 0)


async def test_index_mismatch(folder: Path, request: pytest.FixtureRequest) -> None:
    """Goal: a made-up entry is found and distinguished from a changed log. Method: write one into a stopped index;
    play."""
    log, further = request.config.getoption("--log-kind"), {"core": {"scrub_records_per_s": 10_000.0}}
    settings = ClusterSettings(folder=folder / "mismatch", log=log, further=further)
    async with staged(settings) as stage:
        cluster = stage.cluster
        history = await history_before(stage)
        wrong, peer = await cluster.passives()
        await wrong.stop()
        index = RocksIndex(cluster.config.replica_dir(wrong.name) / "index")
        position = index.position()
        assert position is not None
        index.write({STATE_KEY + bytes(36): bytes(32) + bytes(8)}, position)
        index.close()
        wrong.start()
        await eventually(lambda: says(wrong, "INDEX_MISMATCH"), 60.0)
        names = {"PEER": peer.name, **about(wrong)}
        await stage.play("index-mismatch", "Checks", **names)
        printed = await stage.play("index-mismatch", "Steps", **names)
        assert printed.count("1 differences") == 2, printed
        await stage.play("index-mismatch", "Verification", **names)
        await audit(cluster, [history])
    stage.assert_all_played("index-mismatch")


@pytest.mark.only_kafka("the page creates a topic; a lost log on Postgres: tests/pipeline/test_postgres_log.py")
async def test_site_recovery(folder: Path) -> None:
    """Goal: a new site has every archived answer. Method: archive; empty brokers, database and indexes; play."""
    async with staged(ClusterSettings(folder=folder / "site")) as stage:
        cluster = stage.cluster
        history = await history_before(stage)
        await lose_site(stage)
        files = ParticipantFiles(cluster.folder)
        variables = {
            "REPLICAS": " ".join(cluster.replicas),
            "OWNER_CONNINFO": cluster.postgres.dsn(DATABASE, OWNER, files.password(OWNER)),
        }
        for section in ("Checks", "Steps", "Verification"):
            await stage.play("site-recovery", section, **variables)
        await audit(cluster, [history])
        async with under_load(stage, "after"):
            await asyncio.sleep(5.0)
    stage.assert_all_played("site-recovery")


async def lose_site(stage: Stage) -> None:
    """Everything but the archive and the files of the participant is gone; empty servers have the old addresses."""
    cluster = stage.cluster
    for replica in cluster.replicas.values():
        await replica.stop()
        shutil.rmtree(cluster.config.replica_dir(replica.name))
    await cluster.kafka.remove()
    await cluster.kafka.start()
    await cluster.postgres.remove()
    await cluster.postgres.start()
    files = ParticipantFiles(cluster.folder)
    for role in (OWNER, ROLE):
        await cluster.postgres.ensure_role(role, files.password(role))
    await cluster.postgres.ensure_database(DATABASE, OWNER)
