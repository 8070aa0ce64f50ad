"""Reading the stream of completions without a gap and without a duplicate, across fail-over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from urllib.parse import urlencode

import aiohttp
import msgspec

from ledger_api.client.errors import StreamEnded
from ledger_api.client.retry import RetryPolicy
from replica.notary.documents import ProblemDocument
from replica.notary.errors import Retry
from replica.notary.feed_documents import CheckpointDocument, CompletionDocument, EndDocument

SILENCE_MAX_S = 30.0  # above the interval of the server's checkpoints: who says nothing for so long is gone
_line = msgspec.json.Decoder(CompletionDocument | CheckpointDocument | EndDocument)
_problem = msgspec.json.Decoder(ProblemDocument)


async def follow_completions(
    session: aiohttp.ClientSession,
    endpoint: str,
    policy: RetryPolicy,
    random: Callable[[], float],
    *,
    after: int = 0,
    user_id: str | None = None,
    parties: Sequence[str] = (),
) -> AsyncIterator[CompletionDocument]:
    """Completions behind ledger offset `after`, live once caught up, for ever: it connects again by itself.

    Whoever keeps the offset of the last one goes on behind it later, on any replica. Raises StreamEnded when the server
    says that going on is of no use.
    """
    failures = 0
    while True:
        query = completions_query(after, user_id, parties)
        told_s = 0.0
        try:
            async for line in _lines(session, f"{endpoint}/v1/completions?{query}&follow=true"):
                if isinstance(line, ProblemDocument | EndDocument):
                    problem = line.problem if isinstance(line, EndDocument) else line
                    if problem.retry is Retry.NO:
                        raise StreamEnded(problem, after)
                    told_s = problem.retry_after_s or 0.0
                    break
                after, failures = line.offset, 0
                if isinstance(line, CompletionDocument):
                    yield line
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
            pass  # whatever went wrong: connect again, and go on behind the last offset
        await asyncio.sleep(policy.delay_s(failures, told_s, random()))
        failures += 1


def completions_query(after: int, user_id: str | None, parties: Sequence[str]) -> str:
    """What a page and a stream are asked with."""
    query = [("after", str(after)), *(("party", party) for party in parties)]
    return urlencode(query if user_id is None else [*query, ("user_id", user_id)])


async def _lines(
    session: aiohttp.ClientSession, url: str
) -> AsyncIterator[CompletionDocument | CheckpointDocument | EndDocument | ProblemDocument]:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_MAX_S)
    async with session.get(url, timeout=timeout) as response:
        if response.status != HTTPStatus.OK:
            yield _problem.decode(await response.read())
            return
        unread = b""
        async for chunk in response.content.iter_any():
            *whole, unread = (unread + chunk).split(b"\n")  # a line may be larger than aiohttp's own limit
            for raw in whole:
                yield _line.decode(raw)
