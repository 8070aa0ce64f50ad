"""The calls that look up one transaction or one state.

Only the core can state that something was *not* notarised or consumed. It does so once the lock has answered. The
requester and the attempts come from the completions: docs/decisions/0008.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from ledger_api.server.authorisation import Caller, may_see, may_see_parties, parties_shown
from ledger_api.server.capacity import Capacity
from ledger_api.server.feed import LINE_MAX_BYTES, Feed, FeedRefused
from ledger_api.server.feed_lines import Wanted
from ledger_api.server.query_string import QueryString
from ledger_api.server.rendering import Renderer, feed_problem
from ledger_api.server.replies import Reply
from ledger_api.server.routes import About, Call, Parameter, Right, Route
from ledger_api.server.settings import ApiSettings
from ledger_api.wire.answers import NotarisedDocument
from ledger_api.wire.feed import AttemptsDocument, RequesterDocument, StateStatusDocument, TransactionStatusDocument
from replica.link.interface import CoreLink
from replica.notary.answers import Answer, Notarised, NotNow, StateStatus
from replica.notary.codes import Code
from replica.notary.receipts import ReceiptDocument, receipt_to_document
from replica.notary.requests import format_state_ref, parse_state_ref, parse_tx_id
from replica.notary.rules import hash_of_tx_id
from replica.notary.texts import format_time
from replica.store.interface import Row

TRANSACTIONS, STATES = "/v1/transactions/", "/v1/states/"
_encoder = msgspec.json.Encoder()

_LOOKED_UP = (
    Code.MALFORMED_REQUEST,
    Code.QUERY_INVALID,
    Code.NOT_ACTIVE,
    Code.SERVICE_PAUSED,
    Code.OVERLOADED,
    Code.OUTCOME_UNKNOWN,
)
_TX_ID = Parameter("tx_id", "The transaction's id.", {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"})
_STATE_REF = Parameter(
    "state", "`<transaction id>:<output index>`.", {"type": "string", "pattern": "^[0-9a-fA-F]{64}:[0-9]{1,10}$"}
)
_LOOK_UP = About(
    summary="Whether a transaction was notarised, with a fresh receipt",
    answers={200: NotarisedDocument},
    right=Right.READ,
    codes=(
        Code.MALFORMED_REQUEST,
        Code.TX_NOT_FOUND,
        Code.NOT_ACTIVE,
        Code.SERVICE_PAUSED,
        Code.OVERLOADED,
        Code.OUTCOME_UNKNOWN,
    ),
    argument=_TX_ID,
)
_STATUS = About(
    summary="Where and when a transaction was notarised, and for whom",
    answers={200: TransactionStatusDocument},
    right=Right.READ,
    codes=(*_LOOKED_UP, Code.TX_NOT_FOUND, Code.FEED_UNAVAILABLE),
    argument=_TX_ID,
)
_RECEIPT = About(
    summary="A fresh receipt of a notarised transaction",
    answers={200: ReceiptDocument},
    right=Right.READ,
    codes=(*_LOOKED_UP, Code.TX_NOT_FOUND),
    argument=_TX_ID,
)
_STATE = About(
    summary="Whether a state was consumed, and by which transaction",
    answers={200: StateStatusDocument},
    right=Right.READ,
    codes=(*_LOOKED_UP, Code.FEED_UNAVAILABLE),
    argument=_STATE_REF,
)
_ATTEMPTS = About(
    summary="The completions of those who tried to consume a state, a page at a time: at most `page_max_bytes` of them "
    "(a setting), unless the first alone is larger",
    answers={200: AttemptsDocument},
    right=Right.READ,
    codes=(*_LOOKED_UP, Code.OFFSET_PRUNED, Code.OFFSET_AFTER_END, Code.FEED_UNAVAILABLE),
    argument=_STATE_REF,
    parameters=(
        Parameter(
            "after",
            "The offset after which to go on; left out: 0.",
            {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
        ),
    ),
)


class Lookups:
    """Answers them."""

    def __init__(
        self,
        core: CoreLink,
        feed: Feed,
        settings: ApiSettings,
        *,
        capacity: Capacity,
        renderer: Renderer,
    ) -> None:
        self._core = core
        self._feed = feed
        self._page_max_bytes = settings.page_max_bytes
        self._capacity = capacity
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """The calls."""
        return [
            Route("GET", TRANSACTIONS + "{tx_id}", self._look_up, _LOOK_UP),
            self._reading(TRANSACTIONS + "{tx_id}/status", self._transaction, _STATUS),
            self._reading(TRANSACTIONS + "{tx_id}/receipt", self._receipt, _RECEIPT),
            self._reading(STATES + "{state}", self._state, _STATE),
            self._reading(STATES + "{state}/attempts", self._attempts, _ATTEMPTS),
        ]

    def _reading(self, path: str, answer: Callable[[Call], Awaitable[Reply]], about: About) -> Route:
        """A route that may read completions; the feed's refusals are answers."""

        async def guarded(call: Call) -> Reply:
            try:
                return await answer(call)
            except FeedRefused as refused:
                return self._renderer.reply(feed_problem(refused, call.request_id), call.request_id)

        return Route("GET", path, guarded, about)

    async def _look_up(self, call: Call) -> Reply:
        return self._renderer.reply(await self._found(call), call.request_id)

    async def _receipt(self, call: Call) -> Reply:
        QueryString(call.query, ())
        answer = await self._found(call)
        if not isinstance(answer, Notarised):
            return self._renderer.reply(answer, call.request_id)
        return self._reply(receipt_to_document(answer.receipt), call)

    async def _transaction(self, call: Call) -> Reply:
        QueryString(call.query, ())
        answer = await self._found(call)
        if not isinstance(answer, Notarised):
            return self._renderer.reply(answer, call.request_id)
        row = await self._feed.find(answer.log_offset, call.holder)
        caller = call.caller
        document = TransactionStatusDocument(
            tx_id=answer.tx_id.hex(),
            content_digest=answer.content_digest.hex(),
            log_offset=answer.log_offset,
            offset=None if row is None else row[0],
            recorded_at=None if row is None else format_time(row[1].recorded_us),
            requested_by=None if row is None else _requester(caller, row),
        )
        return self._reply(document, call)

    async def _state(self, call: Call) -> Reply:
        QueryString(call.query, ())
        status = await self._found_state(call)
        if isinstance(status, NotNow):
            return self._renderer.reply(status, call.request_id)
        if status.consumed_by is None or status.log_offset is None:
            return self._reply(StateStatusDocument(state=format_state_ref(status.state), consumed=False), call)
        shown = await self._may_know_winner(call, status.log_offset)
        document = StateStatusDocument(
            state=format_state_ref(status.state),
            consumed=True,
            consumed_by_hash=hash_of_tx_id(status.consumed_by).hex(),
            consumed_by=status.consumed_by.hex() if shown else None,
            log_offset=status.log_offset,
        )
        return self._reply(document, call)

    async def _attempts(self, call: Call) -> Reply:
        query = QueryString(call.query, ("after",))
        after = query.number("after", 0)
        status = await self._found_state(call)
        if isinstance(status, NotNow):
            return self._renderer.reply(status, call.request_id)
        with self._feed.hold(max(self._page_max_bytes, LINE_MAX_BYTES), call.holder) as reservation:
            document = await self._history(status, after, Wanted(caller=call.caller, holder=call.holder))
            return self._reply(document, call).holding(reservation)

    async def _history(self, status: StateStatus, after: int, wanted: Wanted) -> AttemptsDocument:
        page = await self._feed.attempts(wanted, status, after, self._page_max_bytes)
        return AttemptsDocument(
            state=format_state_ref(status.state),
            attempts=[msgspec.Raw(line.json) for line in page.lines],
            next_after=page.next_after,
            ledger_end=page.standing.ledger_end,
            pruned_to=page.standing.pruned_to,
        )

    async def _found(self, call: Call) -> Answer:
        """What the core says about the transaction that the call names. Raises BadRequest."""
        tx_id = parse_tx_id(call.argument)
        refusal = self._capacity.look_up_refusal(call.holder)
        if refusal is not None:
            return refusal
        with self._capacity.look_up(call.holder):
            return await self._core.look_up(tx_id)

    async def _found_state(self, call: Call) -> StateStatus | NotNow:
        """What the core says about the state that the call names. Raises BadRequest."""
        state = parse_state_ref(call.argument)
        refusal = self._capacity.look_up_refusal(call.holder)
        if refusal is not None:
            return refusal
        with self._capacity.look_up(call.holder):
            return await self._core.look_up_state(state)

    async def _may_know_winner(self, call: Call, log_offset: int) -> bool:
        """Whether the caller may learn which transaction consumed a state: one of its parties acted in it."""
        if call.caller.read_as is None:
            return True
        row = await self._feed.find(log_offset, call.holder)
        return row is not None and may_see_parties(call.caller, row[1].act_as)

    def _reply(self, document: msgspec.Struct, call: Call) -> Reply:
        return Reply(200, _encoder.encode(document), call.request_id)


def _requester(caller: Caller, row: Row) -> RequesterDocument | None:
    _, completion = row
    if not may_see(caller, completion.user_id, completion.act_as):
        return None
    return RequesterDocument(
        user_id=completion.user_id,
        command_id=completion.command_id,
        act_as=list(parties_shown(caller, completion.act_as)),
        submission_id=completion.submission_id,
    )
