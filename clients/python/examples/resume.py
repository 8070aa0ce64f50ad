"""Reads COUNT completions, from a kept bookmark on.

`python resume.py ENDPOINT NOTARY_KEY PARTY KEY_FILE COUNT [BOOKMARK]`. One JSON document a line: each completion with
its bookmark, or that the bookmark is of another ledger.
"""

from __future__ import annotations

import asyncio
import json
import sys

from replicated_notary_client import Bookmark, NotaryClient, StreamEnded


async def main(endpoint: str, left: int, kept: int | Bookmark) -> None:
    """Read until enough was read, or until this ledger is not the one that was read before."""
    async with NotaryClient(endpoint) as client:
        try:
            async for one in client.completions(kept, user_id="resume"):
                bookmark = str(Bookmark.of(one))
                print(
                    json.dumps({"kind": "completion", "offset": one.offset, "tx_id": one.tx_id, "bookmark": bookmark})
                )
                left -= 1
                if left == 0:
                    return
        except StreamEnded as ended:
            print(json.dumps({"kind": "ended", "code": ended.code.name}))


if __name__ == "__main__":
    endpoint, _, _, _, count, *kept = sys.argv[1:]
    if not count.isdecimal() or int(count) < 1:
        sys.exit(f"COUNT is how many completions to read, 1 or more, not {count!r}")
    asyncio.run(main(endpoint, int(count), Bookmark.parse(kept[0]) if kept else 0))
