"""Submits COUNT transactions in every way that the client knows, over some seconds, and reads their completions.

`python failover.py ENDPOINT NOTARY_KEY PARTY KEY_FILE COUNT`. One JSON document a line: each success and the way that
it was submitted, each completion, and last how many receipts verified. Any answer but a success ends it with an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import msgspec

from replicated_notary_client import (
    Accepted,
    Answer,
    NotaryClient,
    Party,
    RetryPolicy,
    Submission,
    SubmissionStream,
    certifies,
    receipt_to_document,
    success_of,
)

PAUSE_S = 0.025
GROUP = 4  # of which one is submitted by each way, but for the batch, which has two
POLICY = RetryPolicy(deadline_s=60.0)


class Run:
    """What was submitted, and what came of it."""

    def __init__(self, client: NotaryClient, stream: SubmissionStream, party: Party, notary_key: str) -> None:
        self.client = client
        self.stream = stream
        self.submitted: set[str] = set()
        self.verified = 0
        self._party = party
        self._notary_key = notary_key

    def fresh(self) -> Submission:
        """A transaction that consumes a state of its own."""
        tx_id = os.urandom(32).hex()
        self.submitted.add(tx_id)
        return self._party.sign(tx_id, [f"{os.urandom(32).hex()}:0"], user_id="failover")

    def report(self, way: str, submission: Submission, answer: Answer) -> None:
        """Print a success; anything else ends the program."""
        success = success_of(answer)
        assert certifies(success, submission, self._notary_key)
        self.verified += 1
        show(
            "success",
            way=way,
            tx_id=success.tx_id.hex(),
            content_digest=success.content_digest.hex(),
            log_offset=success.log_offset,
            receipt=msgspec.to_builtins(receipt_to_document(success.receipt)),
        )

    async def group(self, turn: int) -> None:
        """Submit some by each way at once."""
        await asyncio.sleep(turn * PAUSE_S)
        one, streamed, *batch = [self.fresh() for _ in range(GROUP)]

        async def call() -> None:
            self.report("call", one, await self.client.submit(one))

        async def on_stream() -> None:
            self.report("stream", streamed, await self.stream.decide(streamed))

        async def together() -> None:
            for submission, answer in zip(batch, await self.client.submit_batch(batch), strict=True):
                self.report("batch", submission, answer)

        await asyncio.gather(call(), on_stream(), together())

    async def unattended(self) -> None:
        """One that does not wait: it is recorded first, and its outcome is a completion."""
        submission = self.fresh()
        answer = await self.client.submit_async(submission)
        if not isinstance(answer, Accepted):
            self.report("call", submission, answer)

    async def read(self, after: int, count: int) -> None:
        """Print the completions of all that is submitted."""
        seen: set[str] = set()
        async for one in self.client.completions(after, user_id="failover"):
            if one.tx_id in self.submitted:
                show("completion", offset=one.offset, tx_id=one.tx_id, code=one.code, log_offset=one.log_offset)
                seen.add(one.tx_id)
            if len(seen) == count:
                return


def show(kind: str, **facts: object) -> None:
    """One line."""
    print(json.dumps({"kind": kind, **facts}), flush=True)


async def main(endpoint: str, notary_key: str, name: str, key_file: str, count: str) -> None:
    """Submit, then read the completions."""
    async with NotaryClient(endpoint, POLICY) as client, SubmissionStream(endpoint, POLICY) as stream:
        party = Party.from_file(name, (await client.describe()).ledger_id, key_file)
        run = Run(client, stream, party, notary_key)
        before, groups = await client.ledger_end(), int(count) // GROUP
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.read(before.ledger_end, groups * GROUP + 1))
            await asyncio.gather(*(run.group(turn) for turn in range(groups)))
            await run.unattended()
        show("end", submitted=len(run.submitted), verified=run.verified, connections=stream.connections_count)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
