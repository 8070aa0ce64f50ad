"""Makes the receipts that answers carry: at once with a key in memory, in a thread with a key that is elsewhere.

A token or a service takes milliseconds for a signature. Receipts that are requested meanwhile share the next one. A
Merkle tree certifies any number of transactions at once, so a slow one makes larger trees, not a longer queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog

from replica.active.signer import Signer, check_signer
from replica.notary.codes import Code
from replica.notary.errors import NotaryError, SignerUnavailable
from replica.notary.receipts import Place, Receipt, make_receipts

log = structlog.get_logger()

Made = TypeVar("Made")
Contents = Sequence[tuple[bytes, bytes]]
Places = Sequence[Place | None]
Then = Callable[[Sequence[Receipt] | None], None]


class ReceiptSigner:
    """Called on the event loop, which never waits for a token or a service."""

    def __init__(
        self,
        signer: Signer,
        sign_max_s: float,
        on_failed: Callable[[str, Code], None],
        in_term: Callable[[], bool] = lambda: True,
    ) -> None:
        """`sign_max_s`: a key that takes longer counts as failed. `on_failed` gets a failure's reason and code.
        `in_term`: whether this site may sign, at this moment; asked after each signature, too, before it is let out."""
        self.in_term = in_term
        self._signer = signer
        self._sign_max_s = sign_max_s
        self._asked: list[tuple[Contents, Then, Places]] = []
        self._signing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._call: asyncio.Future[Any] | None = None  # the newest in a thread
        self._on_failed = on_failed

    def make(self, contents: Contents, then: Then, places: Places = ()) -> None:
        """Call `then` with the receipts for (transaction id, content digest) pairs, in order, now or later.

        It gets None when the key does not sign in time, or this site may not sign. `places`: see make_receipts.
        """
        if not self.in_term():
            then(None)
            return
        if not self._signer.blocks or not contents:
            self._let_out(make_receipts(contents, self._signer.public_key, self._signer.sign, places), then)
            return
        self._asked.append((contents, then, places or (None,) * len(contents)))
        if self._signing is None:
            self._signing = asyncio.create_task(self._sign_all(), name="sign")

    async def receipts(self, contents: Contents, places: Places = ()) -> Sequence[Receipt]:
        """The same for a caller who can wait. Raises SignerUnavailable."""
        made: asyncio.Future[Sequence[Receipt] | None] = asyncio.get_running_loop().create_future()
        self.make(contents, lambda receipts: None if made.done() else made.set_result(receipts), places)
        receipts = await made
        if receipts is None:
            raise SignerUnavailable("no receipt can be made just now")
        return receipts

    async def check(self) -> None:
        """Make sure that receipts can be made. Raises SignerUnavailable."""
        if not self.in_term():
            raise SignerUnavailable("this site may not sign: notary site status")
        if self._signer.blocks:
            await self._in_thread(partial(check_signer, self._signer))

    async def drain(self) -> None:
        """Wait until all requested receipts are signed and answered; `sign_max_s` bounds a key that does not sign."""
        if self._signing is not None:
            await asyncio.wait([self._signing])

    async def _sign_all(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            together = [content for contents, _, _ in asked for content in contents]
            places = [place for _, _, its in asked for place in its]
            try:
                signer = self._signer
                made = partial(make_receipts, together, signer.public_key, signer.sign, places)
                receipts = await self._in_thread(made)
            except Exception as error:  # any error: waiting callers get an answer
                log.error("signer_failed", detail=str(error))
                for _, then, _ in asked:
                    then(None)
                detail, code = _told(error)
                self._on_failed(f"the notary's key cannot be used: {detail}", code)
                continue
            start = 0
            for contents, then, _ in asked:
                self._let_out(receipts[start : start + len(contents)], then)
                start += len(contents)
        self._signing = None

    def _let_out(self, receipts: Sequence[Receipt], then: Then) -> None:
        """Hand them over, unless another site may have begun to sign since this one looked."""
        then(receipts if self.in_term() else None)

    async def _in_thread(self, work: Callable[[], Made]) -> Made:
        """Run one call at a time, in a thread that does not keep the process alive. Raises SignerUnavailable."""
        async with self._turn:
            if self._call is not None and not self._call.done():
                raise SignerUnavailable("the notary's key still owes an earlier signature")
            loop = asyncio.get_running_loop()
            call: asyncio.Future[Made] = loop.create_future()
            self._call = call
            threading.Thread(target=_carry_out, args=(work, call, loop), name="signer", daemon=True).start()
            await asyncio.wait([call], timeout=self._sign_max_s)
            if not call.done():
                call.add_done_callback(lambda late: late.exception())  # nothing else reads its error
                raise SignerUnavailable(f"the notary's key gave no signature within {self._sign_max_s:g} s")
            return call.result()


def _told(error: Exception) -> tuple[str, Code]:
    if isinstance(error, NotaryError):
        return error.detail, error.code
    return str(error), Code.SIGNER_UNAVAILABLE


def _carry_out(work: Callable[[], Made], call: asyncio.Future[Made], loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # the loop is closed: the process ends
        try:
            made = work()
        except Exception as error:
            loop.call_soon_threadsafe(call.set_exception, error)
        else:
            loop.call_soon_threadsafe(call.set_result, made)
