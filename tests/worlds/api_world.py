"""A ledger API without a notary behind it: parties, a participant and a handler that answer as they are set."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime

from aiohttp import web
from nacl.signing import SigningKey

from ledger_api.client import Deduplication, Party
from ledger_api.server.api import Api
from ledger_api.server.authentication import NoAuthentication, make_authentication
from ledger_api.server.authorisation import Caller
from ledger_api.server.byte_budget import ByteBudget
from ledger_api.server.connections import HttpServer
from ledger_api.server.feed import Feed
from ledger_api.server.rate import rows_limit
from ledger_api.server.settings import UNLISTED, ApiSettings, Listing
from ledger_api.server.tls import make_tls
from ledger_api.server.traces import FrontEndTraces
from ledger_api.server.validation import Validator
from ledger_api.wire.answers import NotaryDocument
from ledger_api.wire.submissions import ANONYMOUS
from replica.link.change_signal import ChangeSignal
from replica.link.interface import (
    DEFAULT_OPTIONS,
    LogAnswer,
    LogQuestion,
    PeerSeen,
    Replies,
    Standing,
    SubmitOptions,
    TicketedLookUp,
    TicketedSubmission,
    TxQuestion,
)
from replica.log.raft.links import close_server
from replica.notary.answers import (
    Accepted,
    AcceptedEarly,
    Answer,
    CommitUnderstood,
    Notarised,
    NotNow,
    Refused,
    StateStatus,
    TxUnderstood,
)
from replica.notary.canonical import summarise
from replica.notary.codes import Code
from replica.notary.keys import NotaryKey
from replica.notary.receipts import make_receipts
from replica.notary.requests import Submission
from replica.notary.terms import decode_canonical
from replica.store.memory import MemoryDatabase, MemoryReader
from replica.telemetry.counts import ApiCounts
from tests.worlds.beginning import LEDGER

BANK = Party("O=Bank A,L=London,C=GB", LEDGER, SigningKey(b"bank a's key, only for the tests"))
NOTARY_KEY = SigningKey(b"the notary's key, also for tests")
ACTIVE = Standing(True, 7, 0.25, ledger_id=LEDGER)
PASSIVE = Standing(False, 7, 0.25, ledger_id=LEDGER)
OFFSET = 41


def notarise(submission: Submission) -> Answer:
    """A success with a receipt that verifies."""
    tx_id, digest, _ = summarise(submission.request)
    (receipt,) = make_receipts([(tx_id, digest)], bytes(NOTARY_KEY.verify_key), lambda m: NOTARY_KEY.sign(m).signature)
    return Notarised(tx_id, digest, OFFSET, OFFSET, False, receipt)


def notarise_registered(submission: Submission) -> Answer:
    """The same for the bank; nobody else is registered."""
    request = decode_canonical(submission.request).request
    if (request.party, submission.public_key) == (BANK.name, BANK.public_key):
        return notarise(submission)
    return Refused(Code.PARTY_UNKNOWN.name, request.tx_id)


def make_submission(
    party: Party = BANK,
    inputs_count: int = 4,
    deduplication: Deduplication | None = None,
    user_id: str = ANONYMOUS,
) -> Submission:
    """A signed submission with a random transaction id and random inputs."""
    inputs = [os.urandom(36) for _ in range(inputs_count)]
    return party.sign(os.urandom(32), inputs, user_id=user_id, deduplication=deduplication)


class StubParticipant:
    """Notes what reaches it, and answers as it is set."""

    def __init__(self, answer: Callable[[Submission], Answer] = notarise_registered) -> None:
        self.standing = ACTIVE
        self.answer = answer
        self.found: dict[bytes, Answer] = {}
        self.consumed: dict[bytes, StateStatus] = {}
        self.submitted: list[Submission] = []
        self.options: list[SubmitOptions] = []  # of each call that submits
        self.looked_up: list[bytes] = []
        self.log_questions: list[LogQuestion] = []
        self.log_answer: LogAnswer | None = None  # None: whatever fits
        self.gate: asyncio.Event | None = None  # answers wait for it, when there is one
        self.standing_changes = ChangeSignal()
        self.peers: Sequence[PeerSeen] = ()
        self.is_silent = False
        self.database = MemoryDatabase()

    @property
    def reached(self) -> int:
        """How many submissions, look-ups and questions to the log got here."""
        return len(self.submitted) + len(self.looked_up) + len(self.log_questions)

    async def submit(
        self,
        submissions: Sequence[Submission],
        options: SubmitOptions = DEFAULT_OPTIONS,
        on_wait: Callable[[float], None] | None = None,
    ) -> list[Answer]:
        self.submitted.extend(submissions)
        self.options.append(options)
        if self.gate is not None:
            await self.gate.wait()
        if options.early:
            return [AcceptedEarly(one.submission_id, "2.17", self.standing.retry_after_s) for one in submissions]
        if options.asynchronous:
            return [Accepted(one.submission_id, self.standing.retry_after_s, OFFSET) for one in submissions]
        return [self.answer(submission) for submission in submissions]

    async def look_up(self, tx_id: bytes) -> Answer:
        self.looked_up.append(tx_id)
        return self.found.get(tx_id, Refused(Code.TX_NOT_FOUND.name, tx_id))

    async def look_up_state(self, state: bytes) -> StateStatus | NotNow:
        self.looked_up.append(state)
        return self.consumed.get(state, StateStatus(state))

    async def ask_log(self, question: LogQuestion) -> LogAnswer:
        self.log_questions.append(question)
        if self.log_answer is not None:
            return self.log_answer
        return TxUnderstood("2.17", "Pending", "2.9") if isinstance(question, TxQuestion) else CommitUnderstood("2.9")


class StubHandler:
    """The core's side of a link: keeps what comes until the test has it answer, or answers at once."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.word = ACTIVE
        self.at_once = at_once
        self.batches: list[list[TicketedSubmission]] = []
        self.waiting: list[tuple[Replies, int, Submission]] = []
        self.looked_up: list[TicketedLookUp] = []

    def standing(self) -> Standing:
        return self.word

    def submit(
        self, replies: Replies, batch: list[TicketedSubmission], options: SubmitOptions = DEFAULT_OPTIONS
    ) -> None:
        self.batches.append(batch)
        if self.at_once:
            replies.send([(ticket, notarise_registered(submission)) for ticket, submission in batch])
        else:
            self.waiting.extend((replies, ticket, submission) for ticket, submission in batch)

    def look_up(self, replies: Replies, batch: list[TicketedLookUp]) -> None:
        self.looked_up.extend(batch)
        replies.send([(ticket, Refused(Code.TX_NOT_FOUND.name, tx_id)) for ticket, tx_id in batch])

    def ask_log(self, replies: Replies, ticket: int, question: LogQuestion) -> None:
        replies.send([(ticket, CommitUnderstood(f"{question}", ()))])

    def answer(self, at: int = 0) -> None:
        """Answer one of those that wait."""
        replies, ticket, submission = self.waiting.pop(at)
        replies.send([(ticket, notarise(submission))])


class FixedCaller(NoAuthentication):
    """Takes everybody for one caller."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def remembered(self, request: web.BaseRequest) -> Caller:
        return self._caller


class ApiWorld:
    """A real HTTP server over a stub participant."""

    def __init__(
        self,
        participant: StubParticipant,
        caller: Caller | None = None,
        traces: FrontEndTraces | None = None,
        *,
        log_nodes: bool = False,
        listing: Listing = UNLISTED,
        hosts: Sequence[str] = (),
        **settings: object,
    ) -> None:
        self.settings = ApiSettings.model_validate({"port": 0, **settings})
        self.participant = participant
        self.counts = ApiCounts()
        about = NotaryDocument(
            notary_key=bytes(NOTARY_KEY.verify_key).hex(),
            keys=[
                NotaryKey("00" * 32, until=datetime(2026, 1, 1, tzinfo=UTC)),
                NotaryKey(bytes(NOTARY_KEY.verify_key).hex()),
            ],
            version="0.0.0",
            replica="r1",
            batch_max=self.settings.batch_max,
            body_max_bytes=self.settings.body_max_bytes,
        )
        validator = Validator(self.counts, self.settings.batch_max, lambda: LEDGER)
        reader = MemoryReader(lambda: participant.database)
        now_s, budget = asyncio.get_running_loop().time, ByteBudget(self.settings.answers_max_bytes)
        self.feed = Feed(
            participant, reader, self.settings.checkpoint_s, now_s, budget=budget, rows=rows_limit(self.settings)
        )
        authentication = make_authentication(self.settings.tokens) if caller is None else FixedCaller(caller)
        self.authentication = authentication
        shown = participant if traces is None else traces.core(participant)
        self.api = Api(
            shown,
            self.feed,
            validator,
            self.counts,
            self.settings,
            about=about,
            authentication=authentication,
            log_nodes=log_nodes,
            listing=listing,
            hosts=hosts,
        )
        self.server = HttpServer(self.api.handle if traces is None else traces.around(self.api.handle), self.settings)
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.settings.tls else 'http'}://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[ApiWorld]:
        tls = None if self.settings.tls is None else make_tls(self.settings.tls)
        listener = await asyncio.get_running_loop().create_server(self.server, "127.0.0.1", 0, ssl=tls)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            await close_server(listener)
            await self.feed.close()
            await self.server.shutdown(0.5)

    async def exchange(self, raw: bytes, *, close: bool = True) -> bytes:
        """Send bytes as they are and return all that comes back until the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(raw)
            await writer.drain()
            if close:
                writer.write_eof()
            async with asyncio.timeout(30):
                return await reader.read()
        finally:
            writer.close()
