"""The asynchronous client of the ledger API: submit, look up, follow, and retry until an answer is final."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Self, TypeVar, cast

import msgspec

from ledger_api.client.access import OPEN, TOKEN_CODES, Access, user_of
from ledger_api.client.answers import Result, read_answer, read_decision, unknown, why_not
from ledger_api.client.bookmark import Bookmark
from ledger_api.client.connection import Connection, OnWait, head_decoder, ignore
from ledger_api.client.endpoints import Given
from ledger_api.client.errors import AnswerUnreadable, ReceiptInvalid, RequestRejected, success_of
from ledger_api.client.exchange import decode
from ledger_api.client.feeds import COMPLETIONS, UPDATES, completion_lines, feed_query, follow, update_lines
from ledger_api.client.retry import RetryPolicy
from ledger_api.client.signing import (
    Deduplication,
    certifies,
    check_offset,
    encode_batch,
    encode_submission,
    state_of,
    tx_id_of,
)
from ledger_api.client.stream import SubmissionStream
from ledger_api.wire.answers import BatchAnswerDocument, CommitDocument, LogTransactionDocument, NotaryDocument
from ledger_api.wire.endpoints import EndpointsDocument
from ledger_api.wire.feed import (
    AttemptsDocument,
    CompletionDocument,
    CompletionsDocument,
    LedgerEndDocument,
    StateStatusDocument,
    TransactionStatusDocument,
    UpdateDocument,
)
from ledger_api.wire.problems import ProblemDocument
from replica.notary.answers import Accepted, AcceptedEarly, Notarised, NotNow
from replica.notary.codes import Code
from replica.notary.requests import Submission, format_state_ref

PAGE = 500
_batch = msgspec.json.Decoder(BatchAnswerDocument)
_completion = msgspec.json.Decoder(CompletionDocument)
_page = msgspec.json.Decoder(CompletionsDocument)
_notary = msgspec.json.Decoder(NotaryDocument)
_ledger_end = msgspec.json.Decoder(LedgerEndDocument)
_transaction = msgspec.json.Decoder(TransactionStatusDocument)
_state = msgspec.json.Decoder(StateStatusDocument)
_attempts = msgspec.json.Decoder(AttemptsDocument)
_endpoints = msgspec.json.Decoder(EndpointsDocument)
_log_transaction = msgspec.json.Decoder(LogTransactionDocument)
_commit = msgspec.json.Decoder(CommitDocument)
Asked = TypeVar("Asked", Submission, bytes)
Outcome = TypeVar("Outcome", Result, Result | Accepted, Result | Accepted | AcceptedEarly)


class NotaryClient:
    """Use it as `async with NotaryClient("http://127.0.0.1:8080") as client`. Connections are kept open and shared.

    Every call retries, with the same ids, while the answer is NotNow or the connection fails. At the policy's deadline
    the call returns a NotNow; the outcome stays unknown until the same submission is sent again. `deduplication`: how
    far back an acceptance of the same command counts (default: as long as acceptances are kept).
    """

    def __init__(
        self,
        endpoint: Given,
        policy: RetryPolicy | None = None,
        *,
        access: Access = OPEN,
        connections_max: int = 100,
    ) -> None:
        """`endpoint`: a connection string (`https://a:8080,b:8080,c:8080/`), or a list of endpoints.

        Raises ConfigError when one of them, or what `access` names, cannot be used.
        """
        self._connection = Connection(endpoint, policy or RetryPolicy(), access, connections_max)

    async def __aenter__(self) -> Self:
        """Raises ConfigError or TokenUnavailable when a token is configured and none is available."""
        await self._connection.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()

    def on_exchange(self, told: Callable[[], None]) -> None:
        """Have `told` called before each exchange over HTTP, in the context of the call that makes it: for recorders.

        One call may make several, with the same ids, each of which may get a record of its own.
        """
        self._connection.on_exchange = told

    async def user_id(self) -> str:
        """The user to sign for: the `sub` of the client's token (the API verifies it), or `anonymous` without one.

        Raises ConfigError for a token without one, TokenUnavailable.
        """
        return user_of(await self._connection.bearer.token())

    # ---- submissions ----

    async def submit(
        self, submission: Submission, on_wait: OnWait = ignore, *, deduplication: Deduplication | None = None
    ) -> Result:
        """Submit one and wait for its answer; `on_wait` gets each estimate of how many seconds that may take."""
        ask = partial(self._submit_one, on_wait=on_wait, deduplication=deduplication)
        return (await self._until_final([submission], ask))[0]

    async def submit_batch(
        self,
        submissions: Sequence[Submission],
        on_wait: OnWait = ignore,
        *,
        deduplication: Deduplication | None = None,
    ) -> list[Result]:
        """Submit several in one call; results in order. Only those without a final answer are sent again."""
        ask = partial(self._submit_batch, on_wait=on_wait, deduplication=deduplication)
        return await self._until_final(list(submissions), ask)

    async def submit_async(
        self, submission: Submission, *, deduplication: Deduplication | None = None
    ) -> Result | Accepted:
        """Submit one without waiting for its outcome: Accepted, as soon as it is recorded and will have a completion.

        An outcome that is already known is returned at once, as by `submit`.
        """
        ask = partial(self._submit_one_async, deduplication=deduplication)
        return (await self._until_final([submission], ask))[0]

    async def submit_early(
        self, submission: Submission, *, deduplication: Deduplication | None = None
    ) -> Result | Accepted | AcceptedEarly:
        """Submit one, and get its place in the log as soon as the log's leader has it: AcceptedEarly.

        That is no answer: the record is not committed, and may still be lost. `log_transaction` shows what became of
        it. The outcome is a completion; where none comes, send the same submission again. Accepted, where the record
        was committed first. A problem with EARLY_NOT_OFFERED, where the log is not on log nodes.
        """
        ask = partial(self._submit_one_early, deduplication=deduplication)
        return (await self._until_final([submission], ask))[0]

    async def notarise(
        self, submission: Submission, notary_key: bytes | str, *, deduplication: Deduplication | None = None
    ) -> Notarised:
        """Submit one, and return its success once the notary's signature is verified for exactly what was submitted.

        Raises NotarisationRefused, RequestRejected, OutcomeUnknown (keep the submission!), ReceiptInvalid.
        """
        answer = success_of(await self.submit(submission, deduplication=deduplication))
        if not certifies(answer, submission, notary_key):
            raise ReceiptInvalid(answer)
        return answer

    async def submit_all(
        self, submissions: Sequence[Submission], *, deduplication: Deduplication | None = None
    ) -> list[Result]:
        """Submit any number over one stream, many under way at a time; results in order. For bulk work."""
        connection = self._connection
        async with SubmissionStream(
            connection.endpoints.from_current, connection.policy, access=connection.access, deduplication=deduplication
        ) as stream:
            return list(await asyncio.gather(*map(stream.decide, submissions)))

    # ---- what is published ----

    def completions(
        self, after: int | Bookmark = 0, *, user_id: str | None = None, parties: Sequence[str] = ()
    ) -> AsyncIterator[CompletionDocument]:
        """Completions after a ledger offset, without a gap or a duplicate, for ever; see `follow`."""
        return follow(self._connection, COMPLETIONS, completion_lines, after=after, user_id=user_id, parties=parties)

    def updates(self, after: int | Bookmark = 0, *, parties: Sequence[str] = ()) -> AsyncIterator[UpdateDocument]:
        """Transactions that were notarised after a ledger offset, each once, for ever; see `follow`."""
        return follow(self._connection, UPDATES, update_lines, after=after, parties=parties)

    async def published(
        self, after: int = 0, *, user_id: str | None = None, parties: Sequence[str] = ()
    ) -> AsyncIterator[bytes]:
        """The JSON of the completions that are published by now, page by page.

        Raises NotActive without an answer, RequestRejected when they may not be read, AnswerUnreadable.
        """
        while True:
            status, body = await self._connection.call(
                "GET", f"{COMPLETIONS}?{feed_query(after, user_id, parties)}&limit={PAGE}"
            )
            if status != HTTPStatus.OK:
                raise why_not(body)
            page = decode(_page, body)
            for raw in page.completions:
                yield bytes(raw)
            if page.next_after <= after or page.next_after >= page.ledger_end:
                return
            after = page.next_after

    # ---- questions. Their errors are those of `Connection.fetch`. ----

    async def look_up(self, tx_id: bytes | str) -> Result:
        """Whether a transaction was notarised: Notarised with a fresh receipt, or Refused with TX_NOT_FOUND."""
        return (await self._until_final([tx_id_of(tx_id)], self._look_up))[0]

    async def ledger_end(self) -> LedgerEndDocument:
        """The newest ledger offset, and the one up to which completions may be gone."""
        return await self._connection.fetch("/v1/ledger-end", _ledger_end)

    async def log_transaction(self, transaction_id: str) -> LogTransactionDocument:
        """What became of the log's entry `view.seqno`. Committed and Invalid are final."""
        return await self._connection.fetch(f"/v1/log/{transaction_id}", _log_transaction)

    async def commit(self, *, view_history_since: int | None = None) -> CommitDocument:
        """The newest committed entry of the log, and where its views from this one on began (None: left out)."""
        query = "" if view_history_since is None else f"?view_history_since={view_history_since}"
        return await self._connection.fetch(f"/v1/commit{query}", _commit)

    async def endpoints(self) -> EndpointsDocument:
        """Where applications reach this notary, and which replica is active, as the replica that answers knows it."""
        return await self._connection.fetch("/v1/endpoints", _endpoints)

    async def transaction(self, tx_id: bytes | str) -> TransactionStatusDocument | None:
        """Where, when and for whom a transaction was notarised; None when it was not."""
        try:
            return await self._connection.fetch(f"/v1/transactions/{tx_id_of(tx_id).hex()}/status", _transaction)
        except RequestRejected as error:
            if error.code is Code.TX_NOT_FOUND:
                return None
            raise

    async def state(self, state: bytes | str) -> StateStatusDocument:
        """Whether a state, its text or its 36 bytes, was consumed, and by which transaction."""
        return await self._connection.fetch(f"/v1/states/{format_state_ref(state_of(state))}", _state)

    async def attempts(self, state: bytes | str, after: int = 0) -> AsyncIterator[CompletionDocument]:
        """A state's history after a ledger offset, up to now: who consumed it, and who was refused because of it."""
        path = f"/v1/states/{format_state_ref(state_of(state))}/attempts"
        check_offset(after)
        while True:
            page = await self._connection.fetch(f"{path}?after={after}", _attempts)
            for raw in page.attempts:
                yield decode(_completion, bytes(raw))
            if page.next_after <= after or page.next_after >= page.ledger_end:
                return
            after = page.next_after

    async def describe(self) -> NotaryDocument:
        """The notary's key and limits, fetched once. Raises NotActive when no replica answers, AnswerUnreadable."""
        status, body = await self._connection.call("GET", "/v1/notary")
        if status != HTTPStatus.OK:
            raise why_not(body)
        return decode(_notary, body)

    # ---- one attempt of each ----

    async def _until_final(
        self, asked: list[Asked], ask: Callable[[list[Asked]], Awaitable[list[Outcome]]]
    ) -> list[Outcome]:
        """Retry submissions without a final answer, until the deadline."""
        policy, loop = self._connection.policy, asyncio.get_running_loop()
        deadline_s = loop.time() + policy.deadline_s
        results: dict[int, Outcome] = {}
        missing = list(range(len(asked)))
        for attempt in itertools.count():
            for place, result in zip(missing, await ask([asked[place] for place in missing]), strict=True):
                # a token refused now does not settle an earlier attempt, whose outcome stays unknown
                if not (attempt and isinstance(result, ProblemDocument) and result.code in TOKEN_CODES):
                    results[place] = result
            open_answers = {place: answer for place in missing if isinstance(answer := results[place], NotNow)}
            missing = list(open_answers)
            retry_after_s = max((answer.retry_after_s for answer in open_answers.values()), default=0.0)
            delay_s = policy.delay_s(attempt, retry_after_s, self._connection.random())
            if not missing or loop.time() + delay_s > deadline_s:
                break
            await asyncio.sleep(delay_s)
        return [results[place] for place in range(len(asked))]

    async def _submit_one(
        self, submissions: list[Submission], on_wait: OnWait, deduplication: Deduplication | None
    ) -> list[Result]:
        body = encode_submission(submissions[0], deduplication)
        return [read_decision(*await self._connection.call("POST", "/v1/submissions", body, on_wait))]

    async def _submit_one_async(
        self, submissions: list[Submission], deduplication: Deduplication | None
    ) -> list[Result | Accepted]:
        body = encode_submission(submissions[0], deduplication)
        answer = read_answer(*await self._connection.call("POST", "/v1/submissions/async", body))
        return [cast("Result | Accepted", answer)]  # not asked for early

    async def _submit_one_early(
        self, submissions: list[Submission], deduplication: Deduplication | None
    ) -> list[Result | Accepted | AcceptedEarly]:
        body = encode_submission(submissions[0], deduplication)
        return [read_answer(*await self._connection.call("POST", "/v1/submissions/async?accept=early", body))]

    async def _submit_batch(
        self, submissions: list[Submission], on_wait: OnWait, deduplication: Deduplication | None
    ) -> list[Result]:
        if not submissions:
            return []
        status, body = await self._connection.call(
            "POST", "/v1/submissions/batch", encode_batch(submissions, deduplication), on_wait
        )
        if status != HTTPStatus.OK:
            return [read_decision(status, body)] * len(submissions)
        try:
            answers = map(bytes, decode(_batch, body).results)
            results = [read_decision(decode(head_decoder, raw).status, raw) for raw in answers]
        except AnswerUnreadable as error:
            return [unknown(error.detail)] * len(submissions)
        if len(results) != len(submissions):
            return [unknown(f"{len(results)} results for {len(submissions)} submissions")] * len(submissions)
        return results

    async def _look_up(self, tx_ids: list[bytes]) -> list[Result]:
        return [read_decision(*await self._connection.call("GET", f"/v1/transactions/{tx_ids[0].hex()}"))]
