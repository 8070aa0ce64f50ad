"""Submits COUNT transactions, asks for their places in the log at once, and then what became of each.

`python early.py ENDPOINT NOTARY_KEY PARTY KEY_FILE COUNT`, where the log is on log nodes. One JSON document a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from replicated_notary_client import AcceptedEarly, NotaryClient, Party

LOOK_S = 0.01


async def main(endpoint: str, name: str, key_file: str, count: int) -> None:
    """Submit and look, one after the other."""
    async with NotaryClient(endpoint) as client:
        party = Party.from_file(name, (await client.describe()).ledger_id, key_file)
        for _ in range(count):
            answer = await client.submit_early(party.sign(inputs=[f"{os.urandom(32).hex()}:0"], user_id="early"))
            assert isinstance(answer, AcceptedEarly), answer
            found = await client.log_transaction(answer.transaction_id)
            while found.status != "Invalid" and found.log_offset is None:
                await asyncio.sleep(LOOK_S)
                found = await client.log_transaction(answer.transaction_id)
            print(json.dumps({"kind": found.status, "place": answer.transaction_id, "log_offset": found.log_offset}))


if __name__ == "__main__":
    endpoint, _, name, key_file, count = sys.argv[1:]
    asyncio.run(main(endpoint, name, key_file, int(count)))
