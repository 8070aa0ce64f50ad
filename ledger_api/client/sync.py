"""The client for programs without an event loop: it runs its own in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from ledger_api.client.access import OPEN, Access
from ledger_api.client.answers import Result
from ledger_api.client.bookmark import Bookmark
from ledger_api.client.client import NotaryClient
from ledger_api.client.endpoints import Given
from ledger_api.client.retry import RetryPolicy
from ledger_api.client.signing import Deduplication
from ledger_api.wire.answers import CommitDocument, LogTransactionDocument, NotaryDocument
from ledger_api.wire.endpoints import EndpointsDocument
from ledger_api.wire.feed import (
    CompletionDocument,
    LedgerEndDocument,
    StateStatusDocument,
    TransactionStatusDocument,
    UpdateDocument,
)
from replica.notary.answers import Accepted, AcceptedEarly, Notarised
from replica.notary.requests import Submission

ResultT = TypeVar("ResultT")
Entry = TypeVar("Entry")


class SyncNotaryClient:
    """Use it as `with SyncNotaryClient("http://127.0.0.1:8080") as client`; see NotaryClient for every method.

    May be shared by threads.
    """

    def __init__(
        self,
        endpoint: Given,
        policy: RetryPolicy | None = None,
        *,
        access: Access = OPEN,
        connections_max: int = 100,
    ) -> None:
        """See NotaryClient. A source of tokens that is a function is called in the client's own thread."""
        self._client = NotaryClient(endpoint, policy, access=access, connections_max=connections_max)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="notary client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._client.__aexit__(kind, error, trace))
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def user_id(self) -> str:
        """See NotaryClient.user_id."""
        return self._run(self._client.user_id())

    def notarise(
        self, submission: Submission, notary_key: bytes | str, *, deduplication: Deduplication | None = None
    ) -> Notarised:
        """See NotaryClient.notarise."""
        return self._run(self._client.notarise(submission, notary_key, deduplication=deduplication))

    def submit(self, submission: Submission, *, deduplication: Deduplication | None = None) -> Result:
        """See NotaryClient.submit."""
        return self._run(self._client.submit(submission, deduplication=deduplication))

    def submit_async(self, submission: Submission, *, deduplication: Deduplication | None = None) -> Result | Accepted:
        """See NotaryClient.submit_async."""
        return self._run(self._client.submit_async(submission, deduplication=deduplication))

    def submit_early(
        self, submission: Submission, *, deduplication: Deduplication | None = None
    ) -> Result | Accepted | AcceptedEarly:
        """See NotaryClient.submit_early."""
        return self._run(self._client.submit_early(submission, deduplication=deduplication))

    def log_transaction(self, transaction_id: str) -> LogTransactionDocument:
        """See NotaryClient.log_transaction."""
        return self._run(self._client.log_transaction(transaction_id))

    def commit(self, *, view_history_since: int | None = None) -> CommitDocument:
        """See NotaryClient.commit."""
        return self._run(self._client.commit(view_history_since=view_history_since))

    def submit_batch(
        self, submissions: Sequence[Submission], *, deduplication: Deduplication | None = None
    ) -> list[Result]:
        """See NotaryClient.submit_batch."""
        return self._run(self._client.submit_batch(submissions, deduplication=deduplication))

    def submit_all(
        self, submissions: Sequence[Submission], *, deduplication: Deduplication | None = None
    ) -> list[Result]:
        """See NotaryClient.submit_all."""
        return self._run(self._client.submit_all(submissions, deduplication=deduplication))

    def look_up(self, tx_id: bytes | str) -> Result:
        """See NotaryClient.look_up."""
        return self._run(self._client.look_up(tx_id))

    def describe(self) -> NotaryDocument:
        """See NotaryClient.describe."""
        return self._run(self._client.describe())

    def ledger_end(self) -> LedgerEndDocument:
        """See NotaryClient.ledger_end."""
        return self._run(self._client.ledger_end())

    def endpoints(self) -> EndpointsDocument:
        """See NotaryClient.endpoints."""
        return self._run(self._client.endpoints())

    def transaction(self, tx_id: bytes | str) -> TransactionStatusDocument | None:
        """See NotaryClient.transaction."""
        return self._run(self._client.transaction(tx_id))

    def state(self, state: bytes | str) -> StateStatusDocument:
        """See NotaryClient.state."""
        return self._run(self._client.state(state))

    def attempts(self, state: bytes | str, after: int = 0) -> Iterator[CompletionDocument]:
        """See NotaryClient.attempts."""
        return self._each(self._client.attempts(state, after))

    def completions(
        self, after: int | Bookmark = 0, *, user_id: str | None = None, parties: Sequence[str] = ()
    ) -> Iterator[CompletionDocument]:
        """See NotaryClient.completions."""
        return self._each(self._client.completions(after, user_id=user_id, parties=parties))

    def updates(self, after: int | Bookmark = 0, *, parties: Sequence[str] = ()) -> Iterator[UpdateDocument]:
        """See NotaryClient.updates."""
        return self._each(self._client.updates(after, parties=parties))

    def _each(self, entries: AsyncIterator[Entry]) -> Iterator[Entry]:
        async def following() -> list[Entry]:
            try:
                return [await anext(entries)]
            except StopAsyncIteration:  # which no task may end with
                return []

        try:
            while found := self._run(following()):
                yield found[0]
        finally:
            self._run(entries.aclose())  # type: ignore[attr-defined]

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("use the client in a `with` block")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
