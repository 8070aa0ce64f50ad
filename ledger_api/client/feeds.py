"""Reading the streams of completions and updates without a gap and without a duplicate, across fail-over."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from ledger_api.client.access import headers_with
from ledger_api.client.bookmark import Bookmark
from ledger_api.client.connection import Connection, end_now
from ledger_api.client.errors import AnswerUnreadable, StreamEnded
from ledger_api.client.exchange import (
    NO_ANSWER,
    SILENCE_MAX_S,
    Decoder,
    decode,
    describe_failure,
    read_answer_body,
    read_lines,
)
from ledger_api.client.lookout import QUIET_MAX_S
from ledger_api.client.signing import check_offset
from ledger_api.wire.feed import CheckpointDocument, CompletionDocument, EndDocument, UpdateDocument
from ledger_api.wire.problems import ProblemDocument, problem_document
from replica.notary.codes import Code, Retry

COMPLETIONS, UPDATES = "/v1/completions", "/v1/updates"
completion_lines = msgspec.json.Decoder(CompletionDocument | CheckpointDocument | EndDocument)
update_lines = msgspec.json.Decoder(UpdateDocument | CheckpointDocument | EndDocument)
_problem = msgspec.json.Decoder(ProblemDocument)
Entry = TypeVar("Entry", CompletionDocument, UpdateDocument)


def follow(
    connection: Connection,
    path: str,
    decoder: Decoder[Entry | CheckpointDocument | EndDocument],
    *,
    after: int | Bookmark = 0,
    user_id: str | None = None,
    parties: Sequence[str] = (),
) -> AsyncGenerator[Entry]:
    """Everything published after ledger offset `after`, live once caught up, for ever. Reconnects by itself.

    A reader that keeps the offset of the last entry can resume after it later, on any replica. One that keeps its
    bookmark, and follows with the same filter, also learns that the ledger is another one: StreamEnded with
    LEDGER_CHANGED.

    Raises StreamEnded when the server reports that the stream cannot go on. Raises it also when the server's ledger
    still ends before `after` at the policy's deadline: a new active may lag for a moment, but an offset of another
    ledger stays too high. Raises AnswerUnreadable when the server is no notary until the deadline, or presents a
    certificate that is not trusted.
    """
    if isinstance(after, Bookmark):
        return _follow_bookmark(connection, path, decoder, kept=after, user_id=user_id, parties=parties)
    return _follow(connection, path, decoder, after=after, user_id=user_id, parties=parties)


async def _follow_bookmark(
    connection: Connection,
    path: str,
    decoder: Decoder[Entry | CheckpointDocument | EndDocument],
    *,
    kept: Bookmark,
    user_id: str | None,
    parties: Sequence[str],
) -> AsyncGenerator[Entry]:
    """As `follow`: reads the entry at the bookmark again, compares it, and goes on after it."""
    follow_after = partial(_follow, connection, path, decoder, user_id=user_id, parties=parties)
    try:
        async with aclosing(follow_after(after=kept.offset - 1)) as entries:
            if Bookmark.of(await anext(entries)) != kept:
                detail = f"what this ledger shows at offset {kept.offset} is not what was read there"
                raise StreamEnded(problem_document(Code.LEDGER_CHANGED, detail), kept.offset)
            async for entry in entries:
                yield entry
    except StreamEnded as ended:
        if ended.code is not Code.OFFSET_PRUNED or ended.problem.pruned_to != kept.offset:
            raise
    async with aclosing(follow_after(after=kept.offset)) as entries:  # only the entry to compare is pruned
        async for entry in entries:
            yield entry


async def _follow(
    connection: Connection,
    path: str,
    decoder: Decoder[Entry | CheckpointDocument | EndDocument],
    *,
    after: int,
    user_id: str | None,
    parties: Sequence[str],
) -> AsyncGenerator[Entry]:
    clock_s = asyncio.get_running_loop().time
    bearer, policy = connection.bearer, connection.policy
    failures = 0
    asked: set[str] = set()  # endpoints without a stream for us, in this round
    good_at_s, unreadable_at_s = -math.inf, math.inf  # of the last good line, and of the first bad one after it
    ahead_at_s = math.inf  # since when the server has reported that the ledger ends before our offset
    while True:
        was_ahead_at_s, ahead_at_s = ahead_at_s, math.inf
        endpoint, stays = connection.endpoints.current, False
        query = f"{path}?{feed_query(after, user_id, parties)}&follow=true"
        retry_after_s = 0.0
        token = await bearer.token()
        try:
            async for line in _lines(connection, endpoint, query, token, decoder):
                if not isinstance(line, ProblemDocument):
                    good_at_s = clock_s()
                if isinstance(line, ProblemDocument | EndDocument):
                    problem = line.problem if isinstance(line, EndDocument) else line
                    was_good = clock_s() - good_at_s < policy.deadline_s
                    if problem.retry is Retry.NO and not await bearer.outlives(problem, token, was_good):
                        raise StreamEnded(bearer.explain(problem), after)
                    is_ahead = problem.code == Code.OFFSET_AFTER_END.name
                    ahead_at_s = min(was_ahead_at_s, clock_s()) if is_ahead else math.inf
                    if clock_s() - ahead_at_s >= policy.deadline_s:
                        raise StreamEnded(problem, after)
                    retry_after_s = problem.retry_after_s or 0.0
                    stays = problem.code != Code.NOT_ACTIVE.name
                    break
                if line.offset < after + (not isinstance(line, CheckpointDocument)):
                    raise AnswerUnreadable(f"offset {line.offset} came after {after}")
                after, failures, unreadable_at_s = line.offset, 0, math.inf
                asked.clear()
                if not isinstance(line, CheckpointDocument):
                    yield line
        except AnswerUnreadable:
            unreadable_at_s = min(unreadable_at_s, clock_s())
            if clock_s() - unreadable_at_s >= policy.deadline_s:
                raise
        except NO_ANSWER:
            pass  # after any failure: reconnect, and resume after the last offset
        if not stays and connection.endpoints.next_of_round(endpoint, asked):
            continue
        await asyncio.sleep(policy.delay_s(failures, retry_after_s, connection.random()))
        failures += 1


def feed_query(after: int, user_id: str | None, parties: Sequence[str]) -> str:
    """The query of a page or a stream. Raises BadRequest."""
    check_offset(after)
    query = [("after", str(after)), *(("party", party) for party in parties)]
    return urlencode(query if user_id is None else [*query, ("user_id", user_id)])


async def _lines(
    connection: Connection,
    endpoint: str,
    query: str,
    token: str | None,
    decoder: Decoder[Entry | CheckpointDocument | EndDocument],
) -> AsyncIterator[Entry | CheckpointDocument | EndDocument | ProblemDocument]:
    connect_max_s = connection.policy.attempt_max_s
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_max_s, sock_read=SILENCE_MAX_S)
    headers = headers_with(token, {})
    clock_s = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(None) as limit:
            with connection.watched(endpoint, lambda: end_now(limit)):
                url = endpoint + query
                response = await connection.session.get(url, timeout=timeout, headers=headers, allow_redirects=False)
        with connection.watched(endpoint, response.close, QUIET_MAX_S) as waiting:
            async with response:
                if response.status != HTTPStatus.OK:
                    with suppress(AnswerUnreadable):  # for example of a proxy without a server
                        yield decode(_problem, await read_answer_body(response))
                    return
                async for raw in read_lines(response.content):
                    if waiting is not None:
                        waiting.since_s = clock_s()
                    yield decode(decoder, raw)
    except aiohttp.ClientConnectorCertificateError as error:  # the server's certificate is not trusted
        raise AnswerUnreadable(describe_failure(error)) from None
