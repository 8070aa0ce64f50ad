"""The runbook of a log that moves to another kind, played there and back on a real cluster. See test_runbooks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from ledger_api.client import NotaryClient
from replica.config.file import render_config
from replica.config.load import load_config
from replica.local.cluster import ClusterSettings
from replica.local.participant import DATABASE, OWNER, ROLE, ParticipantFiles, merged
from replica.notary.answers import Notarised
from replica.notary.receipts import verify_receipt
from replica.notary.untrusted import parse_toml
from tests.faults.audit import audit
from tests.runbooks.conftest import staged, under_load
from tests.runbooks.stage import Stage

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
PAGE = "log-move"


async def test_a_log_moves_to_postgres_and_back(folder: Path) -> None:
    """Goal: every answer, offset and receipt stays what it is, and the notary goes on. Method: notarise, play the page
    to Postgres, notarise, play it back; each time ask again for what was notarised first, and check all histories."""
    async with staged(ClusterSettings(folder=folder / "log-move")) as stage:
        cluster = stage.cluster
        request = cluster.parties[0].sign(os.urandom(32), [os.urandom(32) + bytes(4)])
        first = await _ask(stage, request)
        receipt, histories = first.receipt, list[Path]()
        kinds: dict[str, dict[str, Any]] = {"To Postgres": _on_postgres(stage), "To Kafka": _on_kafka(stage)}
        for number, (part, log) in enumerate(kinds.items()):
            async with under_load(stage, f"before-{number}") as load:
                await asyncio.sleep(3.0)
            histories.append(load.history)
            await _play(stage, part, log)
            again = await _ask(stage, request)
            assert again.log_offset == first.log_offset
            assert again.ledger_offset in (first.ledger_offset, None)  # None: not known to a replica that just began
            await audit(cluster, histories, partial=True)  # our own request is in none of them
        async with under_load(stage, "after") as load:
            await asyncio.sleep(3.0)
        await audit(cluster, [*histories, load.history], partial=True)
        assert verify_receipt(receipt, cluster.notary_key)
    stage.assert_all_played(PAGE)


async def _play(stage: Stage, part: str, log: dict[str, Any]) -> None:
    cluster, files = stage.cluster, ParticipantFiles(stage.cluster.folder)
    variables = {
        "REPLICAS": " ".join(cluster.replicas),
        "OWNER_CONNINFO": cluster.postgres.dsn(DATABASE, OWNER, files.password(OWNER)),
    }
    await stage.play(PAGE, "Checks", **variables)
    await stage.play(PAGE, "Steps", "Stop", **variables)
    _edit(cluster.config_path, {"log": log})
    cluster.config = load_config(cluster.config_path)
    await stage.play(PAGE, "Steps", part, **variables)
    await stage.play(PAGE, "Steps", "Start", **variables)
    await stage.play(PAGE, "Verification", **variables)


async def _ask(stage: Stage, request: Any) -> Notarised:
    """A success whose receipt verifies."""
    async with NotaryClient(stage.cluster.endpoint) as client:
        answer = await client.submit(request)
    assert isinstance(answer, Notarised), answer
    assert verify_receipt(answer.receipt, stage.cluster.notary_key)
    return answer


def _edit(path: Path, values: dict[str, Any]) -> None:
    path.write_text(render_config(merged(parse_toml(path.read_text()), values), "edited by an operator"))


def _on_postgres(stage: Stage) -> dict[str, Any]:
    cluster, files = stage.cluster, ParticipantFiles(stage.cluster.folder)
    database = parse_toml(cluster.config_path.read_text())["database"]
    return {
        "kind": "postgres",
        "postgres": {
            "conninfo": database["conninfo"],
            "password_file": files.password_file(ROLE),
            "single_server": True,
        },
    }


def _on_kafka(stage: Stage) -> dict[str, Any]:
    return {"kind": "kafka", "kafka": {"topic": f"{stage.cluster.topic}-2"}}
