"""`notary submit` and `notary completions` against a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec

from ledger_api.client import Party, encode_submission
from tests.integration.test_api_client import make_completion
from tests.worlds.api_world import ACTIVE, NOTARY_KEY, ApiWorld, StubParticipant, make_submission
from tests.worlds.beginning import LEDGER


async def notary(
    *words: str, lines: int | None = None, environment: dict[str, str] | None = None
) -> tuple[int | None, list[dict[str, object]], str]:
    """Exit code, JSON lines and standard error; ended after so many lines, if it would go on for ever."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "replica.cli", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | (environment or {}),
    )
    assert process.stdout is not None
    found: list[dict[str, object]] = []
    async with asyncio.timeout(60):
        while (lines is None or len(found) < lines) and (line := await process.stdout.readline()):
            found.append(json.loads(line))
        if lines is not None:
            process.terminate()
        _, told = await process.communicate()
        return process.returncode, found, told.decode()


async def test_a_file_of_submissions_is_notarised_and_verified(tmp_path: Path) -> None:
    """Goal: a shell can notarise. Method: good ones; one of a stranger among them; a line that is none; another key."""
    good = [encode_submission(make_submission()) for _ in range(3)]
    file = tmp_path / "submissions.jsonl"
    key = bytes(NOTARY_KEY.verify_key).hex()
    async with ApiWorld(StubParticipant()).serve() as world:
        file.write_bytes(b"\n".join(good) + b"\n")
        code, answers, told = await notary("submit", str(file), "--endpoint", world.endpoint, "--notary-key", key)
        assert (code, [answer["code"] for answer in answers]) == (0, ["NOTARISED"] * 3)
        assert "3 of 3 notarised and verified" in told
        code, _, told = await notary("submit", str(file), "--endpoint", world.endpoint, "--notary-key", "ab" * 32)
        assert (code, "0 of 3" in told) == (1, True)
        file.write_bytes(b"\n".join([*good, encode_submission(make_submission(Party("O=Nobody", LEDGER)))]))
        code, answers, _ = await notary("submit", str(file), "--endpoint", world.endpoint)
        assert (code, answers[3]["code"]) == (1, "PARTY_UNKNOWN")
        file.write_bytes(good[0] + b"\nnonsense\n")
        code, _, told = await notary("submit", str(file), "--endpoint", world.endpoint)
        assert (code, "line 2" in told) == (2, True)


async def test_completions_are_printed_and_followed(tmp_path: Path) -> None:
    """Goal: so can it read. Method: what is published; then follow, with more published meanwhile."""
    participant = StubParticipant()
    participant.database.completions = [(number, make_completion(number)) for number in range(1, 9)]
    participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=5)
    async with ApiWorld(participant).serve() as world:
        code, found, _ = await notary("completions", "--after", "2", "--endpoint", world.endpoint)
        assert (code, [line["offset"] for line in found]) == (0, [3, 4, 5])
        following = asyncio.create_task(notary("completions", "--follow", "--endpoint", world.endpoint, lines=8))
        await asyncio.sleep(0)
        participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=8)
        participant.standing_changes.notify()
        _, found, _ = await following
        assert [line["offset"] for line in found] == list(range(1, 9))
