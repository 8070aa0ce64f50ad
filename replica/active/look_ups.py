"""Look-ups: whether transactions were notarised, and what consumed states."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from ha.errors import HaError
from replica.active.places import Places
from replica.active.receipt_signer import ReceiptSigner
from replica.index.interface import Index
from replica.link.interface import LookUpAnswer, Replies
from replica.notary.answers import Notarised, NotNow, Refused, StateStatus
from replica.notary.codes import Code
from replica.notary.errors import LogUnavailable, SignerUnavailable
from replica.notary.requests import TX_ID_BYTES
from replica.notary.rules import STATE_KEY, TX_KEY

log = structlog.get_logger()

_LOOK_UPS_TOGETHER = 1_000


class Confirming(Protocol):
    """What a look-up asks first: an activation, or a worker."""

    async def confirm_lock(self) -> None:
        """Return once the lock, where answers depend on one, was confirmed after this call."""

    async def read_to_the_end(self) -> object:
        """Return once every record that was in the log at the call is applied."""


class LookUps:
    """Answers from the index, as long as an activation serves."""

    def __init__(
        self,
        index: Index,
        receipt_signer: ReceiptSigner,
        serving: Callable[[], Confirming | None],
        refusal: Callable[[], NotNow],
        fail: Callable[[Exception], None],
        *,
        places: Places,
    ) -> None:
        """`serving`: the activation, if it serves at this moment. `refusal`: the answer of a replica that does not.
        `fail` is called with a failure that must end the process."""
        self._index = index
        self._receipt_signer = receipt_signer
        self._places = places
        self._serving = serving
        self._refusal = refusal
        self._fail = fail
        self._asked: deque[tuple[Replies, list[tuple[int, bytes]]]] = deque()
        self._answering: asyncio.Task[None] | None = None

    def ask(self, replies: Replies, batch: list[tuple[int, bytes]]) -> None:
        """Take look-ups; each ticket gets its answer later."""
        self._asked.append((replies, batch))
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer(), name="look_up")

    async def _answer(self) -> None:
        """Look-ups that arrive meanwhile share the next question to the lock, so that a flood cannot load it."""
        while self._asked:
            asked: list[tuple[Replies, list[tuple[int, bytes]]]] = []
            names: dict[bytes, None] = {}
            while self._asked and len(names) < _LOOK_UPS_TOGETHER:
                asked.append(self._asked.popleft())
                names.update((name, None) for _, name in asked[-1][1])
            found = await self.look_up_confirmed(list(names))
            for replies, batch in asked:
                replies.send([(ticket, found[name]) for ticket, name in batch])

    async def look_up_confirmed(self, names: list[bytes]) -> dict[bytes, LookUpAnswer]:
        """Answer "not found" only after two checks that began after the look-up arrived.

        The lock has answered a question, so that a deposed replica cannot deny what its successor did. The replica has
        read to the log's end as of then, because two primaries are two locks."""
        activation = self._serving()
        try:
            if activation is not None:
                await activation.confirm_lock()
                found = await self._find(names)
                missing = [name for name, answer in found.items() if denies(answer)]
                if not missing:
                    return found
                await activation.read_to_the_end()
                if self._serving() is not None:
                    return found | await self._find(missing)
        except (HaError, SignerUnavailable, LogUnavailable) as error:
            log.info("look_up_unconfirmed", detail=str(error))
        except Exception as error:
            self._fail(error)
        return dict.fromkeys(names, self._refusal())

    async def _find(self, names: list[bytes]) -> dict[bytes, LookUpAnswer]:
        """The index's entries for transactions and for states; the names differ in length."""
        tx_ids = [name for name in names if len(name) == TX_ID_BYTES]
        states = [name for name in names if len(name) != TX_ID_BYTES]
        return {**await self._find_transactions(tx_ids), **self._find_states(states)}

    def _find_states(self, states: list[bytes]) -> dict[bytes, LookUpAnswer]:
        values = self._index.lookup([STATE_KEY + state for state in states])
        return {
            state: StateStatus(state, value[:32], int.from_bytes(value[32:], "big")) if value else StateStatus(state)
            for state, value in zip(states, values, strict=True)
        }

    async def _find_transactions(self, tx_ids: list[bytes]) -> dict[bytes, LookUpAnswer]:
        values = self._index.lookup([TX_KEY + tx_id for tx_id in tx_ids])
        found = [(tx_id, value) for tx_id, value in zip(tx_ids, values, strict=True) if value]
        places = [self._places.of(int.from_bytes(value[32:], "big")) for _, value in found]
        receipts = await self._receipt_signer.receipts([(tx_id, value[:32]) for tx_id, value in found], places)
        answers: dict[bytes, LookUpAnswer] = {tx_id: Refused(Code.TX_NOT_FOUND.name, tx_id) for tx_id in tx_ids}
        for (tx_id, value), receipt in zip(found, receipts, strict=True):
            offset = int.from_bytes(value[32:], "big")
            answers[tx_id] = Notarised(tx_id, value[:32], offset, None, False, receipt)
        return answers


def denies(answer: LookUpAnswer) -> bool:
    """Whether the answer is that nothing was found."""
    return isinstance(answer, Refused) or (isinstance(answer, StateStatus) and answer.consumed_by is None)
