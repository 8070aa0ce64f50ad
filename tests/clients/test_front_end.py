"""Each client against a real front end that is passive for a while: quick, and without a cluster."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ledger_api.client import NotaryClient
from replica.notary.answers import Answer, Notarised
from replica.notary.canonical import summarise
from replica.notary.requests import Submission
from replica.store.interface import NOTARISED, Completion
from tests.clients.programs import running
from tests.worlds.api_world import ACTIVE, BANK, NOTARY_KEY, PASSIVE, ApiWorld, StubParticipant, notarise

COUNT = 80


class Ledger(StubParticipant):
    """Notarises what it is given, each transaction once, and publishes it; passive after some, for a while."""

    def __init__(self, passive_after: int | None = None) -> None:
        super().__init__(self._notarise)
        self.offsets: dict[bytes, int] = {}
        self._passive_after = passive_after

    def _notarise(self, submission: Submission) -> Answer:
        tx_id, digest, _ = summarise(submission.request)
        answer = notarise(submission)
        assert isinstance(answer, Notarised)
        known = tx_id in self.offsets
        offset = self.offsets.setdefault(tx_id, len(self.offsets) + 1)
        if not known:
            row = Completion(
                offset,
                tx_id,
                submission.user_id,
                submission.command_id,
                submission.act_as,
                submission.submission_id,
                tx_id,
                digest,
                NOTARISED,
                offset,
                offset * 1_000_000,
            )
            self.database.completions.append((offset, row))
            self.standing = msgspec.structs.replace(self.standing, ledger_end=offset)
            self.standing_changes.notify()
            if len(self.offsets) == self._passive_after:
                self.standing = msgspec.structs.replace(PASSIVE, ledger_end=offset)
                asyncio.get_running_loop().call_later(1.0, self._back)
        return msgspec.structs.replace(answer, log_offset=offset, duplicate=known, ledger_offset=offset)

    def _back(self) -> None:
        self.standing = msgspec.structs.replace(ACTIVE, ledger_end=len(self.offsets))
        self.standing_changes.notify()

    async def submit(self, submissions, options, on_wait=None):  # type: ignore[no-untyped-def]
        answers = await super().submit(submissions, options, on_wait)
        if options.asynchronous:
            for submission in submissions:
                self._notarise(submission)
        return answers


def _key_file(folder: Path) -> Path:
    key = Ed25519PrivateKey.from_private_bytes(bytes(BANK.key))
    path = folder / "bank.key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return path


async def read_on(world: ApiWorld, language: str, count: int, *kept: str) -> list[dict[str, Any]]:
    """What a reader of completions says that begins after a bookmark, or at the ledger's beginning."""
    async with running(language, "resume", world.endpoint, "", "", "", str(count), *kept) as program:
        async for _ in program.documents():
            pass
    return program.said


async def publish(world: ApiWorld, count: int) -> None:
    """Completions of the reader's user."""
    async with NotaryClient(world.endpoint) as client:
        for _ in range(count):
            await client.submit(BANK.sign(inputs=[f"{os.urandom(32).hex()}:0"], user_id="resume"))


async def test_a_reader_goes_on_after_its_bookmark(tmp_path: Path, language: str) -> None:
    """Goal: nothing is read twice or left out, and another ledger is noticed. Method: a reader that ends and begins
    again after the bookmark it kept; then with the same bookmark at a front end with another ledger."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with ApiWorld(Ledger()).serve() as world:
        await publish(world, 5)
        said = await read_on(world, language, 3)
        said += await read_on(world, language, 2, said[-1]["bookmark"])
    assert [one["offset"] for one in said] == [1, 2, 3, 4, 5]
    async with ApiWorld(Ledger()).serve() as world:
        await publish(world, 5)
        ended = await read_on(world, language, 1, said[-1]["bookmark"])
    assert ended == [{"kind": "ended", "code": "LEDGER_CHANGED"}]


async def test_every_way_to_submit_across_a_passive_second(tmp_path: Path, language: str) -> None:
    """Goal: calls, stream and completions go on. Method: the front end answers NOT_ACTIVE for a second."""
    ledger = Ledger(passive_after=COUNT // 2)
    async with ApiWorld(ledger, checkpoint_s=0.2).serve() as world:
        words = (world.endpoint, bytes(NOTARY_KEY.verify_key).hex(), BANK.name, str(_key_file(tmp_path)), str(COUNT))
        async with running(language, "failover", *words) as program:
            async for _ in program.documents():
                pass
    end = program.said[-1]
    assert (end["kind"], end["submitted"], end["verified"]) == ("end", COUNT + 1, COUNT)
    assert end["connections"] >= 1
    assert sorted(one["offset"] for one in program.of("completion")) == list(range(1, COUNT + 2))
    assert {one["tx_id"] for one in program.of("success")} <= {tx_id.hex() for tx_id in ledger.offsets}
    by_transaction: dict[bytes, set[str]] = {}
    for submission in ledger.submitted:  # whatever came twice came with the same ids
        by_transaction.setdefault(summarise(submission.request)[0], set()).add(submission.submission_id)
    assert len(by_transaction) == COUNT + 1
    assert all(len(ids) == 1 for ids in by_transaction.values())
